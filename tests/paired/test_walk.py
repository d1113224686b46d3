"""The way of a message in an outage, traced: who reads the code to follow it passes few functions and few files.

Hops are the functions on the stack from the caller to the SDK, at every send of the SDK that the call makes, and those
beside it that decide what becomes of the message: make it, judge its failure, fail over, choose the way, the next step,
what the backlog gets and which queue. Each counts once. What only reads, counts, bounds, waits or tells is no hop; it
stands below, so that a function that comes in between is one until somebody says that it is not.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender

import spillway.paired
from tests.paired.namespaces import Namespaces

ROOM = str(Path(spillway.paired.__file__).parent)
SDK_SEND = ServiceBusSender.send_messages.__code__
HOPS_MAX = 15
FILES_MAX = 8
BESIDE = {
    "reads a message": "messages.* requests.SendRequest.content aliases._encoded_bytes aliases.is_surely_small "
    "aliases._size_at_most",
    "reads an error": "failures.is_* failures.condition_of",
    "reads a state": "failover.Machine.is_away sender.MessageSender._check_open namespace.FactoryNamespace.check_open",
    "holds what was decided": "*.__init__ failover.Machine._become requests.SendRequest.note",
    "writes one part of the backlog's message": "aliases._*",
    "bounds": "deadlines.* in_flight.* plan.SendPlan.*until_s plan.SendPlan.is_fair "
    "delivery.Delivery._plan requests.SendRequest.size_bytes",
    "waits": "delivery.Delivery._wait",
    "tells": "watch.PrimaryWatch.follow watch.PrimaryWatch.wake events.*",
    "has a sender or a watch at hand": "delivery.Delivery.pool delivery.Delivery._begin_watch pairing.Pairing.watch "
    "pools.* pool.SenderPool._acquire pool.SenderPool._make pool.SenderPool._release pool.PooledSender.* shutdown.*",
}


class Walk:
    """Functions of the room that a call enters until its last send of the SDK, in order, each once."""

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.entered: list[CodeType] = []
        self.stacks: list[list[CodeType]] = []  # from the caller to the SDK, at each of its sends
        self._sends: list[FrameType] = []  # of the SDK: told of again whenever they go on
        self._at_last_send = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or asyncio.current_task() is not self.task:  # pings and timers go their own way
            return
        if frame.f_code is SDK_SEND:
            if frame in self._sends:
                return
            self._sends.append(frame)
            self.stacks.append(stack_of(frame))
            self._at_last_send = len(self.entered)
        elif is_of_the_room(frame.f_code) and frame.f_code not in self.entered:
            self.entered.append(frame.f_code)

    @property
    def hops(self) -> set[str]:
        on_the_way = {name for stack in self.stacks for name in told(stack)}
        return on_the_way | {name for name in told(self.entered[: self._at_last_send]) if not is_beside(name)}


@contextmanager
def walked() -> Iterator[Walk]:
    walk = Walk()
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def stack_of(frame: FrameType) -> list[CodeType]:
    stack: list[CodeType] = []
    at: FrameType | None = frame
    while at is not None:
        if is_of_the_room(at.f_code):
            stack.insert(0, at.f_code)
        at = at.f_back
    return stack


def is_of_the_room(code: CodeType) -> bool:
    return code.co_filename.startswith(ROOM)


def is_beside(name: str) -> bool:
    """What is inside a function (a lambda, a comprehension) is part of it."""
    return "<locals>" in name or any(fnmatch(name, each) for names in BESIDE.values() for each in names.split())


def told(codes: list[CodeType]) -> list[str]:
    return [f"{Path(code.co_filename).stem}.{code.co_qualname}" for code in codes]


def check_few(walk: Walk) -> None:
    files = {hop.partition(".")[0] for hop in walk.hops}
    assert len(walk.hops) <= HOPS_MAX, sorted(walk.hops)
    assert len(files) <= FILES_MAX, sorted(files)


async def test_a_message_that_fails_over_its_entity_takes_few_hops_through_few_files(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired() as pair, pair.primary.create_message_sender(path) as sender:
        faults = namespaces.refuse(path)
        with walked() as walk:
            await sender.send_messages(ServiceBusMessage("fails over"))
        faults.clear()
        assert (pair.primary.counters["failed-over"], pair.primary.counters["diverted"]) == (1, 1)
    assert [told(stack)[0] for stack in walk.stacks] == ["sender.MessageSender.send_messages"] * 2
    assert {"failures.FailoverPolicy.judge", "failover.Machine.on_failure", "plan.SendPlan.after_primary"} <= walk.hops
    assert {"failover.Machine.route", "aliases.for_backlog", "backlog.Rotation.choose"} <= walk.hops
    check_few(walk)


async def test_a_message_to_an_entity_that_is_away_takes_few_hops_through_few_files(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired() as pair, pair.primary.create_message_sender(path) as sender:
        faults = namespaces.refuse(path)
        await sender.send_messages(ServiceBusMessage("fails over"))
        with walked() as walk:
            await sender.send_messages(ServiceBusMessage("diverted"))
        faults.clear()
        assert pair.primary.counters["diverted"] == 2
    assert [told(stack)[0] for stack in walk.stacks] == ["sender.MessageSender.send_messages"]
    assert {"failover.Machine.route", "aliases.for_backlog", "backlog.Rotation.choose"} <= walk.hops
    check_few(walk)
