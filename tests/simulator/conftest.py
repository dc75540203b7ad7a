import pytest

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import serve_engines


@pytest.fixture
async def start():
    """Start one engine; it is closed at the end of the test. Fifty times real time, so that tests don't
    wait."""
    engines = []

    async def one(**fields):
        engine = (await serve_engines([EngineConfig(**{"model": "tiny", "speedup": 50.0, **fields})]))[0]
        engines.append(engine)
        return engine

    yield one
    for engine in engines:
        await engine.close()
