"""A queue that is deleted under its senders: nobody is left waiting for an answer that cannot come."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from spillway.amqp.performatives import Transfer
from spillway.broker.commands import DeleteEntity
from tests.server.doubles import HeldJournal
from tests.tools.js import JavaScript, JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.sdk import ASYNCIO, SYNC, Closing, JsClient, PythonSdk
from tests.wire.tap import Tap

SOON_S = 10  # the SDK itself would wait for 15


@pytest.fixture
def journal() -> HeldJournal:
    return HeldJournal()


@pytest.fixture
def held(tmp_path: Path, journal: HeldJournal) -> Iterator[LiveBroker]:
    """A broker whose disk is as slow as the test likes."""
    broker = LiveBroker(tmp_path, journal)
    yield broker
    broker.close()


def hold(broker: LiveBroker, journal: HeldJournal, is_held: bool) -> None:
    async def change() -> None:
        journal.is_held = is_held
        if not is_held:
            journal.let_go()

    broker.run(change())


class Deleting:
    """A queue with a sender at work. It is gone, and nobody has heard of it yet, while sends are on their way."""

    def __init__(self, broker: LiveBroker, journal: HeldJournal, tap: Tap, queue: str) -> None:
        self.broker = broker
        self.journal = journal
        self.tap = tap
        self.sent = len(tap.of(Transfer, True))
        hold(broker, journal, True)
        self.asked = asyncio.run_coroutine_threadsafe(
            broker.server.pump.ask(lambda number: DeleteEntity(number, queue)), broker.server.loop
        )
        broker.wait(lambda: broker.server.core.directory.find(queue) is None)

    def finish(self, sends: int) -> None:
        self.broker.wait(lambda: len(self.tap.of(Transfer, True)) == self.sent + sends)
        hold(self.broker, self.journal, False)
        self.asked.result(SOON_S)


def test_javascripts_send_that_was_on_its_way_is_refused_at_once(
    held: LiveBroker, journal: HeldJournal, javascript: JavaScript
) -> None:
    queue = held.queue()
    with held.tap() as tap:
        js = JsClient(javascript, held.connection_string)
        js("send", queue=queue, message={"body": "before"})
        deleting = Deleting(held, journal, tap, queue)
        sending = [javascript.start("send", client=js.name, queue=queue, message={"body": "late"}) for _ in range(3)]
        deleting.finish(len(sending))
    for one in sending:
        with pytest.raises(JavaScriptError) as caught:
            one.result(SOON_S)
        assert (caught.value.code, caught.value.retryable) == ("MessagingEntityNotFound", False)
    js.close_later()


@pytest.mark.parametrize("kind", [SYNC, ASYNCIO])
def test_pythons_send_that_was_on_its_way_is_refused_at_once(
    held: LiveBroker, journal: HeldJournal, closing: Closing, kind: str
) -> None:
    queue = held.queue()
    sdk = PythonSdk(kind, held.connection_string, closing)
    with held.tap() as tap, ThreadPoolExecutor(1) as pool:
        sender = sdk.sender(queue)
        sender.send_messages(ServiceBusMessage("before"))
        deleting = Deleting(held, journal, tap, queue)
        sending = pool.submit(sender.send_messages, ServiceBusMessage("late"), timeout=60)
        deleting.finish(1)
        with pytest.raises(MessagingEntityNotFoundError):
            sending.result(SOON_S)
    sdk.close()
