"""How many random examples a law gets where the default run's are too few."""

from __future__ import annotations

from hypothesis import settings


def at_least(count: int) -> int:
    """`count`, or what the profile in force gives every law where that is more: thousands in `make test-slow`.

    A plain `max_examples` would win over the profile.
    """
    return max(count, settings().max_examples)
