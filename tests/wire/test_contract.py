"""Sends, locks and pings as the contract promises them, seen by programs on the official SDKs."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from spillway.amqp.performatives import Disposition, Rejected, Transfer
from spillway.client import OutgoingMessage, connect
from spillway.model import faults, limits
from spillway.model.errors import InternalError, ServerBusy
from spillway.store.journal import Journal
from tests.server.doubles import HeldJournal
from tests.tools.js import JavaScript, JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.raw import RawClient
from tests.wire.sdk import ASYNCIO, SYNC, WAIT_S, Closing, JsClient, PythonSdk, known, take, take_one, text_of
from tests.wire.tap import Tap

SHORT_S = 0.5  # how long a receiver waits for what must not come; its link is open by then
PING = "application/vnd.ms-servicebus-ping"


def nothing_comes(receiver: ServiceBusReceiver) -> bool:
    return receiver.receive_messages(max_message_count=5, max_wait_time=SHORT_S) == []


class HeldBroker(LiveBroker):
    """A broker whose disk can be held up: what was decided is not yet remembered, so nothing may be said of it."""

    def __init__(self, directory: Path) -> None:
        self.held = HeldJournal()
        super().__init__(directory, cast(Journal, self.held))

    def hold(self) -> None:
        self.held.is_held = True

    def let_go(self) -> None:
        async def release() -> None:
            self.held.is_held = False
            self.held.let_go()

        self.run(release())


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldBroker]:
    broker = HeldBroker(tmp_path)
    yield broker
    broker.let_go()
    broker.close()


@pytest.fixture(params=[SYNC, ASYNCIO])
def held_sdk(request: pytest.FixtureRequest, held: HeldBroker, closing: Closing) -> Iterator[PythonSdk]:
    made = PythonSdk(request.param, held.connection_string, closing)
    yield made
    made.close()


@pytest.fixture
def held_js(javascript: JavaScript, held: HeldBroker) -> Iterator[JsClient]:
    made = JsClient(javascript, held.connection_string)
    yield made
    made.close_later()


def data_transfers(tap: Tap, queue: str) -> int:
    return sum(len(spoken.payloads(True, queue)) for spoken in tap.connections)


# -- G: settling sends ------------------------------------------------------------------------------------------------


@pytest.mark.contract("G1", "G4")
def test_a_send_waits_for_the_accept_and_then_completes_in_silence(held: HeldBroker, held_sdk: PythonSdk) -> None:
    queue = held.queue()
    with held.tap() as tap, ThreadPoolExecutor(1) as pool:
        sender = held_sdk.sender(queue)
        held.hold()
        sending = pool.submit(sender.send_messages, ServiceBusMessage("x"))
        held.until(queue, lambda found: found.counters.active == 1)  # decided, and not yet on disk
        assert data_transfers(tap, queue) == 1
        assert not sending.done()
        held.let_go()
        assert sending.result(WAIT_S) is None


@pytest.mark.contract("G1", "G4")
def test_a_send_of_javascript_waits_for_the_accept(held: HeldBroker, held_js: JsClient) -> None:
    queue = held.queue()
    held_js("open", queue=queue)
    held.hold()
    sending = held_js.javascript.start("send", client=held_js.name, queue=queue, message={"body": "x"})
    held.until(queue, lambda found: found.counters.active == 1)
    held_js("ping")
    assert not sending.done()
    held.let_go()
    sending.result(WAIT_S)


@pytest.mark.contract("G2", "G3", "G4")
def test_a_refused_send_says_why_and_whether_to_try_again(live: LiveBroker, sdk: PythonSdk) -> None:
    """Not planted: refusals that the broker comes to by itself."""
    queue = live.queue(max_size_mb=1)
    sender = sdk.sender(queue)
    with pytest.raises(MessageSizeExceededError, match=r"at most 262144.*TrackingId:\S+_wire") as too_large:
        sender.send_messages(ServiceBusMessage(b"x" * (limits.MESSAGE_BYTES_MAX + 1)))
    for _ in range(4):
        sender.send_messages(ServiceBusMessage(b"x" * 250_000))
    with pytest.raises(ServiceBusQuotaExceededError, match=r"MaxSizeInMegabytes.*TrackingId:\S+_wire") as full:
        sender.send_messages(ServiceBusMessage(b"x" * 100_000))
    assert (too_large.value._retryable, full.value._retryable) == (False, False)
    sender.send_messages(ServiceBusMessage(b"small enough"))


@pytest.mark.contract("G3")
def test_the_sdk_tries_again_what_it_was_told_to_try_again(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.plant(queue, faults.SEND, InternalError("Try again."))
    with live.tap() as tap, ThreadPoolExecutor(1) as pool:
        sender = sdk.sender(queue, sdk.connect(retry_total=3, retry_backoff_factor=0.2))
        sending = pool.submit(sender.send_messages, ServiceBusMessage("x"))
        live.wait(lambda: any(isinstance(said.state, Rejected) for said in tap.of(Disposition, False)))
        live.plant(queue, faults.SEND, None)
        assert sending.result(WAIT_S) is None
    assert live.bodies(queue) == ["x"]


@pytest.mark.contract("G6")
def test_a_sender_of_javascript_has_many_messages_on_the_wire(held: HeldBroker, held_js: JsClient) -> None:
    queue = held.queue()
    with held.tap() as tap:
        held_js("open", queue=queue)
        held.hold()
        messages = [{"body": number} for number in range(50)]
        sending = held_js.javascript.start("sendMany", client=held_js.name, queue=queue, messages=messages)
        held.wait(lambda: data_transfers(tap, queue) == 50)
        assert [said for said in tap.of(Disposition, False) if said.first > 1] == []  # beyond the tokens
        assert not sending.done()
        held.let_go()
        assert sending.result(WAIT_S)["outcomes"] == [None] * 50


@pytest.mark.contract("G10")
def test_a_pending_send_holds_its_message_in_memory(held: HeldBroker, closing: Closing) -> None:
    """Twenty sends that nobody waits for: as long as the broker has not answered, all of it is the program's memory."""
    queue = held.queue()
    count = 20

    async def begin() -> tuple[list[asyncio.Task[None]], list[weakref.ref[ServiceBusMessage]], Any]:
        client = azure.servicebus.aio.ServiceBusClient.from_connection_string(held.connection_string, retry_total=0)
        sender = await client.get_queue_sender(queue).__aenter__()
        held.hold()
        tasks, alive = [], []
        for number in range(count):
            message = ServiceBusMessage(f"{number}" * 1000)
            alive.append(weakref.ref(message))
            tasks.append(asyncio.ensure_future(sender.send_messages(message)))
        return tasks, alive, (sender, client)

    async def finish(tasks: list[asyncio.Task[None]], handles: Any) -> None:
        await asyncio.gather(*tasks)
        for handle in handles:
            await handle.close()

    tasks, alive, handles = closing.run(begin())
    held.until(queue, lambda found: found.counters.active >= 1)
    gc.collect()
    assert sum(reference() is not None for reference in alive) == count
    held.let_go()
    closing.run(finish(tasks, handles))
    tasks.clear()
    gc.collect()
    assert sum(reference() is not None for reference in alive) == 0
    assert held.active_count(queue) == count


@pytest.mark.contract("G11")
def test_a_throttle_of_ten_lets_the_eleventh_wait_for_a_completion(held: HeldBroker, held_js: JsClient) -> None:
    queue = held.queue()
    with held.tap() as tap:
        held_js("open", queue=queue)
        held.hold()
        messages = [{"body": number} for number in range(25)]
        sending = held_js.javascript.start(
            "sendThrottled", client=held_js.name, queue=queue, messages=messages, inFlight=10
        )
        held.wait(lambda: data_transfers(tap, queue) == 10)
        held_js("ping")  # whatever Node had to do has been done
        assert data_transfers(tap, queue) == 10
        held.let_go()
        assert sending.result(WAIT_S)["mostInFlight"] == 10
        assert data_transfers(tap, queue) == 25


@pytest.mark.contract("G12")
def test_fire_and_forget_hides_the_error_of_a_send(live: LiveBroker, closing: Closing, queue: str) -> None:
    live.plant(queue, faults.SEND, ServerBusy("Busy."))

    async def fire_and_forget() -> list[BaseException]:
        complaints: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        client = azure.servicebus.aio.ServiceBusClient.from_connection_string(live.connection_string, retry_total=0)
        async with client, client.get_queue_sender(queue) as sender:
            task = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("lost")))
            await asyncio.wait([task])
            assert complaints == [], "the program that fired it goes on and knows of nothing"
            del task
            gc.collect()
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(ServiceBusMessage("refused"))
        asyncio.get_running_loop().set_exception_handler(None)
        return complaints

    complaints = closing.run(fire_and_forget())
    assert [type(error) for error in complaints] == [ServiceBusServerBusyError], "heard by the garbage collector alone"
    assert live.bodies(queue) == []


@pytest.mark.contract("G13")
def test_a_presettled_send_is_taken_without_a_word(live: LiveBroker, queue: str) -> None:
    with live.tap() as tap:
        raw = RawClient(live.server.port)
        link = raw.sender(queue)
        for number in range(3):
            link.send(b"%d" % number, OutgoingMessage(f"{number}").encode(), True)
        raw.flush()
        live.until(queue, lambda found: found.counters.active == 3)
        raw.close()
    assert tap.of(Disposition, False) == []
    assert live.bodies(queue) == ["0", "1", "2"]


@pytest.mark.contract("G13", "G14")
def test_a_presettled_send_that_is_refused_is_lost_without_a_word(live: LiveBroker, queue: str) -> None:
    live.plant(queue, faults.SEND, ServerBusy("Busy."))
    with live.tap() as tap:
        raw = RawClient(live.server.port)
        link = raw.sender(queue)
        link.send(b"0", OutgoingMessage("lost").encode(), True)
        link.send(b"1", OutgoingMessage("refused").encode(), False)
        raw.flush()
        live.wait(lambda: len(tap.of(Disposition, False)) == 1)
        raw.close()
    (said,) = tap.of(Disposition, False)
    assert said.first == 1, "of the other nothing is said: no error, no tracking id"
    assert live.bodies(queue) == []


# -- H: settling receives, locks --------------------------------------------------------------------------------------


@pytest.mark.contract("H1", "H2")
def test_receive_and_delete_takes_the_message_as_it_is_sent(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        message = take_one(receiver)
    assert [transfer.settled for transfer in tap.of(Transfer, False)][-1] is True
    assert (text_of(message), message.lock_token) == ("x", None)
    assert live.bodies(queue) == []
    with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
        receiver.complete_message(message)


@pytest.mark.contract("H1", "H3")
def test_peek_lock_keeps_the_message_until_it_is_settled(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    receiver = sdk.receiver(queue)
    message = take_one(receiver)
    assert live.bodies(queue) == ["x"]
    assert live.locked_count(queue) == 1
    receiver.complete_message(message)
    assert live.bodies(queue) == []


@pytest.mark.contract("H1", "H2")
def test_both_modes_with_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, "a", "b")
    message = js.receive_one(queue)
    deleted = js.receive_one(queue, receiveMode="receiveAndDelete")
    assert (message["sequenceNumber"], deleted["sequenceNumber"]) == (1, 2)
    assert not deleted.get("lockToken")
    assert live.bodies(queue) == ["a"]
    js("complete", lockToken=message["lockToken"])
    assert live.bodies(queue) == []


@pytest.mark.contract("H2")
def test_what_receive_and_delete_has_sent_is_lost_with_its_connection(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.send(queue, "a", "b", "c")
    receiver = sdk.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=5)
    assert text_of(take_one(receiver)) == "a"  # and with it come the others, ahead of being asked for
    live.until(queue, lambda found: found.counters.active == 0)
    live.cut()
    assert live.bodies(queue) == []
    assert nothing_comes(sdk.receiver(queue))


@pytest.mark.contract("H3", "H5")
def test_a_lock_hides_the_message_and_others_get_the_next(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "first", "second")
    holder, other = sdk.receiver(queue), sdk.receiver(queue)
    first = take_one(holder)
    second = take_one(other)
    assert (text_of(first), text_of(second)) == ("first", "second")
    assert nothing_comes(other)
    holder.complete_message(first)
    other.complete_message(second)


@pytest.mark.contract("H4")
def test_the_lock_is_as_long_as_the_queue_says_and_renewing_keeps_it(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=45)
    live.send(queue, "x")
    receiver, other = sdk.receiver(queue), sdk.receiver(queue)
    message = take_one(receiver)
    length = known(message.locked_until_utc) - known(message.enqueued_time_utc)
    assert timedelta(seconds=45) <= length < timedelta(seconds=45 + WAIT_S)
    for _ in range(3):  # 90 s in all, on a lock of 45 s
        live.advance(30)
        receiver.renew_message_lock(message)
    assert nothing_comes(other)
    receiver.complete_message(message)


@pytest.mark.contract("H6", "H9")
def test_a_lock_that_lapses_puts_the_message_back_at_the_front(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "first", "second", "third")
    receiver = sdk.receiver(queue)
    take(receiver, 2)
    live.advance(6)  # nobody does anything
    again = take(receiver, 3)
    assert [text_of(message) for message in again] == ["first", "second", "third"]
    assert [message.delivery_count for message in again] == [1, 1, 0]


@pytest.mark.contract("H6", "H7")
def test_javascript_sees_redeliveries_first_and_the_last_one_in_the_dead_letter_queue(
    live: LiveBroker, js: JsClient
) -> None:
    queue = live.queue(max_delivery_count=2)
    live.send(queue, "first", "second")
    js("abandon", lockToken=js.receive_one(queue)["lockToken"])
    again = js.receive_one(queue)
    assert (again["sequenceNumber"], again["deliveryCount"]) == (1, 1)
    js("abandon", lockToken=again["lockToken"])
    assert js.receive_one(queue)["sequenceNumber"] == 2
    dead = js.receive_one(queue, subQueue="deadLetter")
    assert (dead["deadLetterReason"], dead["deliveryCount"]) == ("MaxDeliveryCountExceeded", 2)


@pytest.mark.contract("H11")
def test_a_deferred_message_waits_until_it_is_asked_for_by_number(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    receiver = sdk.receiver(queue)
    message = take_one(receiver)
    receiver.defer_message(message)
    assert nothing_comes(receiver)
    (again,) = receiver.receive_deferred_messages([known(message.sequence_number)])
    receiver.complete_message(again)
    assert live.bodies(queue) == []


@pytest.mark.contract("H8", "H12")
def test_complete_renew_and_dead_letter_raise_what_the_broker_answers(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "a", "b", "c")
    receiver = sdk.receiver(queue)
    complete, dead_letter, renew = take(receiver, 3)
    live.advance(6)
    for settle, message in (
        (receiver.complete_message, complete),
        (receiver.dead_letter_message, dead_letter),
        (receiver.renew_message_lock, renew),
    ):
        with pytest.raises(MessageLockLostError, match="TrackingId:"):
            cast(Any, settle)(message)
    assert live.bodies(queue) == ["a", "b", "c"]


@pytest.mark.contract("H12", "H13")
def test_a_broken_connection_ends_the_link_and_its_lock_lives_to_its_end(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=30)
    live.send(queue, "settled elsewhere", "left to lapse")
    receiver = sdk.receiver(queue)
    first, second = take(receiver, 2)
    live.cut()
    with pytest.raises(ServiceBusConnectionError):
        receiver.complete_message(first)  # the link is not taken over by another connection
    other = sdk.receiver(queue)
    assert nothing_comes(other), "both are still locked"
    live.run(settle_by_token(live, queue, known(first.lock_token)))
    live.advance(31)
    again = take_one(other)
    assert (text_of(again), again.delivery_count, again.sequence_number) == ("left to lapse", 1, second.sequence_number)
    other.complete_message(again)
    assert live.bodies(queue) == []


async def settle_by_token(live: LiveBroker, queue: str, lock_token: Any) -> None:
    """`update-disposition` on `$management`, from a connection that has never seen the message."""
    async with await connect(live.connection_string) as connection:
        await connection.management(queue).settle([lock_token])


@pytest.mark.contract("H13")
def test_a_broken_connection_with_javascript(live: LiveBroker, js: JsClient) -> None:
    queue = live.queue(lock_s=30)
    live.send(queue, "x")
    js.receive_one(queue)
    live.cut()
    assert live.locked_count(queue) == 1
    live.advance(31)
    again = js.receive_one(queue)
    assert (again["sequenceNumber"], again["deliveryCount"]) == (1, 1)
    js("complete", lockToken=again["lockToken"])
    assert live.bodies(queue) == []


@pytest.mark.contract("H14")
@pytest.mark.parametrize("policy", ["keep the work and skip the redelivery", "discard the work and do it again"])
def test_when_complete_fails_the_message_comes_again_and_the_program_can_tell(
    live: LiveBroker, sdk: PythonSdk, policy: str
) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, *(OutgoingMessage(f"{number}", message_id=f"order {number}") for number in range(3)))
    receiver = sdk.receiver(queue)
    work: list[str] = []
    seen: list[tuple[str, int]] = []

    def process(is_refused: bool) -> None:
        message = take_one(receiver)
        identity = str(message.message_id)
        seen.append((identity, known(message.delivery_count)))
        if identity not in work:
            work.append(identity)
        if not is_refused:
            receiver.complete_message(message)
            return
        live.plant(queue, faults.SETTLE, ServerBusy("Busy."))
        with pytest.raises(ServiceBusServerBusyError):
            receiver.complete_message(message)
        live.plant(queue, faults.SETTLE, None)
        if policy.startswith("discard"):
            work.remove(identity)
        live.advance(6)

    process(is_refused=False)
    process(is_refused=True)
    process(is_refused=False)
    process(is_refused=False)
    assert seen == [("order 0", 0), ("order 1", 0), ("order 1", 1), ("order 2", 0)]
    assert work == ["order 0", "order 1", "order 2"], "once each, whichever way"
    assert live.bodies(queue) == []


@pytest.mark.contract("H17")
def test_a_lost_lock_is_raised_and_receiving_goes_on(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "a", "b")
    receiver = sdk.receiver(queue)
    message = take_one(receiver)
    live.advance(6)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)
    for text in ("a", "b"):  # the same receiver, nothing opened again by hand
        message = take_one(receiver)
        assert text_of(message) == text
        receiver.complete_message(message)


@pytest.mark.contract("H17")
def test_a_lost_lock_is_told_to_a_subscriber_of_javascript_and_its_pump_goes_on(live: LiveBroker, js: JsClient) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "a")
    js("subscribe", queue=queue, subscription=queue, autoComplete=False)
    message = next_event(js, queue)["message"]
    live.advance(6)
    with pytest.raises(JavaScriptError) as caught:
        js("complete", lockToken=message["lockToken"])
    assert caught.value.code == "MessageLockLost"
    again = next_event(js, queue)["message"]
    assert (again["sequenceNumber"], again["deliveryCount"]) == (1, 1)
    js("complete", lockToken=again["lockToken"])
    live.send(queue, "b")
    last = next_event(js, queue)["message"]
    assert last["sequenceNumber"] == 2
    js("complete", lockToken=last["lockToken"])
    js("unsubscribe", subscription=queue)


def next_event(js: JsClient, queue: str) -> dict[str, Any]:
    event = js.javascript.next_event()
    assert (event["event"], event.get("subscription")) == ("message", queue), event
    return event


# -- F: pings ---------------------------------------------------------------------------------------------------------


@pytest.mark.contract("F1", "F2")
def test_a_ping_is_accepted_and_never_delivered(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    for _ in range(3):
        sender.send_messages(ServiceBusMessage(b"", content_type=PING, time_to_live=timedelta(seconds=1)))
    assert live.bodies(queue) == []
    assert live.active_count(queue) == 0
    sender.send_messages([ServiceBusMessage(b"", content_type=PING), ServiceBusMessage("message")])  # in a batch too
    message = take_one(receiver)
    assert (text_of(message), message.sequence_number) == ("message", 1)
    receiver.complete_message(message)
    assert nothing_comes(receiver)


@pytest.mark.contract("F1", "F2")
def test_a_ping_of_javascript_is_accepted_and_never_delivered(live: LiveBroker, js: JsClient, queue: str) -> None:
    js("send", queue=queue, message={"body": b"", "contentType": PING, "timeToLive": 1000})
    assert live.active_count(queue) == 0
    assert js("receive", queue=queue, waitMs=500) == []


def test_a_message_with_a_body_is_no_ping_whatever_its_content_type(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    sdk.sender(queue).send_messages(ServiceBusMessage("x", content_type=PING))
    assert live.bodies(queue) == ["x"]
