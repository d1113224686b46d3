"""Duplicate detection (contract H15) with both Python SDKs and JavaScript: single messages, batches, scheduled ones,
and over a restart of a broker on a real store."""

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.amqp.types import ULong
from spillway.client import OutgoingMessage
from spillway.model.message import SCHEDULED
from spillway.store.sqlite import SqliteJournal
from tests.tools.js import JavaScriptError, Long
from tests.wire.live import LiveBroker
from tests.wire.sdk import SYNC, Closing, JsClient, PythonSdk, take, text_of

WINDOW_S = 60


@pytest.fixture
def once(live: LiveBroker) -> str:
    """A queue that takes an id once a minute."""
    return live.queue(duplicate_window_s=WINDOW_S)


def message(body: str, message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(body, message_id=message_id)


def bodies(live: LiveBroker, entity: str) -> list[str]:
    return [bytes(found.body).decode() for found in live.peek(entity)]


@pytest.mark.contract("H15")
def test_the_same_id_is_accepted_twice_and_stored_once_until_the_window_is_over(
    live: LiveBroker, sdk: PythonSdk, once: str
) -> None:
    sender = sdk.sender(once)
    sender.send_messages(message("first", "a"))
    sender.send_messages(message("second", "a"))
    sender.send_messages(message("other", "b"))
    live.advance(WINDOW_S - 10)
    sender.send_messages(message("third", "a"))
    assert bodies(live, once) == ["first", "other"]
    live.advance(10)
    sender.send_messages(message("fourth", "a"))
    assert [text_of(found) for found in take(sdk.receiver(once), 3)] == ["first", "other", "fourth"]


def test_each_message_of_a_batch_counts_by_itself(live: LiveBroker, sdk: PythonSdk, once: str) -> None:
    sender = sdk.sender(once)
    sender.send_messages(message("one", "a"))
    batch = sender.create_message_batch()
    for body, message_id in (("two", "b"), ("again", "a"), ("and again", "b"), ("three", "c")):
        batch.add_message(message(body, message_id))
    sender.send_messages(batch)
    assert bodies(live, once) == ["one", "two", "three"]


def test_an_id_stays_taken_when_its_message_is_completed(live: LiveBroker, sdk: PythonSdk, once: str) -> None:
    sender = sdk.sender(once)
    receiver = sdk.receiver(once)
    sender.send_messages(message("one", "a"))
    receiver.complete_message(take(receiver)[0])
    sender.send_messages(message("one", "a"))
    assert bodies(live, once) == []


def test_messages_without_an_id_are_never_duplicates(live: LiveBroker, sdk: PythonSdk, once: str) -> None:
    sdk.sender(once).send_messages([ServiceBusMessage("same"), ServiceBusMessage("same")])
    assert bodies(live, once) == ["same", "same"]


def test_a_scheduled_message_takes_its_id_at_once_and_a_second_one_gets_the_number_of_the_first(
    live: LiveBroker, sdk: PythonSdk, once: str
) -> None:
    sender = sdk.sender(once)
    due = datetime.now(UTC) + timedelta(days=1)
    (first,) = sender.schedule_messages(message("first", "a"), due)
    sender.send_messages(message("at once", "a"))
    again, other = sender.schedule_messages([message("second", "a"), message("other", "b")], due)
    assert again == first != other
    assert [(found.state, bytes(found.body)) for found in live.peek(once)] == [
        (SCHEDULED, b"first"),
        (SCHEDULED, b"other"),
    ]
    sender.cancel_scheduled_messages([again])
    sender.send_messages(message("cancelled is not forgotten", "a"))
    assert bodies(live, once) == ["other"]


def test_a_topic_looks_for_duplicates_before_it_makes_copies(live: LiveBroker, sdk: PythonSdk) -> None:
    topic = live.topic(duplicate_window_s=WINDOW_S)
    paths = [live.subscription(topic, name) for name in ("one", "two")]
    with sdk.client.get_topic_sender(topic) as sender:
        sender.send_messages(message("news", "a"))
        sender.send_messages([message("old news", "a"), message("more", "b")])
    assert [bodies(live, path) for path in paths] == [["news", "more"], ["news", "more"]]


def test_ids_of_different_types_are_different_ids(live: LiveBroker, once: str) -> None:
    one = uuid.uuid4()
    ids: list[Any] = ["5", ULong(5), b"5", one, str(one), one.bytes, one.hex]
    live.send(once, *(OutgoingMessage(b"", message_id=each) for each in ids))
    live.send(once, *(OutgoingMessage(b"", message_id=each) for each in ids))
    assert [found.message_id for found in live.peek(once)] == ids


def test_a_queue_with_sessions_looks_for_duplicates_over_all_of_them(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(requires_session=True, duplicate_window_s=WINDOW_S)
    sender = sdk.sender(queue)
    for session_id in ("s", "t"):
        sender.send_messages(ServiceBusMessage("one", message_id="a", session_id=session_id))
    assert [found.session_id for found in live.peek(queue)] == ["s"]


@pytest.mark.contract("H15")
def test_javascript_sends_an_id_twice_and_finds_it_once(live: LiveBroker, js: JsClient) -> None:
    once = "once-in-javascript"
    made = js(
        "admin",
        connectionString=live.connection_string,
        method="createQueue",
        args=[once, {"requiresDuplicateDetection": True, "duplicateDetectionHistoryTimeWindow": "PT1M"}],
    )
    assert (made["requiresDuplicateDetection"], made["duplicateDetectionHistoryTimeWindow"]) == (True, "PT1M")
    js("send", queue=once, message={"body": "first", "messageId": "a"})
    js("send", queue=once, message={"body": "second", "messageId": "a"})
    js("send", queue=once, message={"body": "a number", "messageId": 7})
    js("send", queue=once, message={"body": "a text", "messageId": "7"})
    js("sendBatch", queue=once, messages=[{"body": "third", "messageId": "a"}, {"body": "other", "messageId": "b"}])
    found = js("receive", queue=once, count=4, receiveMode="receiveAndDelete")
    assert [one["body"] for one in found] == ["first", "a number", "a text", "other"]
    live.advance(WINDOW_S)
    js("send", queue=once, message={"body": "late", "messageId": "a"})
    assert js.receive_one(once, receiveMode="receiveAndDelete")["body"] == "late"
    assert live.peek(once) == []


def test_javascript_schedules_an_id_twice_and_can_cancel_it_by_either_number(
    live: LiveBroker, js: JsClient, once: str
) -> None:
    at = {"$date": int((datetime.now(UTC) + timedelta(days=1)).timestamp() * 1000)}
    numbers = [js("schedule", queue=once, message={"body": "later", "messageId": "a"}, at=at)[0] for _ in range(2)]
    assert numbers[0] == numbers[1]
    assert isinstance(numbers[0], Long)
    js("cancel", queue=once, sequenceNumbers=[numbers[1]])
    with pytest.raises(JavaScriptError, match="scheduled message"):
        js("cancel", queue=once, sequenceNumbers=[numbers[0]])
    assert live.peek(once) == []


def test_the_window_goes_on_over_a_restart_of_the_broker(tmp_path: Path, closing: Closing) -> None:
    path = tmp_path / "journal.db"
    first = LiveBroker(tmp_path, SqliteJournal(path))
    queue = first.queue(duplicate_window_s=WINDOW_S)
    sdk = PythonSdk(SYNC, first.connection_string, closing)
    sdk.sender(queue).send_messages([message("one", "a"), message("two", "b")])
    sdk.sender(queue).schedule_messages(message("three", "c"), datetime.now(UTC) + timedelta(days=1))
    sdk.close_now()
    first.close(0)
    second = LiveBroker(tmp_path, SqliteJournal(path))
    sdk = PythonSdk(SYNC, second.connection_string, closing)
    sender = sdk.sender(queue)
    for message_id in "abc":
        sender.send_messages(message("again", message_id))
    assert bodies(second, queue) == ["one", "two", "three"]
    second.advance(WINDOW_S)
    sender.send_messages(message("new", "a"))
    assert bodies(second, queue) == ["one", "two", "three", "new"]
    sdk.close_now()
    second.close(0)
