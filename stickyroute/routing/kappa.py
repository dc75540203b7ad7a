"""kappa: how much longer a request waits than its own work takes.

    kappa = (mean observed TTFT) / (mean service time of the same requests) - 1, from 0 to 8

It tells how busy the fleet is: near 0 on an idle one, large on a saturated one (in an M/M/1 queue it is
rho / (1 - rho)). Both means decay, so the ratio follows the load. A fixed kappa is one price for computing
anything anywhere; without one, what work costs others is told for each backend by its queue (`routing.cost`),
which docs/adr/0006 found to be better, and kappa is for people to look at. Owns the two sums; knows no backends.
"""

from __future__ import annotations

__all__ = ["KAPPA_MAX", "Kappa"]

KAPPA_MAX = 8.0
_DECAY = 0.995  # about the last 200 first tokens
_START_S = 0.1  # what each sum starts with, so that the first few requests don't make a mean


class Kappa:
    """`fixed` (0 to 8) takes the place of the measurement."""

    __slots__ = ("_observed_s", "_service_s", "fixed", "value")

    def __init__(self, fixed: float | None = None) -> None:
        if fixed is not None and not 0 <= fixed <= KAPPA_MAX:
            raise ValueError(f"kappa must be from 0 to {KAPPA_MAX:g}")
        self.fixed = fixed
        self._observed_s = _START_S
        self._service_s = _START_S
        self.value = 0.0 if fixed is None else fixed

    def record(self, ttft_s: float, service_s: float) -> None:
        """A first token came after `ttft_s`; alone on its backend it would have taken `service_s`."""
        if self.fixed is not None or service_s <= 0:
            return
        self._observed_s = _DECAY * self._observed_s + ttft_s
        self._service_s = _DECAY * self._service_s + service_s
        value = self._observed_s / self._service_s - 1.0
        self.value = 0.0 if value < 0.0 else value if value < KAPPA_MAX else KAPPA_MAX
