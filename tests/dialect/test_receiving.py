"""A receiver by itself: its credit, what is held for it, and what it leaves behind, without a peer around it."""

from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.performatives import Flow
from spillway.broker.commands import ASKS_AGAIN, ASKS_MORE, NOT_ASKED, Credit, DetachLink, Undelivered
from spillway.broker.effects import Deliver
from spillway.dialect.addresses import parse_address
from spillway.dialect.admission import admit
from spillway.dialect.outbox import Outbox
from spillway.dialect.receiving import ClientReceiver, ReceiverGroup
from spillway.dialect.rights import LISTEN
from spillway.model.budget import lone_account
from spillway.model.message import StoredMessage
from tests.amqp.script import WINDOW, Script
from tests.dialect.visit import NOW_MS, Tracking, body_message

NUMBER = 7


class Receiving:
    """A receiver on an attached link, and the outbox that it writes to."""

    def __init__(self, *, credit: int = 0, deletes: bool = False, window: int = 1_000) -> None:
        self.script = Script(options=ConnectionOptions("us"))
        self.script.open()
        self.script.begin(0, window)
        self.link = self.script.attached(0, we_send=True, credit=credit)
        self.outbox = Outbox()
        self.account = lone_account()
        self.group = ReceiverGroup(self.outbox, self.account)
        address = parse_address("q")
        self.receiver = ClientReceiver(NUMBER, self.link, address, LISTEN, Tracking(), self.group, deletes)
        self.deletes = deletes
        self.window = window

    def grant(self, credit: int, drain: bool = False) -> None:
        """As a client does that has seen all that was sent."""
        seen = self.link.session.outgoing.next_outgoing_id
        self.script.frame(0, Flow(seen, self.window, 0, WINDOW, 0, self.link.delivery_count, credit, drain=drain))
        self.receiver.on_credit(self.link.credit, drain)

    def deliver(self, number: int = 1) -> bool:
        stored = StoredMessage(admit(body_message(b"%d" % number), Tracking()), number, NOW_MS)
        return self.receiver.deliver(Deliver(NUMBER, "q", stored, b"" if self.deletes else bytes(16), 0))

    def told(self) -> list[tuple[int, bool, int]]:
        """Limit, whether it drains, and what the client asks: since the last time."""
        commands = self.outbox.pop_commands(1_000, 1 << 30)
        return [(command.limit, command.drains, command.asks) for command in commands if isinstance(command, Credit)]


def test_credit_is_told_as_far_as_it_goes() -> None:
    receiving = Receiving()
    receiving.grant(3)
    assert receiving.told() == [(3, False, ASKS_MORE)]
    assert receiving.deliver()
    assert receiving.told() == [], "the core knows all of it"
    receiving.grant(2)
    assert receiving.told() == [(3, False, ASKS_AGAIN)]


def test_what_the_client_asks_while_it_does_not_read_is_kept_for_when_it_does() -> None:
    receiving = Receiving()
    receiving.grant(3)
    receiving.told()
    receiving.group.is_writable = False
    receiving.receiver.on_writable()
    assert receiving.told() == [(0, False, NOT_ASKED)]
    receiving.grant(5)
    assert receiving.told() == []
    receiving.group.is_writable = True
    receiving.receiver.on_writable()
    assert receiving.told() == [(5, False, ASKS_MORE)]


def test_a_window_that_opens_is_told_of_the_receivers_that_it_stopped_and_of_no_others() -> None:
    receiving = Receiving(window=2)
    receiving.grant(5)
    assert receiving.told() == [(2, False, ASKS_MORE)]
    receiving.group.advertise_window_bound()
    assert receiving.told() == []
    receiving.link.session.outgoing.window = 100  # as if the client's flow had said so
    receiving.group.advertise_window_bound()
    assert receiving.told() == [(5, False, NOT_ASKED)]
    assert not receiving.group.window_bound


def test_a_locked_message_for_which_there_is_no_credit_any_more_goes_back() -> None:
    receiving = Receiving(credit=1)
    receiving.grant(0)
    assert not receiving.deliver()
    assert receiving.receiver.held == []


def test_a_deleted_message_for_which_there_is_no_credit_any_more_is_held_and_paid_for_until_there_is() -> None:
    receiving = Receiving(credit=1, deletes=True)
    receiving.grant(0)
    assert receiving.deliver(1)
    assert receiving.deliver(2)
    assert receiving.account.held_bytes > 0
    receiving.grant(1)
    assert [delivery.stored.sequence_number for delivery in receiving.receiver.held] == [2]
    receiving.grant(1)
    assert (receiving.receiver.held, receiving.account.held_bytes) == ([], 0)
    assert receiving.link.delivery_count == 2


def test_an_answer_to_an_older_drain_is_not_the_answer_to_the_newest() -> None:
    receiving = Receiving()
    receiving.grant(1, drain=True)
    receiving.grant(1, drain=True)
    assert [drains for _, drains, _ in receiving.told()] == [True, True]
    receiving.receiver.drained(1)
    assert receiving.link.credit == 1
    receiving.receiver.drained(2)
    assert receiving.link.credit == 0


def test_a_receiver_that_leaves_gives_back_what_was_not_begun_and_is_nobodys_concern_any_more() -> None:
    receiving = Receiving(window=1)
    receiving.grant(5)
    receiving.deliver(1)
    receiving.deliver(2)
    receiving.told()
    assert receiving.group.window_bound
    receiving.receiver.leave()
    assert not receiving.group.window_bound
    back, detach = receiving.outbox.pop_commands(10, 1 << 30)
    assert isinstance(back, Undelivered)
    assert isinstance(detach, DetachLink)
    assert (detach.link_id, receiving.outbox.drain_unregistered()) == (NUMBER, [NUMBER])


def test_a_receiver_that_leaves_pays_no_longer_for_what_it_held() -> None:
    receiving = Receiving(deletes=True)
    receiving.deliver()
    assert receiving.account.held_bytes > 0
    receiving.receiver.leave()
    assert receiving.account.held_bytes == 0
