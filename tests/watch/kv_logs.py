"""KV events as vLLM 0.32 and SGLang 0.5.23 sent them, recorded from the wire, and events made by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


def recorded(name: str) -> list[tuple[int, bytes]]:
    """The batches of one log as (number, payload)."""
    with gzip.open(CAPTURES / f"kv-batches-{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [(row["seq"], bytes.fromhex(row["payload_hex"])) for row in map(json.loads, lines)]


def batch(*events: object, rank: int = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def stored(
    hashes: list[object], tokens: list[int], parent: object = None, **fields: object
) -> dict[str, object]:
    """A stored event as a map, its block size that of equal shares of the tokens."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": len(tokens) // len(hashes),
        **fields,
    }


def removed(*hashes: object, **fields: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **fields}
