"""Faults on purpose over AMQP: what the peer says, and what it says nothing of."""

from spillway.amqp.events import ConnectionClosed, DispositionReceived, LinkDetached, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.performatives import Accepted, Rejected
from spillway.amqp.types import Int
from spillway.broker.commands import InjectFault, Peek, RemoveFaults
from spillway.broker.effects import Dropped
from spillway.model.faults import Fault
from tests.dialect.visit import Whole, body_message


def struck(fault: Fault) -> Whole:
    """A client of a namespace with this fault, and a message in the queue."""
    visit = Whole()
    visit.authorised()
    visit.open_sender().send(b"t", body_message(), False)
    visit.run()
    visit.events.clear()
    visit.core.apply(InjectFault(900, fault))
    return visit


def peek(visit: Whole, out: Link) -> None:
    properties: dict[object, object] = {"operation": "com.microsoft:peek-message"}
    visit.ask(out, properties, {"from-sequence-number": 1, "message-count": Int(1)})
    visit.run()


def test_any_condition_is_said_with_its_text_and_a_tracking_id() -> None:
    visit = struck(Fault("refuse", "q", ["send"], "vendor:tuesday", "Not today."))
    visit.open_sender().send(b"t", body_message(), False)
    visit.run()
    refused = visit.take(DispositionReceived)
    assert isinstance(refused.state, Rejected)
    assert refused.state.error is not None
    assert refused.state.error.condition == "vendor:tuesday"
    assert (refused.state.error.description or "").startswith("Not today. TrackingId:")


def test_a_request_that_is_swallowed_leaves_its_place_to_the_next() -> None:
    visit = struck(Fault("timeout", "q", ["management"]))
    out, _ = visit.pair("q/$management")
    for _ in range(6):  # four with large answers may be under way at once
        peek(visit, out)
    assert not visit.has(TransferReceived)
    assert not visit.peer.nodes.requests
    visit.core.apply(RemoveFaults(901, 0))
    peek(visit, out)
    assert visit.answer().properties["statusCode"] == 200


def test_a_fault_that_detaches_ends_both_links_to_the_node_of_a_request() -> None:
    visit = struck(Fault("detach", "q", ["management"], "amqp:link:detach-forced", "Go."))
    out, back = visit.pair("q/$management")
    other_out, _ = visit.pair("q/$deadletterqueue/$management")
    peek(visit, out)
    ended = [visit.take(LinkDetached) for _ in range(2)]
    assert {event.link for event in ended} == {out, back}
    assert {event.error.condition for event in ended if event.error is not None} == {"amqp:link:detach-forced"}
    assert other_out.is_open
    assert not visit.peer.nodes.requests


def test_the_socket_is_not_the_peers_to_cut() -> None:
    visit = struck(Fault("drop", "q"))
    sender = visit.sender()
    visit.pump()
    (number,) = [user.number for user in visit.peer.links.values() if user.link.name == sender.name]
    assert not visit.peer.dispatch(Dropped(number), visit.now_ms)
    assert not visit.peer.dispatch(Dropped(12_345), visit.now_ms)
    assert not visit.has(ConnectionClosed)


def test_a_receiver_hears_why_its_link_ended_and_may_attach_again() -> None:
    visit = struck(Fault("disabled", "q", ["receive"]))
    receiver = visit.open_receiver(credit=1)
    condition, text = visit.refusal(receiver)
    assert condition == "com.microsoft:entity-disabled"
    assert "TrackingId:" in text
    visit.core.apply(RemoveFaults(901, 0))
    visit.open_receiver(credit=1)
    assert len(visit.deliveries()) == 1


def test_a_late_answer_comes_when_its_time_has_come() -> None:
    visit = struck(Fault("slow", "q", ["send"], delay_ms=500))
    visit.open_sender().send(b"t", body_message(), False)
    visit.run()
    assert not visit.has(DispositionReceived)
    visit.pass_time(500)
    assert isinstance(visit.take(DispositionReceived).state, Accepted)


def test_who_runs_the_namespace_is_not_struck() -> None:
    visit = struck(Fault("timeout", "q"))
    request = Peek(902, "q", 1, 1)
    request.is_administrative = True
    assert len(visit.core.apply(request)) == 1
