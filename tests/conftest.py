"""What every test gets: the product's event loop, and an environment without settings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's configuration is what it says, whatever the machine's environment holds."""
    for name in [name for name in os.environ if name.startswith("STICKYROUTE_")]:
        monkeypatch.delenv(name)
