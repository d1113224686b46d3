"""Credit, drains and deliveries that overtake one another.

What a turn decided is told when it is durable, and the client has asked again by then. Where receiving deletes, a
message that is decided for a link has to reach it (docs/wire.md, "Every drain is answered").
"""

import random

import pytest

from spillway.amqp.events import TransferReceived
from spillway.amqp.link import Link
from spillway.broker.effects import Effect
from spillway.dialect.receiving import ClientReceiver
from tests.dialect.visit import Whole, body_message


class Slow(Whole):
    """Bytes, turns and what comes of them each move when they are told to."""

    def __init__(self) -> None:
        self.decided: list[list[Effect]] = []
        super().__init__()

    def read(self) -> None:
        """The client's bytes reach the broker."""
        self.peer.receive(b"".join(self.connection.drain_output()), self.now_ms)
        self.commands += self.peer.pop_commands(10_000, 1 << 30)

    def turn(self) -> None:
        """The core decides; it is not durable yet."""
        commands, self.commands = self.commands, []
        self.decided.append(self.core.apply(*commands))

    def told(self) -> None:
        """The oldest turn is durable."""
        if self.decided:
            self.speak(self.decided.pop(0))

    def write(self) -> None:
        """The broker's bytes reach the client."""
        self.connection.receive(b"".join(self.peer.drain_output()), self.now_ms)
        self.events += self.connection.drain_events()

    def settle_down(self) -> None:
        while self.decided:
            self.told()
        self.run()
        self.write()

    def bodies(self) -> int:
        return sum(isinstance(event, TransferReceived) for event in self.events)


def visited(count: int, *, deletes: bool) -> tuple[Slow, Link]:
    visit = Slow()
    visit.authorised()
    sender = visit.open_sender()
    for number in range(count):
        sender.send(b"%d" % number, body_message(b"%d" % number), True)
    visit.run()
    receiver = visit.open_receiver(deletes=deletes)
    visit.events.clear()
    return visit, receiver


@pytest.mark.parametrize("deletes", [True, False])
def test_a_drain_of_the_last_call_that_is_answered_late_does_not_take_the_credit_of_the_next(deletes: bool) -> None:
    visit, receiver = visited(2, deletes=deletes)
    receiver.grant(1)
    visit.read()
    visit.turn()  # decides the first message
    receiver.grant(1, drain=True)
    visit.read()
    visit.turn()  # the drain: its credit is used up
    visit.told()
    visit.write()
    assert (visit.bodies(), receiver.credit_left) == (1, 0), "the call has what it asked for, and ends"
    receiver.grant(1)
    receiver.grant(1, drain=True)
    visit.read()
    visit.told()  # the answer to the drain before
    visit.turn()
    visit.told()
    visit.settle_down()
    assert visit.bodies() == 2


@pytest.mark.parametrize("deletes", [True, False])
def test_the_same_credit_drained_twice_is_answered_for_what_the_second_drain_found(deletes: bool) -> None:
    visit, receiver = visited(0, deletes=deletes)
    sender = visit.open_sender()
    receiver.grant(1, drain=True)
    visit.read()
    visit.turn()  # there is nothing
    sender.send(b"t", body_message(), True)
    receiver.grant(1, drain=True)
    visit.read()
    visit.told()
    visit.turn()
    visit.told()
    visit.write()
    assert visit.bodies() == 1


def walk(seed: int, *, deletes: bool) -> None:
    """A client that receives as ours does, one call behind the other, while everything moves in any order."""
    chance = random.Random(seed)
    count = chance.randrange(1, 12)
    visit, receiver = visited(count, deletes=deletes)
    sender = visit.open_sender()
    is_draining = False
    is_waiting = False
    for _ in range(1_000):
        step = chance.randrange(9)
        if step == 0 and not is_waiting:
            receiver.grant(chance.randrange(1, 4))
            is_waiting, is_draining = True, False
        elif step == 1 and is_waiting and not is_draining and receiver.credit_left > 0:
            receiver.grant(receiver.credit_left, drain=True)
            is_draining = True
        elif step == 2:
            visit.read()
        elif step == 3:
            visit.turn()
        elif step == 4:
            visit.told()
        elif step in (5, 6):
            visit.write()
            is_waiting = is_waiting and receiver.credit_left > 0
        elif step == 7 and chance.random() < 0.2:
            sender.send(b"%d" % count, body_message(b"%d" % count), True)
            count += 1
        assert receiver.credit_left >= 0, f"seed {seed}: more came than was asked for"
    visit.settle_down()
    for _ in range(3):  # what is left: a call that takes everything
        receiver.grant(count + 1, drain=True)
        visit.settle_down()
    assert receiver.credit_left == 0, f"seed {seed}: a drain was not answered"
    assert visit.bodies() == count, f"seed {seed}"
    kept = [user.held for user in visit.peer.links.values() if isinstance(user, ClientReceiver)]
    assert kept == [[]], f"seed {seed}: kept for a client that does not want it"


@pytest.mark.parametrize("deletes", [True, False])
def test_whatever_overtakes_what_every_message_arrives(deletes: bool) -> None:
    for seed in range(100):
        walk(seed, deletes=deletes)


def test_nothing_is_kept_for_a_link_that_waits_for_its_drains() -> None:
    """`held` loses its messages when the link ends: a client that waits for each drain never has any there."""
    for seed in range(100):
        visit, receiver = visited(3, deletes=True)
        chance = random.Random(seed)
        got_nothing = False
        while not got_nothing:
            before = visit.bodies()
            receiver.grant(1)
            if chance.random() < 0.5:
                visit.read()
                if chance.random() < 0.5:
                    visit.turn()
            receiver.grant(1, drain=True)
            while receiver.credit_left:
                [visit.read, visit.turn, visit.told, visit.write][chance.randrange(4)]()
            got_nothing = visit.bodies() == before
        assert visit.bodies() == 3, f"seed {seed}: the client would end the link now"
