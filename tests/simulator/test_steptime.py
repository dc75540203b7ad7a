"""The script that fits and judges the time model, on a made-up measurement: a run of our own engine, so what
it should find is known."""

import gzip
import json
import random
from dataclasses import replace

from bench.fidelity import steptime
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.timing import StepTime

TRUTH = StepTime(0.02, 1 / 9_000, 80e-6, 1e-9, 0.2e-6)
ARGUMENTS = {"max_num_seqs": 24, "max_num_batched_tokens": 2048, "data_parallel_size": 1}


def measured(folder, name):
    """Forty requests at eight a second, in the files and with the two clocks of the real measurements."""
    rand = random.Random(5)
    profile = replace(
        DEMO, time=TRUTH, blocks=20_000, sequences=24, batched_tokens=2048, context_tokens=32768
    )
    engine = Engine(profile)
    prompts, rows = [], []
    now_s = 0.0
    for number in range(40):
        now_s += rand.expovariate(8.0)
        prompt, answer = rand.randrange(100, 3000), rand.randrange(50, 300)
        engine.advance(now_s)
        sequence = engine.submit(now_s, [], prompt, answer)
        prompts.append({"input_tok_ids": [number] * prompt, "output_tok_ids": []})
        rows.append((now_s, prompt, answer, sequence))
    engine.advance(1e9)
    run = folder / "vllm_measured" / name
    run.mkdir(parents=True)
    (run / "meta.json").write_text(json.dumps({"engine_kwargs": ARGUMENTS}))
    with gzip.open(folder / steptime.PROMPTS, "wt") as out:
        out.writelines(json.dumps(prompt) + "\n" for prompt in prompts)
    with (run / "requests.jsonl").open("w") as lines:
        for arrival_s, prompt, answer, sequence in rows:
            row = {
                "input_toks": prompt,
                "output_toks": answer,
                "arrival_time": arrival_s + 1_000_000.0,
                "queued_ts": arrival_s + 500.0,
                "first_token_ts": sequence.first_token_s + 500.0,
                "last_token_ts": sequence.finished_s + 500.0,
            }
            lines.write(json.dumps(row) + "\n")


def test_the_truth_is_found_within_the_limits(tmp_path):
    measured(tmp_path, "made-up")
    run = steptime.load(tmp_path, "made-up")
    assert steptime.loss(run, TRUTH) < 1e-6  # the files say what the engine did
    result = steptime.judge(run, steptime.fit(run, rounds=25))
    assert all(result["within"].values()), result["error"]
    assert not all(steptime.judge(run, replace(TRUTH, base_s=0.04))["within"].values())


def test_ranks_in_lockstep_wait_for_the_slowest(tmp_path):
    measured(tmp_path, "made-up")
    run = steptime.load(tmp_path, "made-up")
    alone = steptime.simulate(run, TRUTH)
    ranks = steptime.simulate(replace(run, replicas=2, sequences=12), TRUTH)
    assert len(ranks) == len(alone) == 40
    assert all(ttft > 0 and itl >= TRUTH.base_s for ttft, itl in ranks)
