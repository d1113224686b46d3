"""How long the syphon waits in a receive: the SDK's receive is scripted, everything else is real."""

from datetime import timedelta
from typing import Any, cast

from azure.servicebus.aio import ServiceBusReceiver

from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from spillway.paired.pairing import Pairing
from spillway.paired.syphon import SHORT_POLL_S, QueueSyphon

CONNECTION = "Endpoint=sb://{}.example;SharedAccessKeyName=k;SharedAccessKey=a2V5"
LONG_S = 900.0


class ScriptedReceiver:
    """Returns so many messages, one number a call; remembers how long each call was ready to wait."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.waits_s: list[float] = []

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[object]:
        self.waits_s.append(max_wait_time)
        return [object()] * self.counts.pop(0)


async def waits_s(*counts: int) -> list[float]:
    primary = MessagingFactory.from_connection_string(CONNECTION.format("one"))
    secondary = MessagingFactory.from_connection_string(CONNECTION.format("two"))
    manager = NamespaceManager.from_connection_string(CONNECTION.format("two"))
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary, syphon_long_poll=timedelta(seconds=LONG_S))
    syphon = QueueSyphon(Pairing(primary, options, ["one/x-servicebus-transfer/0"]), "one/x-servicebus-transfer/0")
    receiver: Any = ScriptedReceiver(*counts)
    for _ in counts:
        await syphon._receive(cast(ServiceBusReceiver, receiver))
    for closable in (primary, secondary, manager):
        await closable.close()
    found: list[float] = receiver.waits_s
    return found


async def test_an_idle_syphon_makes_one_long_poll_after_the_other() -> None:
    assert await waits_s(0, 0, 0) == [LONG_S, LONG_S, LONG_S]


async def test_after_messages_came_a_short_poll_takes_out_what_the_sdk_has_left() -> None:
    """The SDK may have been handed more than it was asked for. It returns the rest with the next receive, but only when
    the wait of that is over: with the long one, past the end of their locks."""
    assert await waits_s(200, 50, 0, 0) == [LONG_S, SHORT_POLL_S, SHORT_POLL_S, LONG_S]
