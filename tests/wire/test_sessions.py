"""Message sessions with the real SDKs (docs/wire.md, "Session receivers" and "Management requests")."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from spillway.client import OperationTimeout, OutgoingMessage, SessionCannotBeLocked, connect
from tests.wire.live import LiveBroker
from tests.wire.sdk import JsClient, PythonSdk, take, take_one, text_of


@pytest.fixture
def talks(live: LiveBroker) -> str:
    """A queue that requires sessions."""
    return live.queue(requires_session=True)


def send(sdk: PythonSdk, queue: str, session_id: str, *texts: str) -> None:
    sender = sdk.sender(queue)
    sender.send_messages([ServiceBusMessage(text, session_id=session_id) for text in texts])


def accept(sdk: PythonSdk, queue: str, session_id: Any = NEXT_AVAILABLE_SESSION, **options: Any) -> Any:
    """A client of its own, so that its end is the session's."""
    return sdk.receiver(queue, sdk.connect(), session_id=session_id, **options)


def test_a_named_session_is_received_in_order_and_completed(sdk: PythonSdk, live: LiveBroker, talks: str) -> None:
    send(sdk, talks, "a", "a1", "a2", "a3")
    send(sdk, talks, "b", "b1")
    receiver = accept(sdk, talks, "a")
    messages = take(receiver, 3)
    assert [text_of(message) for message in messages] == ["a1", "a2", "a3"]
    assert {message.session_id for message in messages} == {"a"}
    for message in messages:
        receiver.complete_message(message)
    assert live.active_count(talks) == 1


def test_the_next_session_is_the_one_that_waited_longest(sdk: PythonSdk, talks: str) -> None:
    send(sdk, talks, "second", "x")
    send(sdk, talks, "third", "y")
    receiver = accept(sdk, talks)
    assert text_of(take_one(receiver)) == "x"
    assert receiver.session.session_id == "second"


def test_waiting_for_the_next_session_ends_with_the_sdks_own_time_out(sdk: PythonSdk, talks: str) -> None:
    with pytest.raises(OperationTimeoutError):
        accept(sdk, talks, max_wait_time=1).receive_messages(1, max_wait_time=1)


def test_a_session_that_is_held_cannot_be_locked_by_another(sdk: PythonSdk, talks: str) -> None:
    send(sdk, talks, "a", "a1")
    take_one(accept(sdk, talks, "a"))
    with pytest.raises(SessionCannotBeLockedError):
        accept(sdk, talks, "a").receive_messages(1, max_wait_time=2)


def test_a_closed_receiver_frees_its_session_at_once(sdk: PythonSdk, talks: str) -> None:
    send(sdk, talks, "a", "a1")
    first = accept(sdk, talks, "a")
    take_one(first)
    first.close()
    again = take_one(accept(sdk, talks, "a"))
    assert (text_of(again), again.delivery_count) == ("a1", 0)


def test_state_is_set_read_and_cleared(sdk: PythonSdk, talks: str) -> None:
    receiver = accept(sdk, talks, "a")
    assert receiver.session.get_state() is None
    receiver.session.set_state("half way")
    assert bytes(receiver.session.get_state()) == b"half way"
    receiver.session.set_state(None)
    assert receiver.session.get_state() is None


def test_a_session_lock_is_renewed_for_its_full_length(sdk: PythonSdk, live: LiveBroker, talks: str) -> None:
    receiver = accept(sdk, talks, "a")
    before = receiver.session.locked_until_utc
    live.advance(20)
    renewed = receiver.session.renew_lock()
    assert renewed - before >= timedelta(seconds=19)
    assert renewed > datetime.now(UTC)


def test_a_lost_session_lock_is_the_sdks_own_exception(sdk: PythonSdk, live: LiveBroker) -> None:
    talks = live.queue(requires_session=True, lock_s=10)
    send(sdk, talks, "a", "a1")
    receiver = accept(sdk, talks, "a")
    message = take_one(receiver)
    live.advance(11)
    with pytest.raises(SessionLockLostError):
        receiver.complete_message(message)


def test_deferred_messages_of_a_session_are_received_by_number(sdk: PythonSdk, live: LiveBroker, talks: str) -> None:
    send(sdk, talks, "a", "a1")
    receiver = accept(sdk, talks, "a")
    message = take_one(receiver)
    receiver.defer_message(message)
    (deferred,) = receiver.receive_deferred_messages([message.sequence_number])
    receiver.complete_message(deferred)
    assert live.see(talks, lambda queue: queue.counters.deferred) == 0


def test_browsing_in_a_session_shows_its_messages_only(sdk: PythonSdk, talks: str) -> None:
    send(sdk, talks, "a", "a1", "a2")
    send(sdk, talks, "b", "b1")
    receiver = accept(sdk, talks, "a")
    assert [text_of(message) for message in receiver.peek_messages(10)] == ["a1", "a2"]


def test_a_message_without_a_session_id_is_refused_with_the_reason(sdk: PythonSdk, talks: str) -> None:
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        sdk.sender(talks).send_messages(ServiceBusMessage("x"))


def test_plain_and_session_receivers_keep_to_their_own_entities(sdk: PythonSdk, talks: str, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="requires sessions"):
        sdk.receiver(talks).receive_messages(1, max_wait_time=2)
    with pytest.raises(ServiceBusError, match="does not have sessions"):
        accept(sdk, queue, "a").receive_messages(1, max_wait_time=2)


def test_scheduled_messages_join_their_session(sdk: PythonSdk, live: LiveBroker, talks: str) -> None:
    due = datetime.now(UTC) + timedelta(seconds=30)
    sdk.sender(talks).schedule_messages(ServiceBusMessage("later", session_id="a"), due)
    live.advance(31)  # and what other tests moved it by
    assert text_of(take_one(accept(sdk, talks, "a"))) == "later"


def test_javascript_accepts_a_named_session_and_the_next_one(js: JsClient, talks: str) -> None:
    for session_id in ("a", "b"):
        js("send", queue=talks, message={"body": f"{session_id}1", "sessionId": session_id})
    name = str(uuid.uuid4())
    accepted = js("acceptSession", queue=talks, session=name, sessionId="b")
    assert accepted["sessionId"] == "b"
    (message,) = js("sessionReceive", session=name)
    assert message["body"] == "b1"
    js("complete", lockToken=message["lockToken"])
    other = js("acceptSession", queue=talks, session=name + "2")
    assert other["sessionId"] == "a"
    assert [found["body"] for found in js("sessionPeek", session=name + "2", count=5)] == ["a1"]


def test_javascript_keeps_state_and_renews(js: JsClient, talks: str) -> None:
    name = str(uuid.uuid4())
    first = js("acceptSession", queue=talks, session=name, sessionId="a")
    js("setSessionState", session=name, state={"step": 3})
    assert js("getSessionState", session=name)["state"] == {"step": 3}
    renewed = js("renewSession", session=name)
    assert renewed["lockedUntilUtc"] >= first["lockedUntilUtc"]
    js("closeSession", session=name)
    again = js("acceptSession", queue=talks, session=name, sessionId="a")
    assert again["sessionId"] == "a"
    assert js("getSessionState", session=name)["state"] == {"step": 3}


def test_our_own_client_accepts_a_session_by_name_or_the_next_one(live: LiveBroker, talks: str) -> None:
    async def scenario() -> None:
        async with await connect(live.connection_string) as connection:
            sender = await connection.sender(talks)
            for name in ("a", "b", "a"):
                await sender.send(OutgoingMessage(name, session_id=name))
            named = await connection.session_receiver(talks, "b")
            following = await connection.session_receiver(talks)
            assert (named.session_id, following.session_id) == ("b", "a")
            first = await following.receive(max_count=2, max_wait=5)
            assert [message.session_id for message in first] == ["a", "a"]
            for message in first:
                await following.complete(message)
            with pytest.raises(SessionCannotBeLocked):
                await connection.session_receiver(talks, "b")
            with pytest.raises(OperationTimeout, match="No session"):
                await connection.session_receiver(talks, max_wait=0.1)
            plain = await connection.receiver(live.queue())
            assert plain.session_id is None

    asyncio.run(scenario())
