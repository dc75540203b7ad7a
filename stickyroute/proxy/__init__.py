"""One request from its last byte in to its last byte out.

`core` is the path of a proxied request; `front` answers what needs no backend; `exchange` is a request's
state between its attempts, `ledger` closes it. Bytes and sockets belong to `http`, choices to `routing`,
shared state to `fleet`.
"""

from stickyroute.proxy.core import Proxy
from stickyroute.proxy.exchange import Exchange, Target
from stickyroute.proxy.front import Front
from stickyroute.proxy.ledger import Observer
from stickyroute.proxy.witness import Witness

__all__ = ["Exchange", "Front", "Observer", "Proxy", "Target", "Witness"]
