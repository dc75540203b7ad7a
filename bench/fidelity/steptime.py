"""Hold the simulator's time model against measured vLLM runs: fit on half of the requests, judge on the
other half.

    python bench/fidelity/steptime.py TRACES [RUN ...] [--json FILE]

TRACES is the folder of the LLMServingSim measurements (github.com/casys-kaist/LLMServingSim, MIT): 300
ShareGPT requests at ten a second against vLLM 0.19 on four pairs of GPU and model, with the times of every
request's first and last token. The trace is not part of this repository; the script reads it where it lies.

All 300 requests are replayed in virtual time, since they share one engine. The five constants of the step
time are fitted to the requests with even numbers, by a simplex search; p50 and p90 of TTFT and of
inter-token latency are then compared on the odd ones, which the search never saw.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stickyroute.simulator.cache import BlockCache
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.keys import block_keys, namespace, token_buffer
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.scheduler import Scheduler, Sequence, Step
from stickyroute.simulator.timing import StepTime

PROMPTS = "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"
LIMITS = {"ttft_p50": 0.15, "ttft_p90": 0.25, "itl_p50": 0.15, "itl_p90": 0.25}
AMPLE_BLOCKS = 40_000  # 640,000 tokens: the runs that don't tell their cache size never filled it


@dataclass(frozen=True)
class Request:
    """One measured request. Times in seconds since the run's first arrival."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    keys: list[int]
    ttft_s: float
    itl_s: float


@dataclass(frozen=True)
class Run:
    """One measured run and the settings it was made with; `replicas` are data-parallel engines behind one
    port."""

    name: str
    requests: list[Request]
    blocks: int
    sequences: int
    batched_tokens: int
    replicas: int

    def profile(self, time: StepTime) -> Profile:
        return Profile(
            name=self.name,
            time=time,
            blocks=self.blocks,
            batched_tokens=self.batched_tokens,
            sequences=self.sequences,
            context_tokens=32768,
        )


def load(folder: Path, name: str) -> Run:
    """Read one run. Prompts have token ids for Llama only; for the Qwen models they stand in, cut or padded
    to the measured lengths, so that prompts which share a beginning still do."""
    measured = folder / "vllm_measured" / name
    meta = json.loads((measured / "meta.json").read_text())
    rows = [json.loads(line) for line in (measured / "requests.jsonl").read_text().splitlines()]
    with gzip.open(folder / PROMPTS, "rt") as lines:
        prompts = [json.loads(line) for line in lines]
    arguments = meta["engine_kwargs"]
    start_s = min(row["arrival_time"] for row in rows)
    # Arrivals and token times are on two clocks; the request queued soonest after its arrival ties them.
    offset_s = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    requests = []
    for number, row in enumerate(rows):
        tokens = (prompts[number]["input_tok_ids"] + prompts[number]["output_tok_ids"])[: row["input_toks"]]
        tokens += [number * 4096 + i for i in range(row["input_toks"] + row["output_toks"] - len(tokens))]
        requests.append(
            Request(
                arrival_s=row["arrival_time"] - start_s,
                prompt_tokens=row["input_toks"],
                output_tokens=row["output_toks"],
                keys=block_keys(token_buffer(tokens), 16, namespace(name)),
                ttft_s=row["first_token_ts"] - offset_s - row["arrival_time"],
                itl_s=(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1),
            )
        )
    return Run(
        name=name,
        requests=sorted(requests, key=lambda request: request.arrival_s),
        blocks=meta.get("kv_cache", {}).get("num_gpu_blocks", AMPLE_BLOCKS),
        sequences=arguments["max_num_seqs"],
        batched_tokens=arguments["max_num_batched_tokens"],
        replicas=arguments["data_parallel_size"],
    )


def simulate(run: Run, time: StepTime) -> list[tuple[float, float]]:
    """(TTFT, mean inter-token latency) in seconds of every request, in order of arrival."""
    sequences = in_lockstep(run, time) if run.replicas > 1 else alone(run, time)
    return [
        (
            sequence.first_token_s - sequence.arrived_s,
            (sequence.finished_s - sequence.first_token_s) / (sequence.output_tokens - 1),
        )
        for sequence in sequences
    ]


def alone(run: Run, time: StepTime) -> list[Sequence]:
    """One engine, as the simulator runs it."""
    engine = Engine(run.profile(time))
    sequences = []
    for request in run.requests:
        now_s = request.arrival_s
        engine.advance(now_s)
        sequences.append(engine.submit(now_s, request.keys, request.prompt_tokens, request.output_tokens))
    engine.advance(math.inf)
    return sequences


def in_lockstep(run: Run, time: StepTime) -> list[Sequence]:
    """Data-parallel ranks of a mixture-of-experts model: every step exchanges tokens between them, so all
    ranks start a step together and wait for the slowest. Each has a scheduler and a cache of its own."""
    profile = run.profile(time)
    ranks = [Scheduler(profile, BlockCache(profile.blocks, profile.block_size)) for _ in range(run.replicas)]
    planned: list[Step | None] = [None] * run.replicas
    sequences: list[Sequence] = []
    now_s = 0.0
    while True:
        steps = [step or rank.plan(now_s) for step, rank in zip(planned, ranks, strict=True)]
        planned = [rank.plan(now_s) for rank in ranks]
        lengths_s = [
            time.step_s(step.prefill_tokens, step.pairs, step.decodes, step.context) for step in steps if step
        ]
        if lengths_s:
            end_s = now_s + max(lengths_s)
        elif len(sequences) < len(run.requests):
            end_s = run.requests[len(sequences)].arrival_s
        else:
            return sequences
        while len(sequences) < len(run.requests) and run.requests[len(sequences)].arrival_s <= end_s:
            request = run.requests[len(sequences)]
            # What vLLM's own data-parallel balancer does: the least waiting, weighted, and running.
            rank = min(ranks, key=lambda one: 4 * len(one.waiting) + len(one.running))
            sequence = Sequence(
                request.keys,
                request.prompt_tokens,
                request.output_tokens,
                None,
                request.arrival_s,
                rank.cache.open(request.keys),
            )
            rank.add(sequence)
            sequences.append(sequence)
        now_s = end_s
        for step, rank in zip(steps, ranks, strict=True):
            if step is not None:
                rank.settle(step, now_s)


def percentile(values: Seq[float], q: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[q - 1]


def summary(ttfts: Seq[float], itls: Seq[float]) -> dict[str, float]:
    return {
        "ttft_p50": percentile(ttfts, 50),
        "ttft_p90": percentile(ttfts, 90),
        "itl_p50": percentile(itls, 50),
        "itl_p90": percentile(itls, 90),
    }


def loss(run: Run, time: StepTime) -> float:
    """How far the replay is off on the requests with even numbers: the mean distance of the logarithms, that
    of percentiles included, so that both the single request and the distribution count."""
    simulated = simulate(run, time)[::2]
    measured = run.requests[::2]
    single = statistics.fmean(
        abs(math.log((ttft + 0.01) / (request.ttft_s + 0.01))) + 2 * abs(math.log(itl / request.itl_s))
        for request, (ttft, itl) in zip(measured, simulated, strict=True)
    )
    distribution = 0.0
    for ours, theirs in (
        ([ttft for ttft, _ in simulated], [request.ttft_s for request in measured]),
        ([itl for _, itl in simulated], [request.itl_s for request in measured]),
    ):
        for q in (25, 50, 75, 90):
            distribution += abs(math.log(percentile(ours, q) / percentile(theirs, q)))
    return single + distribution


def step_time(point: Seq[float]) -> StepTime:
    """The constants at a point of the search, which works on logarithms so that none turns negative."""
    return StepTime(*(math.exp(value) for value in point))


def nelder_mead(
    function: Callable[[list[float]], float], start: list[float], step: float, rounds: int
) -> list[float]:
    """The simplex search of Nelder and Mead, with its usual coefficients."""
    corners = [start] + [[x + step * (i == j) for j, x in enumerate(start)] for i in range(len(start))]
    scored = sorted((function(corner), corner) for corner in corners)
    for _ in range(rounds):
        worst_value, worst = scored[-1]
        middle = [
            statistics.fmean(column) for column in zip(*(corner for _, corner in scored[:-1]), strict=True)
        ]

        def along(
            factor: float, middle: list[float] = middle, worst: list[float] = worst
        ) -> tuple[float, Any]:
            point = [m + factor * (m - w) for m, w in zip(middle, worst, strict=True)]
            return function(point), point

        reflected = along(1.0)
        if reflected[0] < scored[0][0]:
            scored[-1] = min(reflected, along(2.0))
        elif reflected[0] < scored[-2][0]:
            scored[-1] = reflected
        else:
            inside = along(0.5 if reflected[0] < worst_value else -0.5)
            if inside[0] < min(worst_value, reflected[0]):
                scored[-1] = inside
            else:
                best = scored[0][1]
                shrunk = [
                    [b + (x - b) / 2 for b, x in zip(best, corner, strict=True)] for _, corner in scored[1:]
                ]
                scored[1:] = [(function(corner), corner) for corner in shrunk]
        scored.sort()
    return scored[0][1]


def fit(run: Run, rounds: int) -> StepTime:
    """Constants for a run, from a start that any GPU of the last years is near to."""
    start = [math.log(x) for x in (0.015, 1 / 12_000, 50e-6, 0.5e-9, 0.1e-6)]

    def at(point: list[float]) -> float:
        return loss(run, step_time(point))

    first = nelder_mead(at, start, 0.7, rounds)
    return step_time(nelder_mead(at, first, 0.3, rounds // 2))


def judge(run: Run, time: StepTime) -> dict[str, Any]:
    """Measured and simulated percentiles of the requests with odd numbers, and how far they are apart."""
    simulated = simulate(run, time)[1::2]
    held_out = run.requests[1::2]
    measured = summary([request.ttft_s for request in held_out], [request.itl_s for request in held_out])
    ours = summary([ttft for ttft, _ in simulated], [itl for _, itl in simulated])
    errors = {name: ours[name] / measured[name] - 1 for name in LIMITS}
    return {
        "run": run.name,
        "constants": {name: getattr(time, name) for name in StepTime.__slots__},
        "measured_s": measured,
        "simulated_s": ours,
        "error": errors,
        "within": {name: abs(errors[name]) <= limit for name, limit in LIMITS.items()},
    }


def main() -> int:
    flags = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    flags.add_argument("traces", type=Path, help="the folder of the LLMServingSim measurements")
    flags.add_argument("runs", nargs="*", help="names of runs (default: all)")
    flags.add_argument("--rounds", type=int, default=150, help="rounds of the search (default 150)")
    flags.add_argument("--json", type=Path, help="write the results here")
    args = flags.parse_args()
    names = args.runs or sorted(path.name for path in (args.traces / "vllm_measured").iterdir())
    results = []
    for name in names:
        run = load(args.traces, name)
        result = judge(run, fit(run, args.rounds))
        results.append(result)
        print(name)
        print("  constants  " + "  ".join(f"{key} {value:.3g}" for key, value in result["constants"].items()))
        for key, limit in LIMITS.items():
            print(
                f"  {key}  measured {result['measured_s'][key]:8.4f} s  simulated "
                f"{result['simulated_s'][key]:8.4f} s  "
                f"{100 * result['error'][key]:+6.1f} %  (limit {100 * limit:.0f} %)"
                + ("" if result["within"][key] else "  OUTSIDE")
            )
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(all(result["within"].values()) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
