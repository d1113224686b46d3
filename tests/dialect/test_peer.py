"""The peer between a client's connection and a scripted broker: links, sends, credit, settlements, ends."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    ConnectionClosed,
    DispositionReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    TransferReceived,
)
from spillway.amqp.link import Link
from spillway.amqp.message import encode_data, encode_message
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Coordinator,
    Modified,
    Received,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from spillway.amqp.types import Described, Symbol, ULong
from spillway.broker.commands import (
    ASKS_AGAIN,
    ASKS_MORE,
    ASKS_NOTHING,
    ITEM_BYTES,
    NOT_ASKED,
    AttachReceiver,
    AttachSender,
    Credit,
    DetachLink,
    Send,
    Settle,
    Undelivered,
)
from spillway.broker.effects import (
    Attached,
    Deliver,
    Detached,
    Drained,
    Effect,
    Paced,
    Refused,
    SendSettled,
    SettlementAnswered,
)
from spillway.dialect.admission import admit
from spillway.dialect.annotations import BATCH_FORMAT
from spillway.dialect.peer import Peer
from spillway.dialect.receiving import DELIVERIES_AHEAD_MAX
from spillway.model import limits
from spillway.model.errors import (
    EntityNotFound,
    InternalError,
    MessageLockLost,
    QuotaExceeded,
    ServerBusy,
)
from spillway.model.message import StoredMessage
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from tests.dialect.visit import KEY, NOW_MS, ROOT, Names, Tracking, Visit, body_message, sas_token

ROOT_PLAIN = f"\x00{ROOT}\x00{KEY}".encode()
LOCKED_UNTIL_MS = NOW_MS + 60_000


def welcome() -> Visit:
    """A visitor with all rights."""
    return Visit("PLAIN", ROOT_PLAIN)


def token(number: int) -> bytes:
    return number.to_bytes(16, "big")


def delivery(to: int, number: int = 1, deletes: bool = False) -> Deliver:
    stored = StoredMessage(admit(body_message(b"%d" % number), Tracking()), number, NOW_MS)
    return Deliver(to, "q", stored, b"" if deletes else token(number), 0 if deletes else LOCKED_UNTIL_MS)


class Sending(Visit):
    def __init__(self) -> None:
        super().__init__("PLAIN", ROOT_PLAIN)
        self.link = self.sender()
        self.number = self.attached(self.link)
        self.command(AttachSender)

    def outcome(self) -> DispositionReceived:
        event = self.take(DispositionReceived)
        assert event.settled
        return event

    def error(self) -> AmqpError:
        state = self.outcome().state
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert re.search(r" TrackingId:\S+_\S+, SystemTracker:q, Timestamp:", state.error.description or "")
        return state.error


class Receiving(Visit):
    def __init__(self, credit: int = 0, deletes: bool = False) -> None:
        super().__init__("PLAIN", ROOT_PLAIN)
        self.link = self.receiver(deletes=deletes)
        self.number = self.attached(self.link)
        self.command(AttachReceiver)
        self.deletes = deletes
        if credit:
            self.link.grant(credit)
            self.pump()

    def deliver(self, number: int = 1) -> bool:
        return self.dispatch(delivery(self.number, number, self.deletes))

    def received(self) -> list[TransferReceived]:
        self.pump()
        found = [event for event in self.events if isinstance(event, TransferReceived)]
        self.events = [event for event in self.events if not isinstance(event, TransferReceived)]
        return found


# -- attaching -----------------------------------------------------------------------------------------------


def test_a_sender_is_asked_of_the_core_and_answered_when_the_core_has() -> None:
    visit = welcome()
    link = visit.sender("amqps://localhost:5672/Deep/Q")
    command = visit.command(AttachSender)
    assert command.path == "Deep/Q"
    assert visit.peer.drain_registered() == [command.link_id]
    assert not visit.has(LinkAttached)
    visit.dispatch(Attached(command.link_id))
    assert link.is_open
    attach = link.attach
    assert attach is not None
    assert attach.source is not None
    assert attach.source.address == "me"
    assert attach.target == Target("amqps://localhost:5672/Deep/Q")
    assert attach.max_message_size == 262_144
    assert type(attach.max_message_size) in (int, ULong)
    assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (0, 1)
    assert link.credit == limits.LINK_CREDIT


def test_a_receivers_source_and_target_come_back_as_they_were_sent() -> None:
    visit = welcome()
    link = visit.receiver("amqps://localhost:5672/q", target="receiver-link-1")
    visit.dispatch(Attached(visit.command(AttachReceiver).link_id))
    attach = link.attach
    assert attach is not None
    assert attach.source is not None
    assert attach.source.address == "amqps://localhost:5672/q"
    assert attach.target is not None
    assert attach.initial_delivery_count == 0
    assert attach.max_message_size == 262_144
    assert attach.properties == {"com.microsoft:entity-type": 0}


@pytest.mark.contract("H1")
@pytest.mark.parametrize("deletes", [True, False])
def test_the_senders_settle_mode_alone_tells_the_two_modes_apart(deletes: bool) -> None:
    visit = welcome()
    visit.receiver(deletes=deletes)
    assert visit.command(AttachReceiver).deletes is deletes


def test_a_link_that_the_core_refuses_is_attached_to_nowhere_and_detached_with_the_error() -> None:
    visit = welcome()
    link = visit.receiver("q")
    number = visit.command(AttachReceiver).link_id  # and while it was on its way the entity was deleted
    assert visit.dispatch(Refused(number, EntityNotFound("The messaging entity 'sb://ns/missing' could not be found.")))
    condition, text = visit.refusal(link)
    assert condition == "amqp:not-found"
    assert re.search(r"could not be found\. TrackingId:", text)
    assert link.attach is not None
    assert link.attach.source is None
    assert visit.peer.drain_unregistered() == [number]


@pytest.mark.parametrize("host", ["bus.example", "", "x" * 256, "é", "a\nb"])
def test_a_missing_entity_is_named_with_the_host_that_the_client_has_connected_to(host: str) -> None:
    """Microsoft's tests compare it with theirs. Who gives none, or no name at all, hears the namespace's."""
    visit = Visit("PLAIN", ROOT_PLAIN, hostname=host)
    for link in (visit.sender("missing"), visit.receiver("missing"), visit.receiver("missing/$management")):
        condition, text = visit.refusal(link)
        assert condition == "amqp:not-found"
        called = host if host == "bus.example" else "ns"
        assert text.startswith(f"The messaging entity 'sb://{called}/missing' could not be found.")


@pytest.mark.parametrize("path", ["q/$Transfer/$DeadLetterQueue", "Q/$transfer/$deadletterqueue"])
def test_transfer_dead_letters_are_an_empty_queue(path: str) -> None:
    visit = welcome()
    link = visit.receiver(path)
    assert link.is_open
    link.grant(10, drain=True)
    visit.pump()
    assert link.credit_left == 0
    condition, text = visit.refusal(visit.sender(path))
    assert condition == "amqp:not-allowed" and "never sent to" in text
    assert visit.refusal(visit.receiver("missing/$Transfer/$DeadLetterQueue"))[0] == "amqp:not-found"
    assert visit.put_token(sas_token(f"sb://h/{path}"), f"sb://h/{path}").properties["status-code"] == 202
    link.detach()
    visit.pump()
    assert not visit.has_command(DetachLink) and not visit.has_command(AttachReceiver)


def test_a_coordinator_is_refused_as_not_implemented() -> None:
    visit = welcome()
    assert visit.refusal(visit.sender(target=Coordinator(["amqp:local-transactions"])))[0] == "amqp:not-implemented"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("s", "s"), (None, None), ("", ""), (Described(Symbol("com.microsoft:session-filter"), "s"), "s")],
)
def test_a_session_filter_says_which_session_is_wanted(value: object, wanted: str | None) -> None:
    visit = welcome()
    visit.receiver(source=Source(address="q", filter={Symbol("com.microsoft:session-filter"): value}))
    visit.pump()
    wish = visit.command(AttachReceiver).session
    assert wish is not None
    assert (wish.session_id, wish.timeout_ms) == (wanted, 60_000)


@pytest.mark.parametrize("descriptor", [None, ULong(0x137000000C), Symbol("com.microsoft:session-filter")])
@pytest.mark.parametrize("asked", ["s", None])
def test_the_session_is_told_in_the_form_it_was_asked_in(descriptor: object, asked: str | None) -> None:
    """Go describes the filter, and reads the answer in no other form; Python and JavaScript do not."""
    visit = welcome()
    value: object = asked if descriptor is None else Described(descriptor, asked)
    link = visit.receiver(source=Source(address="q", filter={Symbol("com.microsoft:session-filter"): value}))
    assert visit.dispatch(Attached(max(visit.peer.links), "s", 1))
    assert link.attach is not None and link.attach.source is not None and link.attach.source.filter is not None
    told = link.attach.source.filter["com.microsoft:session-filter"]
    assert told == ("s" if descriptor is None else Described(descriptor, "s"))


@pytest.mark.parametrize("value", [5, b"s", "x" * 129])
def test_a_session_filter_that_is_no_session_id_is_refused(value: object) -> None:
    visit = welcome()
    source = Source(address="q", filter={Symbol("com.microsoft:session-filter"): value})
    assert visit.refusal(visit.receiver(source=source))[0] == "com.microsoft:argument-error"


def test_a_filter_we_do_not_know_is_not_claimed_to_be_in_force() -> None:
    visit = welcome()
    link = visit.receiver(source=Source(address="q", filter={Symbol("apache.org:selector-filter:string"): "x"}))
    visit.attached(link)
    assert link.attach is not None
    assert link.attach.source is not None
    assert link.attach.source.filter is None


@pytest.mark.parametrize(
    ("source", "condition"),
    [(Source(), "com.microsoft:argument-error"), (Source(dynamic=True), "amqp:not-implemented")],
)
def test_a_link_to_nowhere_or_to_a_dynamic_node_is_refused(source: Source, condition: str) -> None:
    visit = welcome()
    assert visit.refusal(visit.receiver(source=source))[0] == condition


def test_a_link_detached_before_the_core_answers_is_forgotten() -> None:
    visit = welcome()
    link = visit.receiver()
    number = visit.command(AttachReceiver).link_id
    link.detach()
    assert visit.command(DetachLink).link_id == number
    assert not visit.dispatch(Attached(number))


def test_attach_and_detach_in_one_breath_leave_nothing_behind() -> None:
    visit = welcome()
    link = visit.session.attach_receiver("r", Source(address="q"), None)
    link.detach()
    visit.pump()
    assert visit.peer.links == {}
    session = visit.connection.begin()
    session.attach_receiver("r", Source(address="q"), None)
    session.end()
    visit.pump()
    assert visit.peer.links == {}


# -- sends ---------------------------------------------------------------------------------------------------


def test_a_transfer_becomes_a_send_and_its_answer_a_settled_disposition() -> None:
    visit = Sending()
    payload = body_message(b"hello")
    delivery_id = visit.link.send(b"t", payload, False)
    command = visit.command(Send)
    assert [message.raw for message in command.messages] == [payload]
    assert (command.link_id, command.is_settled) == (visit.number, False)
    assert command.size_bytes == len(payload) + ITEM_BYTES
    assert not visit.has(DispositionReceived)
    visit.dispatch(SendSettled(visit.number, command.delivery_id, None))
    outcome = visit.outcome()
    assert isinstance(outcome.state, Accepted)
    assert [sent.delivery_id for sent in outcome.deliveries] == [delivery_id]


@pytest.mark.contract("G2", "G3")
@pytest.mark.parametrize("error", [QuotaExceeded("Full."), ServerBusy("Wait 10 s.")])
def test_traps_1_and_4_a_refused_send_is_rejected_with_three_fields_and_the_link_lives(
    error: QuotaExceeded | ServerBusy,
) -> None:
    visit = Sending()
    visit.link.send(b"t", body_message(), False)
    number = visit.command(Send).delivery_id
    visit.peer.dispatch(SendSettled(visit.number, number, error), NOW_MS)
    frames = b"".join(visit.peer.drain_output())
    at = frames.index(b"\x00\x53\x1d") + 3  # the described error
    assert frames[at] in (0xC0, 0xD0)
    assert (frames[at + 2] if frames[at] == 0xC0 else int.from_bytes(frames[at + 5 : at + 9], "big")) == 3
    visit.connection.receive(frames, NOW_MS)
    said = visit.error()
    assert said.condition == error.condition
    assert visit.link.is_open


@pytest.mark.contract("G13")
def test_a_pre_settled_transfer_is_sent_on_and_never_answered() -> None:
    visit = Sending()
    visit.link.send(b"t", body_message(), True)
    assert visit.command(Send).is_settled
    visit.link.send(b"u", b"junk", True)
    assert not visit.has(DispositionReceived)
    assert not visit.has_command(Send)


def test_a_batch_becomes_one_send_of_all_its_messages() -> None:
    visit = Sending()
    inner = [body_message(b"1"), body_message(b"2")]
    visit.link.send(b"t", encode_message(body=b"".join(encode_data(raw) for raw in inner)), False, BATCH_FORMAT)
    assert [message.raw for message in visit.command(Send).messages] == inner


def test_a_payload_that_is_no_message_is_rejected_and_the_link_lives() -> None:
    visit = Sending()
    visit.link.send(b"t", b"junk", False)
    error = visit.error()
    assert error.condition == "amqp:decode-error"
    assert "no AMQP message" in (error.description or "")
    assert visit.link.is_open
    assert not visit.has_command(Send)


@pytest.mark.parametrize("size", [262_145, 263_100, 300_000, 2_000_000])
def test_a_message_over_256_kib_is_rejected_with_its_size_and_the_link_lives(size: int) -> None:
    visit = Sending()
    overhead = len(body_message(b"x" * 1_000)) - 1_000
    visit.link.send(b"t", body_message(b"x" * (size - overhead)), False)
    visit.link.send(b"u", body_message(), False)
    error = visit.error()
    assert error.condition == "amqp:link:message-size-exceeded"
    assert f"{size} bytes; at most 262144" in (error.description or "")
    assert visit.link.is_open
    assert visit.has_command(Send)


def test_a_batch_has_a_kibibyte_of_slack() -> None:
    visit = Sending()
    inner = b"".join(encode_data(body_message(b"x" * 65_500)) for _ in range(4))
    payload = encode_message(body=inner)
    assert limits.MESSAGE_BYTES_MAX < len(payload) < limits.MESSAGE_BYTES_MAX + limits.BATCH_SLACK_BYTES
    visit.link.send(b"t", payload, False, BATCH_FORMAT)
    assert len(visit.command(Send).messages) == 4
    visit.link.send(b"u", encode_message(body=inner + encode_data(body_message(b"x" * 1_000))), False, BATCH_FORMAT)
    assert visit.error().condition == "amqp:link:message-size-exceeded"


def test_a_sender_that_ignores_its_credit_is_served_and_topped_up() -> None:
    visit = Sending()
    for number in range(limits.LINK_CREDIT + 50):
        visit.link.send(b"%d" % number, body_message(), True)
    visit.pump()
    assert visit.link.is_open
    assert visit.link.credit > limits.LINK_CREDIT // 2
    assert sum(isinstance(command, Send) for command in visit.commands) == limits.LINK_CREDIT + 50


def test_an_answer_for_a_sender_that_has_gone_is_not_said() -> None:
    visit = Sending()
    visit.link.send(b"t", body_message(), False)
    visit.link.detach()
    number = visit.command(Send).delivery_id
    assert not visit.dispatch(SendSettled(visit.number, number, None))


# -- credit --------------------------------------------------------------------------------------------------


def test_the_core_is_told_how_many_deliveries_the_link_may_get_in_all() -> None:
    visit = Receiving()
    visit.link.grant(10)
    credit = visit.command(Credit)
    assert (credit.link_id, credit.limit, credit.drains) == (visit.number, 10, False)
    for number in range(1, 4):
        assert visit.deliver(number)
    visit.link.grant(10)
    assert visit.command(Credit).limit == 13


def test_a_sender_that_is_paced_gets_no_new_credit_until_it_is_released() -> None:
    visit = Sending()
    visit.dispatch(Paced(visit.number, True))
    for _ in range(limits.LINK_CREDIT - 1):
        visit.link.send(b"t", body_message(b"x"), True)
    visit.pump()
    assert visit.link.credit == 1
    visit.dispatch(Paced(visit.number, False))
    visit.pump()
    assert visit.link.credit == limits.LINK_CREDIT
    for _ in range(limits.LINK_CREDIT):  # and from then on as ever, when half of it is used up
        visit.link.send(b"t", body_message(b"x"), True)
        visit.pump()
    assert visit.link.credit >= limits.LINK_CREDIT // 2


def test_a_sender_with_credit_left_is_told_nothing_when_it_is_released() -> None:
    visit = Sending()
    visit.dispatch(Paced(visit.number, True))
    visit.dispatch(Paced(visit.number, False))
    visit.pump()
    assert visit.link.credit == limits.LINK_CREDIT


def test_what_a_paced_client_sends_without_credit_is_taken() -> None:
    visit = Sending()
    visit.dispatch(Paced(visit.number, True))
    for _ in range(limits.LINK_CREDIT):
        visit.link.send(b"t", body_message(b"x"), True)
    visit.pump()
    visit.link.credit = 3  # the Python SDK does not look at it
    for _ in range(3):
        visit.link.send(b"t", body_message(b"x"), True)
    visit.pump()
    assert sum(isinstance(command, Send) for command in visit.commands) == 1_003


def test_credit_granted_before_the_attach_was_answered_is_not_lost() -> None:
    visit = welcome()
    link = visit.receiver()
    link.grant(7)
    visit.pump()
    assert not visit.has_command(Credit)
    visit.dispatch(Attached(visit.command(AttachReceiver).link_id))
    assert visit.command(Credit).limit == 7


def test_the_core_sees_a_bounded_part_of_a_boundless_credit_and_more_as_it_is_used() -> None:
    visit = Receiving(credit=(1 << 32) - 1)
    assert visit.command(Credit).limit == DELIVERIES_AHEAD_MAX
    for number in range(1, DELIVERIES_AHEAD_MAX // 2):
        visit.deliver(number)
    assert not visit.has_command(Credit)
    visit.deliver(DELIVERIES_AHEAD_MAX // 2)
    assert visit.command(Credit).limit == DELIVERIES_AHEAD_MAX // 2 + DELIVERIES_AHEAD_MAX


def test_a_drain_is_told_and_answered_with_no_credit_left() -> None:
    visit = Receiving()
    visit.link.grant(5, drain=True)
    credit = visit.command(Credit)
    assert (credit.limit, credit.drains) == (5, True)
    visit.deliver(1)
    assert visit.link.credit_left == 4
    visit.dispatch(Drained(visit.number, credit.number))
    assert visit.link.credit_left == 0
    visit.link.grant(2)
    assert visit.command(Credit).limit == 3


def test_pythons_drain_with_no_credit_at_all_is_answered_behind_what_is_under_way() -> None:
    visit = Receiving(credit=5)
    visit.command(Credit)
    visit.link.grant(0, drain=True)
    credit = visit.command(Credit)
    assert (credit.limit, credit.drains) == (0, True)
    assert not visit.deliver(1)
    visit.dispatch(Drained(visit.number, credit.number))
    assert visit.received() == []


def test_a_locked_delivery_for_which_there_is_no_credit_any_more_goes_back() -> None:
    visit = Receiving(credit=1)
    assert visit.deliver(1)
    assert not visit.deliver(2)
    assert len(visit.received()) == 1
    visit.link.grant(1)
    visit.commands.clear()
    visit.link.grant(2)
    assert visit.command(Credit).limit == 4  # the core has counted the one that went back


def test_a_deleted_message_for_which_there_is_no_credit_any_more_waits_for_some() -> None:
    visit = Receiving(credit=1, deletes=True)
    assert visit.deliver(1)
    assert visit.deliver(2)
    assert visit.deliver(3)
    assert len(visit.received()) == 1
    visit.link.grant(1)
    assert len(visit.received()) == 1
    visit.link.grant(5)
    assert len(visit.received()) == 1
    assert visit.peer.links[visit.number].link.credit == 4


def test_the_core_sees_no_credit_while_the_client_does_not_read() -> None:
    visit = Receiving(credit=10)
    visit.command(Credit)
    visit.deliver(1)
    visit.peer.set_writable(False, NOW_MS)
    assert visit.command(Credit).limit == 1
    visit.link.grant(50)
    visit.pump()
    assert not visit.has_command(Credit)
    visit.peer.set_writable(True, NOW_MS)
    assert visit.command(Credit).limit == 51


def test_a_drain_asked_while_the_client_did_not_read_is_told_when_it_does() -> None:
    visit = Receiving()
    visit.peer.set_writable(False, NOW_MS)
    visit.link.grant(3, drain=True)
    visit.pump()
    assert not visit.has_command(Credit)
    visit.peer.set_writable(True, NOW_MS)
    credit = visit.command(Credit)
    assert (credit.limit, credit.drains) == (3, True)


@pytest.mark.parametrize(
    ("grants", "asks"),
    [
        ([(10, False), (10, False), (10, False)], [ASKS_MORE, ASKS_AGAIN, ASKS_AGAIN]),  # Python's next call
        ([(10, False), (5, False), (0, False)], [ASKS_MORE, ASKS_AGAIN, ASKS_NOTHING]),
        ([(1, False), (2, False), (3, False)], [ASKS_MORE, ASKS_MORE, ASKS_MORE]),  # JavaScript adds for each handler
        ([(10, False), (10, True)], [ASKS_MORE, NOT_ASKED]),  # JavaScript ends its call
        ([(10, True)], [ASKS_MORE]),  # both in one
        ([(2**32 - 1, False), (2**32 - 1, False)], [ASKS_AGAIN, ASKS_AGAIN]),
    ],
)
def test_the_core_hears_what_a_client_did_with_its_credit(grants: list[tuple[int, bool]], asks: list[int]) -> None:
    visit = Receiving()
    heard = []
    for credit, drain in grants:
        visit.link.grant(credit, drain=drain)
        visit.pump()
        heard.append(visit.command(Credit).asks)
    assert heard == asks


def test_credit_given_after_a_delivery_is_more_and_after_a_drain_too() -> None:
    visit = Receiving(credit=3)
    visit.command(Credit)
    visit.deliver(1)
    visit.received()
    visit.link.grant(3)
    visit.pump()
    assert visit.command(Credit).asks == ASKS_MORE
    visit.link.grant(3, drain=True)
    visit.pump()
    drain = visit.command(Credit)
    assert drain.asks == NOT_ASKED
    visit.dispatch(Drained(visit.number, drain.number))
    visit.received()
    visit.link.grant(3)
    visit.pump()
    assert visit.command(Credit).asks == ASKS_MORE


def test_a_drain_and_the_next_call_in_one_read_are_told_apart() -> None:
    visit = Receiving(credit=2)
    visit.command(Credit)
    visit.deliver(1)
    visit.deliver(2)
    visit.received()
    visit.link.grant(0, drain=True)  # as by a client that has not seen all of them when it drains
    visit.link.grant(2)
    visit.pump()
    drain, call = (command for command in visit.commands if isinstance(command, Credit))
    assert (drain.drains, drain.asks) == (True, NOT_ASKED)
    assert (call.limit, call.drains, call.asks) == (4, False, ASKS_MORE)


def test_what_a_client_did_with_its_credit_while_it_did_not_read_is_told_when_it_does() -> None:
    visit = Receiving(credit=10)
    visit.command(Credit)
    visit.peer.set_writable(False, NOW_MS)
    visit.command(Credit)
    visit.link.grant(10)
    visit.pump()
    visit.peer.set_writable(True, NOW_MS)
    assert visit.command(Credit).asks == ASKS_AGAIN


def test_the_session_window_bounds_what_the_core_sees() -> None:
    visit = Receiving()
    outgoing = visit.peer.links[visit.number].link.session.outgoing
    visit.link.grant(10)
    visit.peer.connection.receive(b"".join(visit.connection.drain_output()), NOW_MS)
    outgoing.window = 4  # as if the peer's flow had said so
    visit.peer.receive(b"", NOW_MS)
    assert visit.command(Credit).limit == 4
    outgoing.window = 100
    visit.peer.receive(b"", NOW_MS)
    assert visit.command(Credit).limit == 10


# -- deliveries and settlements ------------------------------------------------------------------------------


@pytest.mark.contract("H3")
def test_a_locked_delivery_has_its_token_as_tag_and_is_not_settled() -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    assert (event.tag, event.settled, event.message_format) == (token(7), False, 0)


@pytest.mark.contract("H2")
def test_a_deleted_delivery_is_settled_and_its_tag_empty() -> None:
    visit = Receiving(credit=1, deletes=True)
    visit.deliver(7)
    (event,) = visit.received()
    assert (event.tag, event.settled) == (b"", True)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (ACCEPTED, COMPLETE),
        (Modified(True, False), ABANDON),
        (Modified(False, True), DEFER),
        (Rejected(AmqpError("com.microsoft:dead-letter")), DEAD_LETTER),
        (RELEASED, RELEASE),
    ],
)
def test_a_settlement_goes_to_the_core_and_its_echo_back(state: Accepted, kind: int) -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.dispose(event.delivery_id, state)
    command = visit.command(Settle)
    assert (command.link_id, command.lock_token, command.is_settled) == (visit.number, token(7), False)
    assert command.settlement.kind == kind
    assert not visit.has(IncomingSettled)
    visit.dispatch(SettlementAnswered(visit.number, command.delivery_id, kind, None))
    echo = visit.take(IncomingSettled)
    assert (echo.first, echo.last) == (event.delivery_id, event.delivery_id)
    assert type(echo.state) is type(state)
    assert not isinstance(echo.state, Rejected) or echo.state.error is None


def test_a_lost_lock_is_echoed_as_rejected_with_the_error_whatever_was_asked() -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.dispose(event.delivery_id, ACCEPTED)
    command = visit.command(Settle)
    visit.dispatch(SettlementAnswered(visit.number, command.delivery_id, COMPLETE, MessageLockLost("Gone.")))
    state = visit.take(IncomingSettled).state
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "com.microsoft:message-lock-lost"
    assert (state.error.description or "").startswith("Gone. TrackingId:")


def test_a_range_settles_every_delivery_in_it() -> None:
    visit = Receiving(credit=5)
    for number in range(1, 6):
        visit.deliver(number)
    for event in visit.received():
        visit.session.dispose(event.delivery_id, ACCEPTED)
    assert [visit.command(Settle).lock_token for _ in range(5)] == [token(number) for number in range(1, 6)]


def test_pythons_release_on_close_is_settled_and_not_answered() -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.settle(event.delivery_id, RELEASED)
    command = visit.command(Settle)
    assert command.is_settled
    assert command.settlement.kind == RELEASE


def test_settled_without_an_outcome_gives_the_message_back() -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.settle(event.delivery_id, None)
    assert visit.command(Settle).settlement.kind == RELEASE


def test_a_delivery_state_that_is_no_outcome_changes_nothing() -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.dispose(event.delivery_id, Received(0, 0))
    assert not visit.has_command(Settle)


@pytest.mark.parametrize(
    ("state", "condition"),
    [
        (TransactionalState(b"t", ACCEPTED), "amqp:not-implemented"),
        (Modified(True, False, {Symbol("p"): [1]}), "com.microsoft:argument-error"),
    ],
)
def test_a_settlement_that_cannot_be_is_echoed_as_rejected_without_asking(
    state: TransactionalState | Modified, condition: str
) -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.dispose(event.delivery_id, state)
    said = visit.take(IncomingSettled).state
    assert isinstance(said, Rejected)
    assert said.error is not None
    assert said.error.condition == condition
    assert not visit.has_command(Settle)


def test_a_disposition_for_deliveries_never_sent_changes_nothing() -> None:
    visit = Receiving(credit=1)
    visit.deliver(7)
    (event,) = visit.received()
    visit.session.settle(event.delivery_id + 1_000, ACCEPTED)
    assert not visit.has_command(Settle)
    assert visit.link.is_open


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_link_that_closes_gives_back_what_was_never_begun() -> None:
    visit = Receiving(credit=5)
    visit.peer.links[visit.number].link.session.outgoing.window = 2
    for number in range(1, 6):
        assert visit.peer.dispatch(delivery(visit.number, number), NOW_MS)
    visit.connection.receive(b"".join(visit.peer.drain_output()), NOW_MS)
    assert len(visit.received()) == 2
    visit.link.detach()
    given_back = [visit.command(Undelivered) for _ in range(3)]
    assert [(command.path, command.lock_token) for command in given_back] == [("q", token(n)) for n in (3, 4, 5)]


def test_a_session_that_ends_takes_its_links_with_it() -> None:
    visit = Receiving(credit=5)
    visit.session.end()
    assert visit.command(DetachLink).link_id == visit.number
    assert visit.peer.links == {}


def test_the_core_can_end_a_link_with_a_reason() -> None:
    visit = Receiving(credit=5)
    assert visit.dispatch(Detached(visit.number, EntityNotFound("Deleted.")))
    assert visit.refusal(visit.link)[0] == "amqp:not-found"
    assert not visit.deliver(1)


def test_a_sender_whose_link_the_core_ends_hears_of_all_its_sends_first() -> None:
    visit = welcome()
    link = visit.sender()
    number = visit.attached(link)
    link.send(b"tag", body_message(), False)
    first = visit.command(Send).delivery_id
    gone = EntityNotFound("Deleted.")
    visit.dispatch(Detached(number, gone))
    assert link.is_open, "one send is not answered yet"
    asked = visit.command(DetachLink)
    assert (asked.link_id, asked.error) == (number, gone)
    link.send(b"more", body_message(), False)
    assert not visit.has_command(Send), "it is refused without the core"
    visit.dispatch(SendSettled(number, first, gone))
    visit.dispatch(Detached(number, gone))
    refused = [visit.take(DispositionReceived) for _ in range(2)]
    assert [state_condition(event.state) for event in refused] == ["amqp:not-found"] * 2
    assert visit.refusal(link)[0] == "amqp:not-found"
    assert visit.peer.links == {}
    assert visit.peer.drain_unregistered() == [number]


def state_condition(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


def test_a_lost_socket_detaches_every_link_and_forgets_every_number() -> None:
    visit = Receiving()
    other = visit.sender()
    visit.attached(other)
    visit.peer.lost()
    detached = [visit.command(DetachLink).link_id for _ in range(2)]
    assert sorted(visit.peer.drain_unregistered()) == sorted(detached)
    assert visit.peer.links == {}
    assert not visit.deliver(1)


def test_closing_tells_the_client_to_come_again() -> None:
    visit = Receiving()
    visit.peer.close(None)
    visit.pump()
    closed = visit.take(ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"
    assert "TrackingId:" in (closed.error.description or "")
    assert visit.peer.is_closed
    assert visit.has_command(DetachLink)


def test_a_connection_that_the_client_closes_is_forgotten() -> None:
    visit = Receiving()
    visit.connection.close()
    assert visit.command(DetachLink).link_id == visit.number
    assert visit.peer.is_closed


def test_commands_are_taken_by_count_and_bytes_oldest_first() -> None:
    visit = Sending()
    visit.commands.clear()
    for number in range(10):
        visit.link.send(b"%d" % number, body_message(b"x" * 1_000, message_id=f"{number}"), True)
    visit.peer.receive(b"".join(visit.connection.drain_output()), NOW_MS)
    first = visit.peer.pop_commands(3, 1 << 20)
    by_bytes = visit.peer.pop_commands(100, 3_000)
    one = visit.peer.pop_commands(100, 1)
    assert visit.peer.has_commands
    rest = visit.peer.pop_commands(100, 1 << 20)
    assert [len(part) for part in (first, by_bytes, one, rest)] == [3, 2, 1, 4]
    ids = [command.messages[0].message_id for command in first + by_bytes + one + rest if isinstance(command, Send)]
    assert ids == [str(number) for number in range(10)]
    assert not visit.peer.has_commands


class BrokenDirectory(Names):
    def exists(self, path: str) -> bool:
        if path == "q":
            return True
        raise ValueError("a fault of ours")


def test_a_fault_of_ours_closes_this_connection_and_is_raised_to_its_owner() -> None:
    visit = Visit("PLAIN", ROOT_PLAIN, names=BrokenDirectory())
    receiver = visit.receiver()
    number = visit.command(AttachReceiver).link_id
    visit.dispatch(Attached(number))
    assert receiver.is_open
    with pytest.raises(ValueError, match="a fault of ours"):
        visit.sender("broken/$management")
    visit.pump()
    closed = visit.take(ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == InternalError.condition
    assert visit.command(DetachLink).link_id == number


def test_frames_after_the_end_of_their_session_are_ignored() -> None:
    """Python ends its session, then detaches in it (docs/wire.md, "Frames come after the end")."""
    visit = welcome()
    out, back = visit.pair("q/$management")
    detaches = []
    for link in (out, back):
        link.detach()
        detaches.append(b"".join(visit.connection.drain_output()))
    visit.session.end()
    end = b"".join(visit.connection.drain_output())
    visit.peer.receive(end + b"".join(detaches), NOW_MS)
    assert not visit.peer.is_closed
    assert visit.peer.links == {}


def test_links_of_both_kinds_share_a_connection_with_many_sessions() -> None:
    visit = welcome()
    links: list[Link] = []
    for _ in range(3):
        session = visit.connection.begin()
        visit.pump()
        links.append(visit.sender(session=session))
        visit.dispatch(Attached(visit.command(AttachSender).link_id))
        links.append(visit.receiver(session=session))
        visit.dispatch(Attached(visit.command(AttachReceiver).link_id))
    assert all(link.is_open for link in links)
    assert not visit.has(LinkDetached)


# -- effects in a row ------------------------------------------------------------------------------------------


def dispatch_in_turn(peer: Peer, effects: list[Effect], in_runs: bool) -> list[int]:
    """As the pump does; which of them could not be said."""
    refused: list[Effect] = []
    at = 0
    while at < len(effects):
        upto = peer.dispatch_run(effects, at, NOW_MS, refused) if in_runs else at
        if upto == at:
            if not peer.dispatch(effects[at], NOW_MS):
                refused.append(effects[at])
            upto += 1
        at = upto
    return [effects.index(effect) for effect in refused]


class Busy(Receiving):
    """Sends and receives over one connection, under link numbers of its own."""

    def __init__(self, credit: int, deletes: bool) -> None:
        super().__init__(credit, deletes)
        self.sending = self.sender()
        self.sender_number = self.attached(self.sending)
        for _ in range(4):
            self.sending.send(b"t", body_message(), False)
        self.pump()

    def effect(self, kind: int, number: int) -> Effect:
        if kind < 4:
            return delivery(self.number if kind else 999, number, self.deletes)
        if kind < 6:
            return SendSettled(self.sender_number, number % 5, None if number % 3 else ServerBusy("Wait."))
        if kind < 8:
            return SettlementAnswered(self.number, number % 3, COMPLETE if number % 2 else ABANDON, None)
        return Drained(self.number, 1) if kind == 8 else Paced(self.sender_number, number % 2 == 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), max_size=20), st.integers(0, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_effects_in_a_row_say_what_they_say_one_by_one(
    kinds: list[tuple[int, int]], credit: int, deletes: bool
) -> None:
    said = []
    for in_runs in (False, True):
        visit = Busy(credit, deletes)
        refused = dispatch_in_turn(visit.peer, [visit.effect(kind, number) for kind, number in kinds], in_runs)
        output = b"".join(visit.peer.drain_output())
        commands = [
            [type(command).__name__, getattr(command, "limit", None)]
            for command in visit.peer.pop_commands(1_000, 1 << 30)
        ]
        tracked = re.sub(rb"TrackingId:\S+", b"", output)  # counted by each visit for itself
        said.append((refused, tracked, commands, visit.peer.receivers.account.held_bytes))
    assert said[0] == said[1]


def test_a_run_ends_at_what_is_for_somebody_else_and_before_links_whose_token_has_run_out() -> None:
    visit = Receiving(credit=10)
    effects: list[Effect] = [delivery(visit.number, number) for number in (1, 2)]
    effects.append(delivery(999, 3))
    refused: list[Effect] = []
    assert visit.peer.dispatch_run(effects, 0, NOW_MS, refused) == 2
    assert visit.peer.dispatch_run(effects, 2, NOW_MS, refused) == 2
    assert refused == []
    assert [event.tag for event in visit.received()] == [token(1), token(2)]


def test_after_a_fault_in_a_run_it_is_known_where_it_was() -> None:
    visit = Receiving(credit=10)
    effects: list[Effect] = [delivery(visit.number, 1), SendSettled(visit.number, 0, None), delivery(visit.number, 2)]
    with pytest.raises(AssertionError):
        visit.peer.dispatch_run(effects, 0, NOW_MS, [])  # a receiver's number for a send: the core broke its rules
    assert visit.peer.dispatching_at == 1
    assert visit.peer.is_closing
