"""A broker on a disk that can be made slow or made to fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.broker_process import BrokerProcess
from tests.tools.syncshim import SyncShim

QUEUE = "durable"


@pytest.fixture
def shim(tmp_path: Path) -> SyncShim:
    return SyncShim(tmp_path)


@pytest.fixture
def slow_disk_broker(tmp_path: Path, shim: SyncShim) -> Iterator[BrokerProcess]:
    """Started on a healthy disk; the test makes it slow."""
    with BrokerProcess(tmp_path / "data", queues=[QUEUE], env=shim.env) as broker:
        yield broker


@pytest.fixture
def careless_broker(tmp_path: Path, shim: SyncShim) -> Iterator[BrokerProcess]:
    """The negative control: the same broker told not to wait for the disk."""
    env = {**shim.env, "SPILLWAY_UNSAFE_SYNCHRONOUS": "OFF"}
    with BrokerProcess(tmp_path / "data", queues=[QUEUE], env=env) as broker:
        yield broker
