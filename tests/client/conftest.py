"""A scripted service, and a real broker, for the client's tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from spillway.client import Connection, connect
from tests.client.scripted import ScriptedServer
from tests.tools.broker_process import BrokerProcess


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def connection(server: ScriptedServer) -> AsyncIterator[Connection]:
    async with await connect(server.connection_string, operation_timeout=10) as connection:
        yield connection


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all: each test has a queue of its own."""
    directory: Path = tmp_path_factory.mktemp("client")
    with BrokerProcess(directory / "data", queues=[f"q{number}" for number in range(44)]) as broker:
        yield broker
