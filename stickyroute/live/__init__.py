"""A running process under new settings: what changes at once, what waits for a restart, and what is never lost.

Beside the composition root, which starts what is changed here. `changes` compares settings and is pure, `build`
makes parts out of settings, `targets` keeps the connections to the backends of each slot, `tuner` does the change,
`reload` notices that there is something to do.
"""

from stickyroute.live.changes import Change, changes, in_force

__all__ = ["Change", "changes", "in_force"]
