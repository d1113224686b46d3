"""Administration judges tokens by the wall clock as it is now, not by the broker's own time that follows it slowly."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.server.clock import BrokerClock
from tests.admin.client import Client, token
from tests.wire.live import LiveBroker

HOUR_S = 3_600


class Wall:
    """The machine's clock, which somebody sets."""

    def __init__(self) -> None:
        self.set_s = 0.0

    def now_ms(self) -> float:
        return (time.time() + self.set_s) * 1000


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def broker(tmp_path: Path, wall: Wall) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path, make_clock=lambda floor_ms: BrokerClock(floor_ms, wall.now_ms))
    yield live
    live.close()


def status(broker: LiveBroker, signed: str) -> int:
    client = Client(broker.server.port)
    client.token = signed
    answer = client.ask("GET", "/$Resources/queues?api-version=2021-05")
    client.close()
    return answer.status


def test_a_token_signed_by_a_clock_that_was_set_back_is_good(broker: LiveBroker, wall: Wall) -> None:
    """Two hours back: what a client signs for an hour now is over by the time that the broker had before."""
    wall.set_s = -2 * HOUR_S
    assert status(broker, token(f"https://localhost:{broker.server.port}", valid_s=wall.set_s + HOUR_S)) == 200


def test_a_token_that_is_over_by_a_clock_that_was_set_ahead_is_refused(broker: LiveBroker, wall: Wall) -> None:
    signed = token(f"https://localhost:{broker.server.port}", valid_s=HOUR_S)
    assert status(broker, signed) == 200
    wall.set_s = 2 * HOUR_S
    assert status(broker, signed) == 401
