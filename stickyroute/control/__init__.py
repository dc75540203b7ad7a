"""The admin port: an aiohttp application that shows what the process knows and lets an operator change a little.

`admin` builds it from `deps`; `auth` says who may do what.
"""

from stickyroute.control.admin import build_admin
from stickyroute.control.deps import Deps

__all__ = ["Deps", "build_admin"]
