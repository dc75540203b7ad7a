"""`stickyroute kv`: the KV calculator's figures for a person, or as JSON.

Owns the wording. The arithmetic is `stickyroute.kv`'s.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from textwrap import wrap
from typing import TextIO

from stickyroute.errors import ConfigError
from stickyroute.kv import Fit, Model, fit, read_model
from stickyroute.kv.fields import type_bytes
from stickyroute.kv.sizes import OVERHEAD_BYTES

__all__ = ["kv"]

_GIB = 2.0**30
_WIDTH = 100


def kv(flags: argparse.Namespace, out: TextIO | None = None) -> int:
    """Run the command. Raises ConfigError, and OSError for a file that cannot be read."""
    out = out if out is not None else sys.stdout
    model = read_model(flags.model_config)
    kv_type = model.dtype if flags.kv_dtype == "auto" else flags.kv_dtype
    overhead = OVERHEAD_BYTES if flags.overhead is None else flags.overhead
    found = fit(
        model,
        flags.gpu_memory,
        tensor_parallel=flags.tensor_parallel,
        utilization=flags.gpu_memory_utilization,
        kv_type_bytes=type_bytes(kv_type, "--kv-dtype"),
        weight_type_bytes=type_bytes(flags.dtype, "--dtype") if flags.dtype is not None else None,
        weights_bytes=flags.weights,
        overhead_bytes=overhead,
        context_tokens=flags.context,
        block_tokens=flags.block_size,
    )
    if flags.json:
        print(json.dumps({"model": model.name, **asdict(found), "notes": model.notes}, indent=2), file=out)
        return 0
    if model.context_tokens is not None and flags.context > model.context_tokens:
        raise ConfigError(
            f"--context {flags.context} is past what the model can do ({model.context_tokens} tokens)"
        )
    print("\n".join(_lines(model, found, flags, kv_type, overhead)), file=out)
    return 0


def _lines(model: Model, found: Fit, flags: argparse.Namespace, kv_type: str, overhead: int) -> list[str]:
    sliding = [layer.window for layer in model.layers if layer.window is not None]
    kinds = [f"{len(model.layers) - len(sliding)} full"]
    if sliding:
        kinds.append(f"{len(sliding)} sliding (window {max(sliding)})")
    if model.recurrent_layers:
        kinds.append(f"{model.recurrent_layers} recurrent")
    latent = ", one latent for all heads (MLA)" if any(layer.latent for layer in model.layers) else ""
    shape = ", ".join(kinds) + latent
    gpus = f"{flags.tensor_parallel} x {_size(flags.gpu_memory)}"
    told = "" if flags.weights else " (estimated)"
    lines = [
        f"{model.name}: {model.weights / 1e9:.1f} billion weights; {model.all_layers} layers, {shape}",
        "",
        f"KV cache of a token     {_size(found.token_bytes)} ({kv_type})",
    ]
    if sliding and found.deep_token_bytes != found.token_bytes:
        lines.append(f"  past the windows      {_size(found.deep_token_bytes)}")
    if flags.tensor_parallel > 1:
        lines.append(f"  on each GPU           {_size(found.token_bytes_gpu)}")
    if found.state_bytes:
        lines.append(f"State of a sequence     {_size(found.state_bytes)}, whatever its length")
    lines += [
        f"Weights                 {_size(found.weights_bytes)}{told}",
        f"Room for KV             {_size(found.room_bytes)} on each GPU of {gpus}",
        f"                        (utilization {flags.gpu_memory_utilization:g}, less {_size(overhead)} for the rest)",
    ]
    if not found.user_bytes:
        return [
            *lines,
            "",
            "This model keeps nothing of a token: every sequence is as dear as another.",
            *_notes(model),
        ]
    each = f"{found.context_tokens:,} tokens each ({_size(found.user_bytes)})"
    return [
        *lines,
        "",
        f"Tokens that fit         {found.tokens:,}",
        f"Users that stay warm    {found.users:,} with {each}",
        *_notes(model),
    ]


def _notes(model: Model) -> list[str]:
    return [line for note in model.notes for line in ("", *wrap(f"Note: {note}", _WIDTH))]


def _size(size: float) -> str:
    if size >= _GIB:
        return f"{size / _GIB:.1f} GiB"
    if size >= 2.0**20:
        return f"{size / 2.0**20:.1f} MiB"
    return f"{size / 1024:g} KiB" if size >= 1024 else f"{size:g} B"
