"""Finds backends that the configuration does not name: in a watched file, in DNS, in Kubernetes.

Each source says which backends there are, whole, whenever that changes; `DiscoveryWatch` keeps the last good
answer of each and tells the sum. Names are stable, so that who comes back under its name gets its keys back.
Nothing here touches the fleet.
"""

from stickyroute.watch.discovery.file import found_in_file
from stickyroute.watch.discovery.places import Found, Place
from stickyroute.watch.discovery.watch import DiscoveryWatch, load_packages

__all__ = ["DiscoveryWatch", "Found", "Place", "found_in_file", "load_packages"]
