"""What breaks prefixes: where the prompts of one conversation stop being the same, and by what.

`traits` is what is remembered of a text, `compare` tells two prompts apart, `doctor` remembers them, `findings` adds
up, `advice` says what to do. Pure: no clock, no loop.
"""

from stickyroute.routing.doctor.doctor import Doctor, watches

__all__ = ["Doctor", "watches"]
