"""A sender by itself: what it admits, when it gets credit, and how it ends, without a peer around it."""

from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.events import TransferReceived
from spillway.amqp.performatives import Disposition, Flow, Rejected
from spillway.broker.commands import DetachLink, Send
from spillway.broker.effects import SendSettled
from spillway.dialect.addresses import parse_address
from spillway.dialect.outbox import Outbox
from spillway.dialect.rights import SEND
from spillway.dialect.sending import ClientSender
from spillway.model import limits
from spillway.model.errors import EntityNotFound
from tests.amqp.script import Script
from tests.dialect.visit import NOW_MS, Tracking, body_message

NUMBER = 7


class Sending:
    """A sender on an attached link, and the outbox that it writes to."""

    def __init__(self) -> None:
        self.script = Script(options=ConnectionOptions("us"))
        self.script.open()
        self.script.begin(0)
        self.link = self.script.attached(0)
        self.outbox = Outbox()
        self.sender = ClientSender(NUMBER, self.link, parse_address("q"), SEND, Tracking(), self.outbox)
        self.sender.on_accepted()
        self.script.hear()

    def send(self, delivery_id: int, payload: bytes = b"") -> None:
        self.script.transfer(0, delivery_id, payload or body_message())
        event = self.script.events.pop()
        assert isinstance(event, TransferReceived)
        self.sender.on_transfer(event, NOW_MS)

    def rejected(self) -> list[int]:
        """The deliveries of which the client has heard that they are refused, since the last time."""
        said = [body for body in self.script.heard(Disposition) if isinstance(body, Disposition)]
        return [body.first for body in said if isinstance(body.state, Rejected)]


def test_a_message_becomes_a_command_and_what_is_none_is_rejected() -> None:
    sending = Sending()
    sending.send(0)
    sending.send(1, b"no message")
    (command,) = sending.outbox.pop_commands(10, 1 << 30)
    assert isinstance(command, Send)
    assert (command.link_id, command.delivery_id, len(command.messages)) == (NUMBER, 0, 1)
    assert sending.rejected() == [1]


def test_new_credit_is_given_when_half_of_it_is_used_up_but_not_to_a_sender_that_is_held_back() -> None:
    sending = Sending()
    half = limits.LINK_CREDIT // 2
    for delivery_id in range(half - 1):
        sending.send(delivery_id)
    assert sending.link.credit_left == half + 1
    sending.send(half)
    assert sending.link.credit_left == limits.LINK_CREDIT
    sending.sender.pace(True)
    for delivery_id in range(half, 2 * half + 10):
        sending.send(delivery_id)
    assert sending.link.credit_left == half - 10
    sending.script.hear()
    sending.sender.pace(False)
    assert sending.link.credit_left == limits.LINK_CREDIT
    assert len(sending.script.heard(Flow)) == 1


def test_the_answer_of_the_core_is_said_of_the_delivery() -> None:
    sending = Sending()
    sending.send(0)
    sending.send(1)
    sending.sender.answer(SendSettled(NUMBER, 0, None), NOW_MS)
    sending.sender.answer(SendSettled(NUMBER, 1, EntityNotFound("gone")), NOW_MS)
    assert sending.rejected() == [1]


def test_a_sender_that_ends_refuses_what_comes_and_asks_the_core_to_answer_what_came_before() -> None:
    sending = Sending()
    sending.send(0)
    sending.sender.begin_to_end(EntityNotFound("gone"))
    sending.send(1)
    send, detach = sending.outbox.pop_commands(10, 1 << 30)
    assert isinstance(send, Send)
    assert isinstance(detach, DetachLink)
    assert detach.error is sending.sender.ending
    assert sending.rejected() == [1]
    assert sending.link.is_open
