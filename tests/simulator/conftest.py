import asyncio

import pytest

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import serve_engines


@pytest.fixture
async def start():
    """Start one engine; it is closed at the end of the test. Fifty times real time, so that tests don't wait.

    A test fails when anything went wrong in a callback, where nobody else would hear of it.
    """
    engines = []
    wrong = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))

    async def one(**fields):
        engine = (await serve_engines([EngineConfig(**{"model": "tiny", "speedup": 50.0, **fields})]))[0]
        engines.append(engine)
        return engine

    yield one
    for engine in engines:
        await engine.close()
    assert wrong == []
