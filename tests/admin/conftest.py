"""A namespace with its administration, on a thread of this process, and a client that speaks plain HTTP to it."""

from collections.abc import Iterator

import pytest

from spillway.admin.front import HttpFront
from spillway.admin.protocol import Connections
from tests.admin.client import Client
from tests.wire.live import LiveBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path_factory.mktemp("tls"))
    yield live
    live.close()


@pytest.fixture
def client(broker: LiveBroker) -> Iterator[Client]:
    """In an empty namespace, which it leaves empty."""
    made = Client(broker.server.port)
    yield made
    made.close()
    fresh = Client(broker.server.port)
    for name in fresh.names():
        fresh.ask("DELETE", f"/{name}")
    fresh.close()
    assert broker.failures == []


def connections(broker: LiveBroker) -> Connections:
    """All HTTP connections of the broker."""
    front = broker.server.acceptor.http
    assert isinstance(front, HttpFront)
    return front.warm_up()
