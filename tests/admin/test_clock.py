"""`/$spillway/clock`: time on purpose."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spillway.client import OutgoingMessage
from spillway.server.clock import BrokerClock
from tests.admin.client import Client, entry
from tests.wire.live import LiveBroker

DAY_S = 86_400


def clock(client: Client, **sent: Any) -> dict[str, Any]:
    answered = client.ask("POST" if sent else "GET", "/$spillway/clock", json.dumps(sent) if sent else None)
    assert answered.status == 200, answered.body
    answer: dict[str, Any] = json.loads(answered.body)
    return answer


def test_the_time_is_shown_and_moved_and_messages_follow_it(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/orders", entry("QueueDescription", "<DefaultMessageTimeToLive>P3D</DefaultMessageTimeToLive>"))
    due_ms = broker.server.clock.now_ms() + 200 * DAY_S * 1000
    broker.send("orders", "expires", OutgoingMessage("is due", scheduled_enqueue_time_ms=due_ms))
    before = clock(client)
    assert before["is_movable"] is True
    after = clock(client, advance_s=4 * DAY_S)
    assert after["is_settled"] is True
    assert after["ahead_s"] - before["ahead_s"] == pytest.approx(4 * DAY_S, abs=0.01)
    passed = datetime.fromisoformat(after["time"]) - datetime.fromisoformat(before["time"])
    assert timedelta(days=4) <= passed < timedelta(days=4, seconds=20)
    shown = client.ask("GET", "/orders?api-version=2021-05").body
    assert "<d2p1:ScheduledMessageCount>1<" in shown
    assert "<MessageCount>1<" in shown, "the other one is gone, and that is durable"
    clock(client, advance_s=200 * DAY_S)
    assert broker.bodies("orders") == ["is due"]


def test_no_time_may_pass_too(client: Client) -> None:
    assert clock(client, advance_s=0)["is_settled"] is True
    assert clock(client, advance_s=0.001)["is_settled"] is True


@pytest.mark.parametrize(
    "seconds", ["-1", '"3600"', "true", "null", "NaN", "Infinity", "-Infinity", "[]", "1e400"], ids=lambda text: text
)
def test_what_is_no_time_to_come_is_refused(client: Client, seconds: str) -> None:
    before = clock(client)["ahead_s"]
    answered = client.ask("POST", "/$spillway/clock", f'{{"advance_s": {seconds}}}')
    assert answered.status == 400
    assert "'advance_s' must be a number of seconds, 0 or more: time does not go back." in answered.body
    assert clock(client)["ahead_s"] == pytest.approx(before, abs=0.01)


@pytest.mark.parametrize("seconds", [3_000_000_000, 1e300])
def test_no_clock_is_moved_beyond_the_times_that_sdks_can_read(client: Client, seconds: float) -> None:
    answered = client.ask("POST", "/$spillway/clock", json.dumps({"advance_s": seconds}))
    assert answered.status == 400
    assert "The clock is moved ahead only, and not beyond the year 2100." in answered.body


def test_a_slip_in_a_name_is_not_taken_for_no_time(client: Client) -> None:
    answered = client.ask("POST", "/$spillway/clock", '{"advance": 5}')
    assert (answered.status, "'advance' is not known here; the names are advance_s." in answered.body) == (400, True)


@pytest.fixture
def fixed(tmp_path: Path) -> Iterator[Client]:
    """Of a broker that serves like one in production."""
    broker = LiveBroker(tmp_path, make_clock=BrokerClock)
    client = Client(broker.server.port)
    yield client
    client.close()
    broker.close()


def test_a_clock_that_was_not_made_to_be_moved_stays_and_says_how_it_could_be(fixed: Client) -> None:
    answered = fixed.ask("POST", "/$spillway/clock", '{"advance_s": 5}')
    assert answered.status == 400
    said = "The clock of this namespace cannot be moved: start the broker with --movable-clock, or with --dev."
    assert said in answered.body
    assert clock(fixed)["is_movable"] is False
    assert abs(clock(fixed)["ahead_s"]) < 0.1  # it follows the wall's, a millisecond behind or ahead
