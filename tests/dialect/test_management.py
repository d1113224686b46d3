"""Every queue operation of `$management`, asked and answered (docs/wire.md, "Management requests")."""

import re
import uuid

import pytest

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.events import DispositionReceived, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.message import Properties, decode_map, encode_data, encode_message, split_sections
from spillway.amqp.performatives import Accepted
from spillway.amqp.types import UUIDS, Array, Int, Symbol, Timestamp, UByte, UInt
from spillway.broker.commands import (
    BatchDelete,
    CancelScheduled,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Request,
    Schedule,
    SetSessionState,
    UpdateDisposition,
)
from spillway.broker.effects import Deleted, Done, Failed, Messages, Renewed, Scheduled
from spillway.dialect.admission import admit
from spillway.dialect.nodes import REQUESTS_MAX, REQUESTS_UNREAD_MAX
from spillway.model import limits
from spillway.model.errors import MessageLockLost, MessageNotFound
from spillway.model.message import SCHEDULED, StoredMessage
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER
from tests.dialect.visit import NOW_MS, ROOT, Answer, Tracking, Visit, body_message, sas_token

TOKEN = uuid.uuid4()
OTHER_TOKEN = uuid.uuid4()
TOKENS = Array(UUIDS, [TOKEN, OTHER_TOKEN])

RENEW = "com.microsoft:renew-lock"
PEEK = "com.microsoft:peek-message"
SCHEDULE = "com.microsoft:schedule-message"
CANCEL = "com.microsoft:cancel-scheduled-message"
RECEIVE = "com.microsoft:receive-by-sequence-number"
UPDATE = "com.microsoft:update-disposition"
DELETE = "com.microsoft:batch-delete-messages"


class Desk(Visit):
    """A visit with its links to `q/$management`."""

    def __init__(self) -> None:
        super().__init__()
        self.authorised()
        self.out, self.back = self.pair("q/$management")

    def request(self, operation: object, body: object, out: Link | None = None) -> object:
        return self.ask(
            out or self.out, {"operation": operation, "type": "entity-mgmt"}, body, reply_to="q/$management"
        )

    def refused(self, operation: object, body: object) -> Answer:
        self.request(operation, body)
        answer = self.answer()
        assert not self.has_command(Request)
        text = answer.properties["statusDescription"]
        assert isinstance(text, str)
        assert re.search(r" TrackingId:\S+, SystemTracker:q/\$management, Timestamp:", text)
        return answer


def stored(number: int = 1) -> StoredMessage:
    return StoredMessage(admit(body_message(b"b%d" % number), Tracking()), number, NOW_MS)


def scheduled_message() -> bytes:
    return encode_message(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW_MS + 60_000)},
        properties=Properties(message_id="m"),
        body=encode_data(b"later"),
    )


# -- requests become commands --------------------------------------------------------------------------------


def test_8_1_renew_lock_asks_for_each_token_in_order() -> None:
    desk = Desk()
    desk.request(RENEW, {"lock-tokens": TOKENS})
    command = desk.command(RenewLocks)
    assert (command.path, command.lock_tokens) == ("q", [TOKEN.bytes_le, OTHER_TOKEN.bytes_le])


def test_8_2_peek_asks_from_a_number_on() -> None:
    desk = Desk()
    desk.request(PEEK, {"from-sequence-number": 7, "message-count": Int(20)})
    command = desk.command(Peek)
    assert (command.from_sequence_number, command.count) == (7, 20)


def test_8_2_a_peek_for_more_than_the_limit_is_cut() -> None:
    desk = Desk()
    desk.request(PEEK, {"from-sequence-number": -5, "message-count": Int(1_000_000)})
    command = desk.command(Peek)
    assert (command.from_sequence_number, command.count) == (0, limits.PEEK_MESSAGES_MAX)


def test_8_3_schedule_takes_encoded_messages_with_their_due_time() -> None:
    desk = Desk()
    raw = scheduled_message()
    desk.request(SCHEDULE, {"messages": [{"message-id": "m", "message": raw}]})
    command = desk.command(Schedule)
    assert [message.scheduled_ms for message in command.messages] == [NOW_MS + 60_000]
    assert command.messages_bytes == len(raw)


def test_8_3_a_message_without_its_due_time_is_refused() -> None:
    answer = Desk().refused(SCHEDULE, {"messages": [{"message": body_message()}]})
    assert answer.properties["statusCode"] == 400
    assert "x-opt-scheduled-enqueue-time" in str(answer.properties["statusDescription"])


def test_8_3_a_message_that_is_none_is_refused_as_on_a_link() -> None:
    answer = Desk().refused(SCHEDULE, {"messages": [{"message": b"junk"}]})
    assert answer.properties["errorCondition"] == "amqp:decode-error"


def test_8_4_cancel_names_the_numbers() -> None:
    desk = Desk()
    desk.request(CANCEL, {"sequence-numbers": Array(0x81, [3, 4, 3])})
    assert desk.command(CancelScheduled).sequence_numbers == [3, 4]


@pytest.mark.parametrize(("mode", "deletes"), [(UInt(1), False), (UInt(0), True), (UByte(1), False), (UByte(0), True)])
def test_8_5_receive_by_number_locks_or_deletes(mode: object, deletes: bool) -> None:
    desk = Desk()
    desk.request(RECEIVE, {"sequence-numbers": Array(0x81, [3]), "receiver-settle-mode": mode})
    command = desk.command(ReceiveDeferred)
    assert (command.sequence_numbers, command.deletes) == ([3], deletes)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("completed", COMPLETE), ("abandoned", ABANDON), ("defered", DEFER), ("suspended", DEAD_LETTER)],
)
def test_8_6_update_disposition_settles_by_token(status: str, kind: int) -> None:
    desk = Desk()
    desk.request(
        UPDATE,
        {
            "disposition-status": status,
            "lock-tokens": TOKENS,
            "deadletter-reason": "",
            "deadletter-description": "",
            "properties-to-modify": {"a": "x"},
        },
    )
    command = desk.command(UpdateDisposition)
    assert command.lock_tokens == [TOKEN.bytes_le, OTHER_TOKEN.bytes_le]
    settlement = command.settlement
    assert (settlement.kind, settlement.reason, settlement.description) == (kind, None, None)
    assert settlement.properties == {"a": b"\xa1\x01x"}


def test_8_6_a_dead_letter_brings_its_reason() -> None:
    desk = Desk()
    desk.request(
        UPDATE,
        {
            "disposition-status": "suspended",
            "lock-tokens": TOKENS,
            "deadletter-reason": "r",
            "deadletter-description": "d",
        },
    )
    settlement = desk.command(UpdateDisposition).settlement
    assert (settlement.reason, settlement.description) == ("r", "d")


def test_8_14_batch_delete_takes_a_count_and_a_time() -> None:
    desk = Desk()
    desk.request(DELETE, {"message-count": Int(9_999), "enqueued-time-utc": Timestamp(NOW_MS)})
    command = desk.command(BatchDelete)
    assert (command.count, command.before_ms) == (limits.BATCH_DELETE_MAX, NOW_MS)
    desk.request(DELETE, {"message-count": Int(1)})
    assert desk.command(BatchDelete).before_ms > NOW_MS


# -- what is wrong is named ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        (RENEW, {}, "lock-tokens"),
        (RENEW, {"lock-tokens": "x"}, "lock-tokens"),
        (RENEW, {"lock-tokens": [1]}, "lock-tokens"),
        (RENEW, {"lock-tokens": []}, "lock-tokens"),
        (RENEW, {"lock-tokens": [TOKEN] * (limits.LOCK_TOKENS_MAX + 1)}, "lock-tokens"),
        (RENEW, None, "body"),
        (RENEW, "text", "body"),
        (PEEK, {"from-sequence-number": "1", "message-count": Int(1)}, "from-sequence-number"),
        (PEEK, {"from-sequence-number": True, "message-count": Int(1)}, "from-sequence-number"),
        (PEEK, {"from-sequence-number": 1}, "message-count"),
        (PEEK, {"from-sequence-number": 1, "message-count": Int(0)}, "message-count"),
        (PEEK, {"from-sequence-number": 1, "message-count": 1.5}, "message-count"),
        (SCHEDULE, {"messages": {}}, "messages"),
        (SCHEDULE, {"messages": ["x"]}, "messages"),
        (SCHEDULE, {"messages": [{"message": "text"}]}, "message"),
        (CANCEL, {"sequence-numbers": ["1"]}, "sequence-numbers"),
        (CANCEL, {}, "sequence-numbers"),
        (RECEIVE, {"sequence-numbers": [1]}, "receiver-settle-mode"),
        (RECEIVE, {"sequence-numbers": [1], "receiver-settle-mode": UInt(2)}, "receiver-settle-mode"),
        (UPDATE, {"lock-tokens": [TOKEN]}, "disposition-status"),
        (UPDATE, {"lock-tokens": [TOKEN], "disposition-status": "eaten"}, "disposition-status"),
        (UPDATE, {"disposition-status": "completed"}, "lock-tokens"),
        (
            UPDATE,
            {"lock-tokens": [TOKEN], "disposition-status": "suspended", "deadletter-reason": 5},
            "deadletter-reason",
        ),
        (
            UPDATE,
            {"lock-tokens": [TOKEN], "disposition-status": "abandoned", "properties-to-modify": 5},
            "properties-to-modify",
        ),
        (DELETE, {"message-count": "1"}, "message-count"),
        (DELETE, {"message-count": Int(1), "enqueued-time-utc": "now"}, "enqueued-time-utc"),
        (5, {}, "operation"),
    ],
)
def test_a_field_of_a_wrong_type_is_an_argument_error_that_names_it(
    operation: object, body: object, field: str
) -> None:
    answer = Desk().refused(operation, body)
    assert answer.properties["statusCode"] == 400
    assert str(answer.properties["errorCondition"]).startswith("com.microsoft:argument-")
    assert f"'{field}'" in str(answer.properties["statusDescription"])


def test_a_session_id_that_is_none_is_refused() -> None:
    answer = Desk().refused(PEEK, {"from-sequence-number": 1, "message-count": Int(1), "session-id": 5})
    assert answer.properties["errorCondition"] == "com.microsoft:argument-error"


def test_an_unknown_operation_is_501_not_implemented() -> None:
    answer = Desk().refused("com.microsoft:make-coffee", {})
    assert answer.properties["statusCode"] == 501
    assert answer.properties["errorCondition"] == "amqp:not-implemented"


@pytest.mark.parametrize(
    ("rule", "key", "operation", "body"),
    [
        ("sender", "send-key", PEEK, {"from-sequence-number": 1, "message-count": Int(1)}),
        ("sender", "send-key", DELETE, {"message-count": Int(1)}),
        ("listener", "listen-key", SCHEDULE, {"messages": [{"message": scheduled_message()}]}),
        ("listener", "listen-key", CANCEL, {"sequence-numbers": [1]}),
    ],
)
def test_every_operation_asks_for_its_own_right(rule: str, key: str, operation: str, body: object) -> None:
    visit = Visit()
    visit.put_token(sas_token("sb://localhost:5672/q", rule, key))
    out, _ = visit.pair("q/$management")
    visit.ask(out, {"operation": operation}, body)
    answer = visit.answer()
    assert answer.properties["statusCode"] == 401
    assert answer.properties["errorCondition"] == "amqp:unauthorized-access"
    assert not visit.has_command(Request)


# -- answers are said ----------------------------------------------------------------------------------------


def answered(desk: Desk, operation: str, body: object) -> int:
    desk.request(operation, body)
    return desk.command(Request).request_id


def test_answers_carry_an_int_status_and_the_requests_id() -> None:
    desk = Desk()
    message_id = desk.request(CANCEL, {"sequence-numbers": [1]})
    assert desk.dispatch(Done(desk.command(Request).request_id))
    answer = desk.answer()
    assert answer.correlation_id == message_id
    assert answer.properties == {"statusCode": 200, "statusDescription": "OK"}
    assert type(answer.properties["statusCode"]) is Int
    assert answer.body == {}


def test_the_request_itself_is_settled_as_accepted_and_the_answer_comes_settled() -> None:
    desk = Desk()
    desk.events.clear()
    desk.request(CANCEL, {"sequence-numbers": [1]})
    assert isinstance(desk.take(DispositionReceived).state, Accepted)
    desk.dispatch(Done(desk.command(Request).request_id))
    assert desk.take(TransferReceived).settled


@pytest.mark.parametrize(("sent", "kept"), [(None, None), (b"", None), (b"x", b"x")])
def test_a_session_state_of_no_bytes_is_none(sent: bytes | None, kept: bytes | None) -> None:
    """Go writes nil so, and expects nil back."""
    desk = Desk()
    desk.request("com.microsoft:set-session-state", {"session-id": "s", "session-state": sent})
    assert desk.command(SetSessionState).state == kept


def test_8_1_the_new_ends_of_locks_are_an_array_of_timestamps() -> None:
    desk = Desk()
    desk.dispatch(Renewed(answered(desk, RENEW, {"lock-tokens": TOKENS}), [NOW_MS, NOW_MS + 1]))
    assert desk.answer().body == {"expirations": Array(0x83, [NOW_MS, NOW_MS + 1])}


def test_8_2_browsed_messages_are_whole_and_unlocked() -> None:
    desk = Desk()
    request = answered(desk, PEEK, {"from-sequence-number": 1, "message-count": Int(5)})
    waiting = stored(2)
    waiting.state = SCHEDULED
    desk.dispatch(Messages(request, [stored(1), waiting], [], 0))
    answer = desk.answer()
    assert isinstance(answer.body, dict)
    first, second = answer.body["messages"]
    assert set(first) == {"message"}
    annotations = decode_map(second["message"], split_sections(second["message"], DecodeBudget()).message_annotations)
    assert annotations["x-opt-message-state"] == 2
    assert "x-opt-locked-until" not in annotations


def test_8_2_browsing_may_leave_bodies_out() -> None:
    desk = Desk()
    body = {"from-sequence-number": 1, "message-count": Int(5), "omit-message-body": True}
    desk.dispatch(Messages(answered(desk, PEEK, body), [stored(1)], [], 0))
    answer = desk.answer()
    assert isinstance(answer.body, dict)
    payload = answer.body["messages"][0]["message"]
    assert split_sections(payload, DecodeBudget()).body_kind == 0


def test_8_2_nothing_left_is_204_with_an_empty_map() -> None:
    desk = Desk()
    desk.dispatch(Messages(answered(desk, PEEK, {"from-sequence-number": 1, "message-count": Int(5)}), [], [], 0))
    answer = desk.answer()
    assert (answer.properties["statusCode"], answer.body) == (204, {})


def test_8_3_scheduled_messages_are_told_their_numbers_as_longs() -> None:
    desk = Desk()
    desk.dispatch(Scheduled(answered(desk, SCHEDULE, {"messages": [{"message": scheduled_message()}]}), [5]))
    assert desk.answer().body == {"sequence-numbers": Array(0x81, [5])}


def test_8_5_messages_received_by_number_bring_a_uuid_to_settle_them_by() -> None:
    desk = Desk()
    request = answered(desk, RECEIVE, {"sequence-numbers": [1], "receiver-settle-mode": UInt(1)})
    desk.dispatch(Messages(request, [stored(1)], [TOKEN.bytes_le], NOW_MS + 60_000))
    answer = desk.answer()
    assert isinstance(answer.body, dict)
    (item,) = answer.body["messages"]
    assert item["lock-token"] == TOKEN
    annotations = decode_map(item["message"], split_sections(item["message"], DecodeBudget()).message_annotations)
    assert annotations["x-opt-locked-until"] == NOW_MS + 60_000


@pytest.mark.parametrize(("count", "status"), [(3, 200), (0, 204)])
def test_8_14_the_number_deleted_is_a_real_int(count: int, status: int) -> None:
    desk = Desk()
    desk.dispatch(Deleted(answered(desk, DELETE, {"message-count": Int(5)}), count))
    answer = desk.answer()
    assert answer.properties["statusCode"] == status
    assert answer.body == {"message-count": count}
    assert isinstance(answer.body, dict)
    assert type(answer.body["message-count"]) is Int


def test_8_14_a_failed_delete_still_carries_a_count() -> None:
    desk = Desk()
    desk.dispatch(Failed(answered(desk, DELETE, {"message-count": Int(5)}), MessageNotFound("none")))
    answer = desk.answer()
    assert (answer.properties["statusCode"], answer.body) == (404, {"message-count": 0})


def test_a_refusal_of_the_core_has_status_symbol_and_tracked_text() -> None:
    desk = Desk()
    desk.dispatch(Failed(answered(desk, RENEW, {"lock-tokens": TOKENS}), MessageLockLost("The lock is gone.")))
    answer = desk.answer()
    assert answer.properties["statusCode"] == 410
    assert answer.properties["errorCondition"] == "com.microsoft:message-lock-lost"
    assert type(answer.properties["errorCondition"]) is Symbol
    text = str(answer.properties["statusDescription"])
    assert text.startswith("The lock is gone. TrackingId:")
    assert answer.body == {}


def test_an_answer_for_a_link_that_has_gone_is_not_said() -> None:
    desk = Desk()
    request = answered(desk, CANCEL, {"sequence-numbers": [1]})
    desk.back.detach()
    desk.pump()
    assert not desk.dispatch(Done(request))
    assert request in desk.peer.drain_unregistered()


def test_request_numbers_are_registered_and_forgotten() -> None:
    desk = Desk()
    desk.peer.drain_registered()
    request = answered(desk, CANCEL, {"sequence-numbers": [1]})
    assert desk.peer.drain_registered() == [request]
    desk.dispatch(Done(request))
    assert desk.peer.drain_unregistered() == [request]
    assert not desk.dispatch(Done(request))


def test_management_of_an_entity_that_is_not_there_is_refused_when_it_attaches() -> None:
    visit = Visit("PLAIN", f"\x00{ROOT}\x00".encode() + b"c2VjcmV0LWtleQ==")
    condition, text = visit.refusal(visit.sender("missing/$management"))
    assert condition == "amqp:not-found"
    assert "The messaging entity 'sb://localhost/missing' could not be found" in text
    condition, _ = visit.refusal(visit.receiver("missing/$management"))
    assert condition == "amqp:not-found"


def test_two_management_nodes_in_one_session_answer_each_to_their_own() -> None:
    desk = Desk()
    desk.put_token(sas_token("sb://h/other"), "sb://h/other")
    desk.events.clear()
    out, back = desk.pair("other/$management")
    desk.request(CANCEL, {"sequence-numbers": [1]}, out=out)
    command = desk.command(CancelScheduled)
    assert command.path == "other"
    desk.dispatch(Done(command.request_id))
    assert desk.take(TransferReceived).link is back


def test_requests_under_way_are_bounded_and_fewer_while_the_client_does_not_read() -> None:
    desk = Desk()
    desk.peer.set_writable(False, NOW_MS)
    for _ in range(REQUESTS_UNREAD_MAX):
        desk.request(CANCEL, {"sequence-numbers": [1]})
    desk.request(CANCEL, {"sequence-numbers": [1]})
    answer = desk.answer()
    assert answer.properties["errorCondition"] == "com.microsoft:server-busy"
    desk.peer.set_writable(True, NOW_MS)
    for _ in range(REQUESTS_MAX - REQUESTS_UNREAD_MAX):
        desk.request(CANCEL, {"sequence-numbers": [1]})
    assert not desk.has(TransferReceived)
    desk.request(CANCEL, {"sequence-numbers": [1]})
    assert desk.answer().properties["errorCondition"] == "com.microsoft:server-busy"
