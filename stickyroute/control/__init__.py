"""The admin port: an aiohttp application that shows what the process knows and changes nothing."""

from stickyroute.control.admin import build_admin

__all__ = ["build_admin"]
