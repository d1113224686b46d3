"""One broker and one Node process for all wire tests; a queue and clients of its own for each."""

from collections.abc import Iterator

import pytest

from tests.tools.js import JavaScript
from tests.wire.live import LiveBroker
from tests.wire.sdk import ASYNCIO, SYNC, Closing, JsClient, PythonSdk


@pytest.fixture(scope="session")
def live_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    broker = LiveBroker(tmp_path_factory.mktemp("tls"))
    yield broker
    broker.close()


@pytest.fixture
def live(live_broker: LiveBroker) -> Iterator[LiveBroker]:
    """The broker, which must come out of every test without a fault of its own."""
    yield live_broker
    assert live_broker.failures == []
    live_broker.remove_faults()


@pytest.fixture
def queue(live: LiveBroker) -> str:
    """A queue that no other test uses, as Azure would make it."""
    return live.queue()


@pytest.fixture(scope="session")
def closing(live_broker: LiveBroker) -> Iterator[Closing]:
    made = Closing()
    yield made
    made.finish()


@pytest.fixture(params=[SYNC, ASYNCIO])
def sdk(request: pytest.FixtureRequest, live: LiveBroker, closing: Closing) -> Iterator[PythonSdk]:
    """The Python SDK, once blocking and once asyncio."""
    made = PythonSdk(request.param, live.connection_string, closing)
    yield made
    made.close()


@pytest.fixture(scope="session")
def javascript(live_broker: LiveBroker) -> Iterator[JavaScript]:
    with pytest.MonkeyPatch.context() as patch:
        # Node reads it once, when it starts: the administration client checks certificates.
        patch.setenv("NODE_EXTRA_CA_CERTS", str(live_broker.certificates.ca))
        driver = JavaScript()
    yield driver
    driver.close()


@pytest.fixture
def js(javascript: JavaScript, live: LiveBroker) -> Iterator[JsClient]:
    """A client of the JavaScript SDK."""
    made = JsClient(javascript, live.connection_string)
    yield made
    made.close_later()
