"""How long one step of an engine takes, as arithmetic.

    step = base + prefill tokens x prefill_token + sequences decoding x decode_sequence
         + pairs x prefill_attention + context x decode_attention

`base` is reading the weights once and launching the kernels; `pairs` counts, for every prefill token of the
step, the tokens before it that it attends to; `context` is the sum of the lengths of all sequences that
decode in the step.

Owns the formula. Knows no model, no GPU (see `profiles`) and no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Constants of the formula, all in seconds: per step, per token, per sequence, per pair, per context
    token."""

    base_s: float
    prefill_token_s: float
    decode_sequence_s: float
    prefill_attention_s: float = 0.0
    decode_attention_s: float = 0.0

    def step_s(self, prefill_tokens: int, pairs: float, decodes: int, context: int) -> float:
        """The length of one step in seconds."""
        return (
            self.base_s
            + prefill_tokens * self.prefill_token_s
            + pairs * self.prefill_attention_s
            + decodes * self.decode_sequence_s
            + context * self.decode_attention_s
        )


def attended_pairs(computed: int, chunk: int) -> float:
    """(token, earlier token) pairs of a prefill chunk of `chunk` tokens behind `computed` ones."""
    return chunk * (computed + chunk / 2)
