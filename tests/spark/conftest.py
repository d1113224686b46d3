"""One Spark session and two real broker processes for all of these tests: both take seconds to start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spillway.spark.session import build_session
from tests.paired.namespaces import Namespaces
from tests.tools.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """On two cores, with four attempts a task, as embedded."""
    session = build_session("tests", master="local[2,4]")
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
