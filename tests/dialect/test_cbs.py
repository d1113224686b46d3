"""put-token, and what becomes of links when a token ends (docs/wire.md, "Tokens")."""

import re
import uuid

import pytest

from spillway.amqp.events import ConnectionClosed, DispositionReceived, LinkDetached, TransferReceived
from spillway.amqp.performatives import Accepted, Rejected
from spillway.amqp.types import Int
from spillway.broker.commands import AttachReceiver, AttachSender, DetachLink
from spillway.broker.effects import Attached, Deliver
from spillway.dialect.admission import admit
from spillway.model import limits
from spillway.model.message import StoredMessage
from tests.dialect.visit import HOUR_S, KEY, NOW_MS, ROOT, Answer, Visit, body_message, sas_token

SOON_S = NOW_MS // 1000 + 10
TRACKED = r" TrackingId:[0-9a-f-]{36}_\S+, SystemTracker:.*, Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"


class Watch:
    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []

    def refused(self, what: str, rule: str, path: str, why: str) -> None:
        self.refusals.append((what, why))

    def done(self, what: str, rule: str, path: str) -> None:
        return


def put(visit: Visit, body: object, name: object = "sb://h/q", operation: object = "put-token") -> Answer:
    if visit.cbs_pair is None:
        visit.cbs_pair = visit.pair("$cbs")
    visit.ask(visit.cbs_pair[0], {"operation": operation, "name": name, "type": "jwt"}, body)
    return visit.answer()


def status(answer: Answer) -> tuple[object, str]:
    text = answer.properties["status-description"]
    assert isinstance(text, str)
    return answer.properties["status-code"], text


def test_a_valid_token_is_accepted_with_202_whatever_type_it_claims() -> None:
    visit = Visit()
    answer = visit.put_token()
    assert answer.properties == {"status-code": 202, "status-description": "Accepted"}
    assert type(answer.properties["status-code"]) is Int
    assert visit.peer.is_authorised


@pytest.mark.parametrize("message_id", [uuid.uuid4(), "text-id", b"bin"])
def test_the_correlation_id_is_the_message_id_in_the_same_type(message_id: object) -> None:
    visit = Visit()
    out, _ = visit.pair("$cbs")
    visit.ask(out, {"operation": "put-token", "name": "sb://localhost/q"}, sas_token(), message_id)
    answer = visit.answer()
    assert answer.correlation_id == message_id
    assert type(answer.correlation_id) is type(message_id)


def test_the_request_is_settled_as_accepted_before_it_is_answered() -> None:
    visit = Visit()
    visit.put_token()
    disposition = visit.take(DispositionReceived)
    assert disposition.settled
    assert isinstance(disposition.state, Accepted)


def test_javascript_names_its_reply_link_and_leaves_addresses_empty() -> None:
    visit = Visit()
    session = visit.connection.begin()
    visit.pump()
    out = visit.sender("$cbs", session=session)
    back = visit.receiver("$cbs", target=None, name="cbs-1", session=session)
    back.grant(10)
    visit.ask(out, {"operation": "put-token", "name": "sb://localhost/q"}, sas_token(), "id", reply_to="cbs-1")
    assert visit.answer().properties["status-code"] == 202


def test_a_bad_token_gets_401_with_a_text_and_no_error_condition() -> None:
    visit = Visit()
    answer = visit.put_token(sas_token(key="wrong"))
    code, text = status(answer)
    assert code == 401
    assert re.search(TRACKED, text)
    assert set(answer.properties) == {"status-code", "status-description"}
    assert not visit.peer.is_authorised


def test_a_connection_ends_after_a_few_bad_tokens_and_whoever_keeps_watch_hears_why() -> None:
    visit = Visit()
    watch = Watch()
    visit.peer.audit = watch
    for _ in range(limits.BAD_TOKENS_MAX + 1):
        assert status(visit.put_token(sas_token(key="wrong")))[0] == 401
    assert visit.peer.next_due_ms() == NOW_MS + limits.BAD_TOKENS_GRACE_MS
    assert not visit.has(ConnectionClosed), "what is asked meanwhile is answered"
    visit.peer.tick(NOW_MS + limits.BAD_TOKENS_GRACE_MS)
    visit.pump()
    error = visit.take(ConnectionClosed).error
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert watch.refusals == [("connection", "6 tokens were put to this connection and none was good.")]


def test_bad_tokens_beside_a_good_one_end_nothing() -> None:
    visit = Visit()
    visit.put_token()
    for _ in range(2 * limits.BAD_TOKENS_MAX):
        assert status(visit.put_token(sas_token(key="wrong")))[0] == 401
    assert not visit.has(ConnectionClosed)


def test_what_is_wrong_but_no_bad_token_is_not_counted() -> None:
    visit = Visit()
    for _ in range(2 * limits.BAD_TOKENS_MAX):
        assert status(put(visit, b"token"))[0] == 400
    assert not visit.has(ConnectionClosed)


def test_a_body_that_is_no_string_or_a_missing_name_is_named() -> None:
    visit = Visit()
    assert status(put(visit, b"token"))[0] == 400
    code, text = status(put(visit, sas_token(), name=None))
    assert code == 400
    assert "'name'" in text


def test_another_operation_gets_501() -> None:
    assert status(put(Visit(), "x", operation="delete-token"))[0] == 501


@pytest.mark.parametrize("path", ["missing", "missing/$management", "missing/$DeadLetterQueue", "q/Subscriptions/s"])
def test_a_good_token_for_an_entity_that_is_not_there_gets_404_with_its_name(path: str) -> None:
    """As on Azure (docs/adr/0005). Who has shown a good token is no stranger all the same."""
    visit = Visit()
    answer = visit.put_token(sas_token(f"sb://localhost/{path}"), f"sb://localhost/{path}")
    code, text = status(answer)
    assert code == 404
    name = path.removesuffix("/$management")
    assert text.startswith(f"The messaging entity 'sb://localhost/{name}' could not be found.")
    assert set(answer.properties) == {"status-code", "status-description"}
    assert visit.peer.is_authorised
    visit.events.clear()
    assert visit.put_token().properties["status-code"] == 202


def test_who_has_no_valid_token_does_not_learn_what_exists() -> None:
    answer = Visit().put_token(sas_token("sb://h/missing", key="wrong"), "sb://h/missing")
    assert answer.properties["status-code"] == 401


@pytest.mark.parametrize("name", ["sb://h/q/$management", "sb://h/q/$DeadLetterQueue", "sb://h/Q", "sb://h/", "sb://h"])
def test_nodes_of_an_entity_and_the_namespace_itself_are_fine(name: str) -> None:
    assert Visit().put_token(sas_token(name), name).properties["status-code"] == 202


def test_a_token_too_large_for_the_link_is_rejected_in_words() -> None:
    visit = Visit()
    out, _ = visit.pair("$cbs")
    visit.ask(out, {"operation": "put-token", "name": "sb://h/q"}, "SharedAccessSignature " + "x" * 1_000_000)
    disposition = visit.take(DispositionReceived)
    assert isinstance(disposition.state, Rejected)
    assert disposition.state.error is not None
    assert disposition.state.error.condition == "amqp:link:message-size-exceeded"


def test_a_token_of_twenty_kilobytes_gets_its_401() -> None:
    code, text = status(Visit().put_token("SharedAccessSignature sr=" + "x" * 20_000))
    assert code == 401
    assert "8192" in text


@pytest.mark.parametrize("payload", [b"", b"junk", b"\x00\x53\x77\x40"])
def test_a_request_that_cannot_be_answered_is_rejected(payload: bytes) -> None:
    visit = Visit()
    out, _ = visit.pair("$cbs")
    out.send(b"t", payload, False)
    state = visit.take(DispositionReceived).state
    assert isinstance(state, Rejected)
    assert not visit.has(TransferReceived)


def test_a_request_without_a_link_for_its_answer_is_rejected() -> None:
    visit = Visit()
    out = visit.sender("$cbs")
    visit.ask(out, {"operation": "put-token", "name": "sb://localhost/q"}, sas_token())
    state = visit.take(DispositionReceived).state
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert "$cbs" in (state.error.description or "")


def test_answers_wait_for_credit() -> None:
    visit = Visit()
    back = visit.receiver("$cbs", target="$cbs")
    out = visit.sender("$cbs")
    visit.ask(out, {"operation": "put-token", "name": "sb://localhost/q"}, sas_token())
    assert not visit.has(TransferReceived)
    back.grant(1)
    assert visit.answer().properties["status-code"] == 202


def test_python_which_grants_ten_thousand_once_is_answered_for_ever() -> None:
    visit = Visit()
    back = visit.receiver("$cbs", target="$cbs")
    out = visit.sender("$cbs")
    back.grant(10_000)
    visit.pump()
    next(iter(visit.peer.nodes.replies.values()))[0].link.credit = 0  # as after the ten thousandth answer
    visit.ask(out, {"operation": "put-token", "name": "sb://localhost/q"}, sas_token())
    assert visit.answer().properties["status-code"] == 202


# -- rights at attach ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wants_to_send", [True, False])
def test_a_link_without_a_token_is_refused_and_the_claim_is_named(wants_to_send: bool) -> None:
    visit = Visit()
    link = visit.sender() if wants_to_send else visit.receiver()
    condition, text = visit.refusal(link)
    assert condition == "amqp:unauthorized-access"
    assert ("'Send'" if wants_to_send else "'Listen'") in text
    assert re.search(TRACKED, text)
    assert not visit.has_command(AttachSender)
    assert not visit.has_command(AttachReceiver)


@pytest.mark.parametrize(
    ("rule", "key", "may_send", "may_listen"),
    [("sender", "send-key", True, False), ("listener", "listen-key", False, True), (ROOT, KEY, True, True)],
)
def test_send_and_listen_are_enforced_when_links_attach(rule: str, key: str, may_send: bool, may_listen: bool) -> None:
    visit = Visit()
    visit.put_token(sas_token("sb://localhost:5672/q", rule, key))
    visit.sender()
    assert visit.has_command(AttachSender) is may_send
    visit.receiver()
    assert visit.has_command(AttachReceiver) is may_listen


def test_a_token_for_one_queue_does_not_open_another() -> None:
    visit = Visit().authorised()
    condition, _ = visit.refusal(visit.sender("other"))
    assert condition == "amqp:unauthorized-access"


def test_a_token_covers_the_dead_letter_queue_and_the_management_node() -> None:
    visit = Visit().authorised()
    visit.receiver("q/$DeadLetterQueue")
    assert visit.command(AttachReceiver).path == "q/$DeadLetterQueue"
    visit.pair("q/$management")


def test_plain_credentials_open_everything_they_have_the_right_to() -> None:
    visit = Visit("PLAIN", b"\x00sender\x00send-key")
    visit.sender("other")
    assert visit.command(AttachSender).path == "other"
    condition, _ = visit.refusal(visit.receiver("other"))
    assert condition == "amqp:unauthorized-access"


# -- the end of a token --------------------------------------------------------------------------------------


def expiring(visit: Visit) -> None:
    visit.put_token(sas_token(expires_s=SOON_S))
    visit.events.clear()


def test_links_are_detached_when_their_token_ends() -> None:
    visit = Visit()
    expiring(visit)
    sender = visit.sender()
    visit.attached(sender)
    out, back = visit.pair("q/$management")
    assert visit.peer.next_due_ms() == SOON_S * 1000
    visit.advance(9_999)
    assert not visit.has(LinkDetached)
    visit.advance(1)
    ended = [visit.take(LinkDetached) for _ in range(3)]
    assert {event.link for event in ended} == {sender, out, back}
    assert {event.error.condition for event in ended if event.error} == {"amqp:unauthorized-access"}
    assert visit.has_command(DetachLink)


def test_nothing_is_delivered_after_the_token_ended_even_before_the_tick() -> None:
    visit = Visit()
    expiring(visit)
    receiver = visit.receiver()
    number = visit.attached(receiver)
    receiver.grant(10)
    visit.pump()
    visit.now_ms += 10_000
    stored = StoredMessage(admit(body_message(), visit.tracking), 1, NOW_MS)
    assert not visit.dispatch(Deliver(number, "q", stored, b"t" * 16, NOW_MS + 60_000))
    assert not visit.has(TransferReceived)
    assert visit.refusal(receiver)[0] == "amqp:unauthorized-access"


def test_a_renewed_token_keeps_its_links() -> None:
    visit = Visit()
    expiring(visit)
    sender = visit.sender()
    visit.attached(sender)
    visit.now_ms += 5_000
    visit.put_token()
    visit.advance(5_000)
    visit.advance(60_000)
    assert not visit.has(LinkDetached)
    assert visit.peer.next_due_ms() > visit.now_ms
    visit.advance(HOUR_S * 1000)
    assert visit.refusal(sender)[0] == "amqp:unauthorized-access"


def test_a_connection_whose_last_token_ended_is_closed_after_twenty_seconds() -> None:
    visit = Visit()
    expiring(visit)
    visit.advance(10_000)
    assert not visit.peer.is_authorised
    visit.advance(19_999)
    assert not visit.has(ConnectionClosed)
    visit.advance(1)
    closed = visit.take(ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:unauthorized-access"


def test_a_token_put_in_time_saves_the_connection() -> None:
    visit = Visit()
    expiring(visit)
    visit.advance(10_000)
    visit.put_token()
    visit.advance(60_000)
    assert not visit.has(ConnectionClosed)
    link = visit.sender()
    assert visit.dispatch(Attached(max(visit.peer.links)))
    assert link.is_open
