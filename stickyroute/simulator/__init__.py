"""The simulated engine: a fleet of GPUs in a box, for the demo, the tests and the benchmark.

Pure and driven by an explicit clock, from the bottom up:
    keys      what identifies a block of tokens
    cache     vLLM's block cache; radix  SGLang's radix tree: which prefixes are resident, what is evicted
    timing    how long one step of a model on a GPU takes; profiles  named constants for that
    scheduler which tokens go into the next step: decodes, prefill chunks, admission, preemption
    engine    all of the above behind `submit`, `abort` and `advance(now_s)`
Also pure, about what is said: `tokens` (text, chat template), `asks` (bodies and their errors), `replies*`,
`exposition*` (metrics), `faults`.
Around them, knowing asyncio: `pace` (an engine's clock), `wire` (HTTP), `generation` (one request's reply),
`routes*` (paths), `kvevents` (ZMQ), `server` (all of it together), `cli`.

Nothing here imports the product. The product never imports this, apart from `benchmark`.
"""
