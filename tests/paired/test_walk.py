"""The way of a message in an outage, traced: who reads the code to follow it passes few functions and few files.

Hops are the functions on the stack from the caller to the SDK, and those beside it that decide what becomes of the
message: which they are, what is made of them, where they go. What only counts, bounds or reads something is none.
"""

import sys
from pathlib import Path
from types import CodeType, FrameType

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender

import spillway.paired
from tests.paired.namespaces import Namespaces

ROOM = str(Path(spillway.paired.__file__).parent)
SDK_SEND = ServiceBusSender.send_messages.__code__
DECIDING = {
    "sender.unpack",
    "sender.prepare",
    "failover.Machine.route",
    "aliases.for_backlog",
    "backlog.Rotation.choose",
}
HOPS_MAX = 15
FILES_MAX = 8


class Walk:
    """Functions of the room that were entered until the SDK was, in order, each once."""

    def __init__(self) -> None:
        self.entered: list[CodeType] = []
        self.stack: list[CodeType] = []  # on the way when the SDK was entered

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self.stack:
            return
        if frame.f_code is SDK_SEND:
            at: FrameType | None = frame
            while at is not None:
                if is_of_the_room(at.f_code):
                    self.stack.insert(0, at.f_code)
                at = at.f_back
        elif is_of_the_room(frame.f_code) and frame.f_code not in self.entered:
            self.entered.append(frame.f_code)


def is_of_the_room(code: CodeType) -> bool:
    return code.co_filename.startswith(ROOM)


def told(codes: list[CodeType]) -> list[str]:
    return [f"{Path(code.co_filename).stem}.{code.co_qualname}" for code in codes]


async def test_a_message_in_an_outage_takes_few_hops_through_few_files(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired() as pair, pair.primary.create_message_sender(path) as sender:
        faults = namespaces.refuse(path)
        await sender.send_messages(ServiceBusMessage("fails over"))
        walk = Walk()
        sys.setprofile(walk)
        try:
            await sender.send_messages(ServiceBusMessage("diverted"))
        finally:
            sys.setprofile(None)
        faults.clear()
        assert pair.primary.counters["diverted"] == 2
    stack, entered = told(walk.stack), told(walk.entered)
    assert stack[0] == "sender.MessageSender.send_messages"
    assert set(entered) >= DECIDING
    hops = [*stack, *DECIDING]
    assert len(hops) <= HOPS_MAX
    assert len({hop.partition(".")[0] for hop in hops}) <= FILES_MAX
