"""What one peer brings into a turn is bounded by its bytes, and by the work that small things ask for."""

from collections.abc import Callable

import pytest

from spillway.broker.commands import (
    ITEM_BYTES,
    CancelScheduled,
    Command,
    ReceiveDeferred,
    RenewLocks,
    Schedule,
    Send,
    UpdateDisposition,
)
from spillway.dialect.outbox import Outbox
from spillway.model import limits
from spillway.model.message import Message
from spillway.model.settlement import COMPLETE, Settlement

ITEMS = 1_000
MESSAGES = [Message(b"m")] * ITEMS
TOKENS = [b"t" * 16] * ITEMS
NUMBERS = list(range(ITEMS))

COMMANDS: dict[str, Callable[[int], Command]] = {
    "a batch": lambda number: Send(1, number, MESSAGES, False, ITEMS),
    "schedule": lambda number: Schedule(number, "q", MESSAGES, ITEMS),
    "cancel": lambda number: CancelScheduled(number, "q", NUMBERS),
    "receive by number": lambda number: ReceiveDeferred(number, "q", NUMBERS, False),
    "renew": lambda number: RenewLocks(number, "q", TOKENS),
    "settle": lambda number: UpdateDisposition(number, "q", TOKENS, Settlement(COMPLETE)),
}


@pytest.mark.parametrize("make", COMMANDS.values(), ids=COMMANDS)
def test_a_turn_takes_no_more_small_things_of_a_peer_than_they_weigh(make: Callable[[int], Command]) -> None:
    outbox = Outbox()
    outbox.commands = [make(number) for number in range(100)]
    taken = outbox.pop_commands(limits.COMMANDS_PER_TURN_MAX, limits.COMMAND_BYTES_PER_TURN_MAX)
    assert 1 <= len(taken) <= limits.COMMAND_BYTES_PER_TURN_MAX // (ITEMS * ITEM_BYTES)
    assert len(taken) + len(outbox.commands) == 100


@pytest.mark.parametrize("make", COMMANDS.values(), ids=COMMANDS)
def test_one_command_is_taken_whatever_it_weighs(make: Callable[[int], Command]) -> None:
    outbox = Outbox()
    outbox.commands = [make(1), make(2)]
    assert len(outbox.pop_commands(limits.COMMANDS_PER_TURN_MAX, 1)) == 1
    assert len(outbox.commands) == 1
