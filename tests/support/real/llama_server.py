"""llama.cpp's own HTTP server on loopback, out of the xllamacpp wheel: one process, one engine.

Says `listening http://...` on stdout once it serves. The cache belongs to a slot; the context is shared out
among the slots. It lives until its stdin closes, so that it never outlives the test that started it.
"""

from __future__ import annotations

import argparse
import sys

import xllamacpp


def parameters(model: str, port: int, slots: int, context_tokens: int) -> xllamacpp.CommonParams:
    """One thread, every endpoint open, embeddings pooled as OpenAI's clients expect them."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path = model
    wanted.model_alias = {"tiny"}
    wanted.hostnames = ["127.0.0.1"] if isinstance(wanted.hostnames, list) else wanted.hostnames
    wanted.port = port
    wanted.n_parallel = slots
    wanted.n_ctx = context_tokens
    wanted.embedding = True
    wanted.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    wanted.endpoint_metrics = wanted.endpoint_slots = wanted.endpoint_props = True
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    wanted.warmup = False
    return wanted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a GGUF file with llama.cpp.")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--slots", type=int, default=4, help="sequences at a time")
    parser.add_argument("--context", type=int, default=4 * 16384, help="tokens, all slots together")
    flags = parser.parse_args()
    server = xllamacpp.Server(parameters(flags.model, flags.port, flags.slots, flags.context))
    print("listening", server.listening_address, flush=True)
    sys.stdin.read()
