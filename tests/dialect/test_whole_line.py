"""A client, the peer and the real core: the whole line but for sockets and disks."""

import uuid

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import DispositionReceived, IncomingSettled, TransferReceived
from spillway.amqp.message import decode_data_bodies, decode_header, decode_map, split_sections
from spillway.amqp.performatives import ACCEPTED, Accepted, Modified, Rejected
from spillway.amqp.types import UUIDS, Array, Int, Symbol, UInt
from tests.dialect.visit import Whole, body_message


def body_of(event: TransferReceived) -> bytes:
    sections = split_sections(event.payload, DecodeBudget())
    return b"".join(event.payload[at:end] for at, end in decode_data_bodies(event.payload, sections))


def test_a_message_goes_from_sender_to_receiver_and_is_completed() -> None:
    visit = Whole()
    visit.authorised()
    sender = visit.open_sender()
    sender.send(b"t", body_message(b"hello"), False)
    visit.run()
    sent = visit.take(DispositionReceived)
    assert sent.settled
    assert isinstance(sent.state, Accepted)
    visit.open_receiver(credit=10)
    (delivery,) = visit.deliveries()
    assert body_of(delivery) == b"hello"
    assert len(delivery.tag) == 16
    visit.session.dispose(delivery.delivery_id, ACCEPTED)
    visit.run()
    echo = visit.take(IncomingSettled)
    assert isinstance(echo.state, Accepted)
    assert visit.core.namespace.directory.queues["q"].counters.active == 0


def test_abandon_brings_it_back_with_a_counted_delivery() -> None:
    visit = Whole()
    visit.authorised()
    visit.open_sender().send(b"t", body_message(), False)
    visit.open_receiver(credit=10)
    (first,) = visit.deliveries()
    visit.session.dispose(first.delivery_id, Modified(True, False, None))
    (second,) = visit.deliveries()
    echo = visit.take(IncomingSettled)
    assert isinstance(echo.state, Modified)
    assert decode_header(second.payload, split_sections(second.payload, DecodeBudget())).delivery_count == 1


def test_a_dead_lettered_message_is_found_with_its_reason_and_source() -> None:
    visit = Whole()
    visit.authorised()
    visit.open_sender().send(b"t", body_message(), False)
    visit.open_receiver(credit=10)
    (delivery,) = visit.deliveries()
    info: dict[object, object] = {Symbol("DeadLetterReason"): "bad", Symbol("DeadLetterErrorDescription"): "very bad"}
    visit.session.dispose(delivery.delivery_id, Rejected(AmqpError("com.microsoft:dead-letter", None, info)))
    visit.run()
    echo = visit.take(IncomingSettled)
    assert isinstance(echo.state, Rejected)
    assert echo.state.error is None
    visit.open_receiver("q/$deadletterqueue", credit=1)
    (dead,) = visit.deliveries()
    sections = split_sections(dead.payload, DecodeBudget())
    properties = decode_map(dead.payload, sections.application_properties)
    assert properties == {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "very bad"}
    assert decode_map(dead.payload, sections.message_annotations)["x-opt-deadletter-source"] == "q"
    assert body_of(dead) == b"hello"


def test_settling_after_the_lock_ran_out_is_echoed_as_lock_lost() -> None:
    visit = Whole()
    visit.authorised()
    visit.open_sender().send(b"t", body_message(), False)
    visit.open_receiver(credit=1)
    (delivery,) = visit.deliveries()
    visit.pass_time(61_000)
    visit.session.dispose(delivery.delivery_id, ACCEPTED)
    visit.run()
    echo = visit.take(IncomingSettled)
    assert isinstance(echo.state, Rejected)
    assert echo.state.error is not None
    assert echo.state.error.condition == "com.microsoft:message-lock-lost"


def test_a_drain_on_an_empty_queue_is_answered_at_once() -> None:
    visit = Whole()
    visit.authorised()
    receiver = visit.open_receiver(credit=5)
    receiver.grant(5, drain=True)
    visit.run()
    assert receiver.credit_left == 0
    visit.open_sender().send(b"t", body_message(), False)
    assert visit.deliveries() == []
    receiver.grant(1)
    assert len(visit.deliveries()) == 1


def test_a_drain_hands_out_everything_there_is_even_past_what_the_core_sees_at_once() -> None:
    visit = Whole()
    visit.authorised()
    sender = visit.open_sender()
    for number in range(300):
        sender.send(b"%d" % number, body_message(b"%d" % number), True)
    visit.run()
    receiver = visit.open_receiver()
    receiver.grant(1_000, drain=True)
    assert [body_of(event) for event in visit.deliveries()] == [b"%d" % number for number in range(300)]
    assert receiver.credit_left == 0


def test_a_receiver_with_more_credit_than_the_core_sees_at_once_gets_everything() -> None:
    visit = Whole()
    visit.authorised()
    sender = visit.open_sender()
    for number in range(1_000):
        sender.send(b"%d" % number, body_message(b"%d" % number), True)
    visit.run()
    visit.open_receiver(credit=100_000)
    assert len(visit.deliveries()) == 1_000


def test_a_drain_taken_back_before_its_answer_leaves_the_credit_in_force() -> None:
    visit = Whole()
    visit.authorised()
    receiver = visit.open_receiver(credit=1)
    receiver.grant(5, drain=True)
    receiver.grant(10)
    visit.run()
    visit.open_sender().send(b"t", body_message(), False)
    assert len(visit.deliveries()) == 1


def test_a_deferred_message_is_received_by_its_number_and_settled_over_management() -> None:
    visit = Whole()
    visit.authorised()
    visit.open_sender().send(b"t", body_message(), False)
    visit.open_receiver(credit=1)
    (delivery,) = visit.deliveries()
    visit.session.dispose(delivery.delivery_id, Modified(True, True, None))
    visit.run()
    out, _ = visit.pair("q/$management")
    visit.ask(
        out,
        {"operation": "com.microsoft:receive-by-sequence-number"},
        {"sequence-numbers": Array(0x81, [1]), "receiver-settle-mode": UInt(1)},
    )
    visit.run()
    answer = visit.answer()
    assert answer.properties["statusCode"] == 200
    assert isinstance(answer.body, dict)
    (item,) = answer.body["messages"]
    assert isinstance(item["lock-token"], uuid.UUID)
    sections = split_sections(item["message"], DecodeBudget())
    assert decode_map(item["message"], sections.message_annotations)["x-opt-message-state"] == 1
    visit.ask(
        out,
        {"operation": "com.microsoft:update-disposition"},
        {"disposition-status": "completed", "lock-tokens": Array(UUIDS, [item["lock-token"]])},
    )
    visit.run()
    assert visit.answer().properties["statusCode"] == 200
    assert visit.core.namespace.directory.queues["q"].counters.deferred == 0


def test_the_lock_token_of_a_delivery_is_the_uuid_that_management_knows() -> None:
    visit = Whole()
    visit.authorised()
    visit.open_sender().send(b"t", body_message(), False)
    visit.open_receiver(credit=1)
    (delivery,) = visit.deliveries()
    token = uuid.UUID(bytes_le=delivery.tag)
    annotations = decode_map(delivery.payload, split_sections(delivery.payload, DecodeBudget()).delivery_annotations)
    assert annotations["x-opt-lock-token"] == token
    out, _ = visit.pair("q/$management")
    visit.ask(out, {"operation": "com.microsoft:renew-lock"}, {"lock-tokens": Array(UUIDS, [token])})
    visit.run()
    answer = visit.answer()
    assert answer.properties["statusCode"] == 200
    assert answer.body == {"expirations": [visit.now_ms + 60_000]}


def test_peeking_past_the_end_is_no_content() -> None:
    visit = Whole()
    visit.authorised()
    out, _ = visit.pair("q/$management")
    visit.ask(out, {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(5)})
    visit.run()
    answer = visit.answer()
    assert answer.properties["statusCode"] == 204
    assert answer.body == {}
