"""One Spark session and two real broker processes for all of these tests: both take seconds to start."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.spark.platform.session import build_session
from tests.paired.namespaces import Namespaces
from tests.spark.bus import Bus
from tests.spark.java import QUICK_JAVA
from tests.tools.broker_process import BrokerProcess
from tests.tools.token_authority import TokenAuthority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The first test also waits for Spark to start. One that is cut off in the middle of a call to Java leaves the session
# unusable for all that come after it.
TEST_S_MAX = 280


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function):
            if item.get_closest_marker("timeout") is None:  # one of the module's own is further away than this one
                item.add_marker(pytest.mark.timeout(TEST_S_MAX))
            if "spark" in item.fixturenames:
                item.add_marker(pytest.mark.spark_session)


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes down what it did, for those who look for what must not be there."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def machine_identity() -> Iterator[TokenAuthority]:
    """The endpoint where azure-identity asks for tokens of this machine, also in the processes of Spark."""
    with TokenAuthority(lambda: "") as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", found.url)
        yield found


@pytest.fixture(scope="session")
def spark(event_log: Path, machine_identity: TokenAuthority) -> "Iterator[SparkSession]":
    """On two cores, with four attempts a task, as embedded."""
    config = {
        "spark.driver.defaultJavaOptions": f"{QUICK_JAVA} -Xms1g",  # all that it may have, from the beginning
        "spark.sql.shuffle.partitions": "2",  # of little data
        "spark.sql.warehouse.dir": str(event_log.with_name("warehouse")),  # not where the tests are started
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    session = build_session("tests", master="local[2,4]", config=config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    """A primary and a secondary; make entities of your own with `queue` and `topic`."""
    both = Namespaces(tmp_path_factory.mktemp("namespaces"))
    yield both
    both.close()


@pytest.fixture(scope="session")
def broker(namespaces: Namespaces) -> BrokerProcess:
    """The primary alone."""
    return namespaces.primary


@pytest.fixture(scope="session")
def bus(namespaces: Namespaces) -> Bus:
    """The primary, with what these tests do to it."""
    return Bus(namespaces, namespaces.primary)
