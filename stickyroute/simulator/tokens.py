"""Text to tokens and back, and the text of answers.

Owns the chat template and two tokenizers: `ByteTokenizer` (four UTF-8 bytes of a segment are a token, so it
needs no files, and lengths come out as for English text) and `FileTokenizer` (a real tokenizer.json). Knows
no HTTP.

A chat is rendered into segments, role marks and contents apart, and the byte tokenizer pads each segment to
whole tokens, as special tokens separate them in a real model. So an answer that comes back as history of the
next turn has the very tokens it had when it was generated, and hits the cache to its end.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

BYTES_PER_TOKEN: Final = 4
IMAGE_TOKENS: Final = 256  # what a small picture costs; the same picture makes the same tokens

# Sixty-four answers of one token each: four ASCII bytes that JSON needs not escape.
_WORDS = (
    "the cat dog sun sea sky fox owl elm oak ivy ant bee cow hen pig ram rat bat cod eel fin gum hat ice jar "
    "key lid map net oar pen rug saw tap urn van wax yak zip air bay cup dew ear fog gem hut ink jam kit log "
    "mud nut ore pod rim son tin vat web yew nap zoo"
)
PIECES: Final = tuple(f"{word} " for word in _WORDS.split())


def chat_segments(messages: Iterable[Mapping[str, Any]], tools: object = None) -> list[str]:
    """A chat as the template renders it: tools, then every message, then the mark that opens the answer."""
    segments = ["<|bos|>"]
    if tools:
        segments += ["<|tools|>\n", orjson.dumps(tools, option=orjson.OPT_SORT_KEYS).decode(), "<|end|>\n"]
    for message in messages:
        segments.append(f"<|{message.get('role', 'user')}|>\n")
        segments += content_segments(message.get("content"))
        calls = message.get("tool_calls")
        if calls:
            segments.append(orjson.dumps(calls, option=orjson.OPT_SORT_KEYS).decode())
        segments.append("<|end|>\n")
    segments.append("<|assistant|>\n")
    return segments


def content_segments(content: object) -> list[str]:
    """The content of one message: a string, or parts of text and pictures in any provider's shape."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return [orjson.dumps(content).decode()]
    segments = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            segments.append(text)
        else:
            digest = hashlib.sha256(orjson.dumps(part, option=orjson.OPT_SORT_KEYS)).hexdigest()
            segments.append(
                (digest * (IMAGE_TOKENS * BYTES_PER_TOKEN // len(digest) + 1))[: IMAGE_TOKENS * 4]
            )
    return segments


class ByteTokenizer:
    """Four bytes of a segment are one token; the id is those bytes as a little-endian number."""

    def encode(self, segments: Sequence[str]) -> array[int]:
        padded = []
        for segment in segments:
            data = segment.encode("utf-8", "surrogatepass")
            rest = -len(data) % BYTES_PER_TOKEN
            padded.append(data + b"\0" * rest if rest else data)
        tokens = array("I")
        tokens.frombytes(b"".join(padded))
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        data = array("I", tokens).tobytes()
        return data.replace(b"\0", b"").decode("utf-8", "replace")

    def answer(self, seed: bytes, count: int) -> tuple[array[int], list[str]]:
        """`count` tokens that follow from `seed` alone: their ids and texts, the same on every engine."""
        pieces = [PIECES[byte % 64] for byte in hashlib.shake_128(seed).digest(count)]
        tokens = array("I")
        tokens.frombytes("".join(pieces).encode())
        return tokens, pieces


class FileTokenizer:
    """A tokenizer.json read by the optional package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer  # an optional package: most simulated fleets need none

        self._tokenizer = Tokenizer.from_file(str(path))
        self._vocabulary = self._tokenizer.get_vocab_size()
        self._plain = self._plain_words()

    def _plain_words(self) -> list[int]:
        """Ids of tokens that are a whole ASCII word: they come back as themselves when their text is read
        again."""
        words = []
        for token in range(self._vocabulary):
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            if text.isascii() and text.strip(" ").isalpha() and self._tokenizer.encode(text).ids == [token]:
                words.append(token)
        if not words:
            raise ValueError("the tokenizer has no token that is a plain word")
        return words[:4096]

    def encode(self, segments: Sequence[str]) -> array[int]:
        return array("I", self._tokenizer.encode("".join(segments), add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def answer(self, seed: bytes, count: int) -> tuple[array[int], list[str]]:
        digest = hashlib.shake_128(seed).digest(2 * count)
        words = self._plain
        picked = [
            words[int.from_bytes(digest[2 * i : 2 * i + 2], "little") % len(words)] for i in range(count)
        ]
        return array("I", picked), [self.decode([token]) for token in picked]


def load_tokenizer(path: Path | None) -> ByteTokenizer | FileTokenizer:
    """The byte tokenizer without a path."""
    return ByteTokenizer() if path is None else FileTokenizer(path)
