"""What every test gets: the product's event loop, no settings from the environment, laws tried so often."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator

import pytest
import uvloop
from hypothesis import settings

from tests.support.forked import share

# `quick` is the default: the same examples in every run, as many as fit a run of seconds. `thorough` is for
# `make test-slow`: other examples each time.
settings.register_profile("quick", settings.get_profile("ci"), max_examples=15)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=2000, derandomize=False)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite has two workers more than cores, up to six; files that were named run in this process.

    Half of the suite's time is waiting.
    """
    if config.args != config.getini("testpaths"):
        return 0
    return min(6, len(os.sched_getaffinity(0)) + 2)


def pytest_configure(config: pytest.Config) -> None:
    """Several workers have one server of processes."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        share()


def pytest_collection_finish() -> None:
    """Thousands of tests live to the end of the run: the collector need not look at them again and again."""
    gc.freeze()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_the_environment() -> Iterator[None]:
    """A test's configuration is what it says, whatever the machine's environment holds."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("STICKYROUTE_")]:
            patch.delenv(name)
        yield
