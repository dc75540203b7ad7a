"""Launchers of routers, one small file each: write a configuration, start, wait until ready, name the
processes, stop.

Owns how each router is started for a fair comparison and nothing about what is then measured. Uses the
standard library only and must not import stickyroute, so that anything may use it: in-process through
`find_drivers`, or as a process, `python -m bench.drivers NAME --backend URL`, which prints one line of JSON
when the router answers.
"""

from bench.drivers.base import Driver, DriverError, Running
from bench.drivers.haproxy import Haproxy
from bench.drivers.nginx import Nginx
from bench.drivers.sglang_router import SglangRouter
from bench.drivers.smg import Smg
from bench.drivers.stickyroute import Stickyroute
from bench.drivers.vllm_router import VllmRouter

__all__ = ["DRIVERS", "Driver", "DriverError", "Running", "find_drivers"]

DRIVERS: dict[str, type[Driver]] = {
    driver.name: driver for driver in (Stickyroute, Nginx, Haproxy, SglangRouter, VllmRouter, Smg)
}


def find_drivers(venvs: list[str]) -> list[Driver]:
    """Every router that can be started here, stickyroute first: from PATH, this interpreter, `venvs`."""
    found = (driver.find(venvs) for driver in DRIVERS.values())
    return [driver for driver in found if driver is not None]
