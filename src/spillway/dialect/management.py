"""`<entity>/$management`: requests become commands, answers become maps (docs/wire.md, "Management requests")."""

import uuid
from typing import Final

from spillway.amqp.codec import encode
from spillway.amqp.types import LONGS, Array, Int, Symbol, Timestamp
from spillway.broker.commands import (
    AddRule,
    BatchDelete,
    CancelScheduled,
    GetSessionState,
    ListRules,
    ListSessions,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    RenewSession,
    Request,
    Schedule,
    SetSessionState,
    UpdateDisposition,
)
from spillway.broker.effects import (
    Answer,
    Deleted,
    Failed,
    Messages,
    Renewed,
    Rules,
    Scheduled,
    SessionNames,
    SessionState,
)
from spillway.dialect.admission import admit
from spillway.dialect.delivery import encode_delivery, encode_without_body
from spillway.dialect.errors import Tracker
from spillway.dialect.fields import (
    read_count,
    read_items,
    read_long,
    read_longs,
    read_map,
    read_session_id,
    read_tokens,
)
from spillway.dialect.links import is_copy
from spillway.dialect.outcomes import dead_letter_text, encoded_properties
from spillway.dialect.rights import LISTEN, SEND
from spillway.dialect.rule_descriptions import read_rule, read_rule_name, rule_description
from spillway.model import limits
from spillway.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BrokerError,
    MessageLockLost,
    MessageNotFound,
    NotAllowed,
    NotImplementedHere,
)
from spillway.model.message import NEVER, Message
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, Settlement

RENEW_LOCK: Final = "com.microsoft:renew-lock"
PEEK: Final = "com.microsoft:peek-message"
SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"
RECEIVE: Final = "com.microsoft:receive-by-sequence-number"
UPDATE_DISPOSITION: Final = "com.microsoft:update-disposition"
BATCH_DELETE: Final = "com.microsoft:batch-delete-messages"
ADD_RULE: Final = "com.microsoft:add-rule"
LIST_RULES: Final = "com.microsoft:enumerate-rules"
REMOVE_RULE: Final = "com.microsoft:remove-rule"

GET_SESSION_STATE: Final = "com.microsoft:get-session-state"
SET_SESSION_STATE: Final = "com.microsoft:set-session-state"
RENEW_SESSION: Final = "com.microsoft:renew-session-lock"
LIST_SESSIONS: Final = "com.microsoft:get-message-sessions"
SESSION_OPERATIONS: Final = (GET_SESSION_STATE, SET_SESSION_STATE, RENEW_SESSION, LIST_SESSIONS)
SESSIONS_LISTED_MAX: Final = 1_000
AUDITED: Final = (BATCH_DELETE, ADD_RULE, REMOVE_RULE)  # what an operator may want to know who did it

STATUS_CODE: Final = "statusCode"
STATUS_DESCRIPTION: Final = "statusDescription"
ERROR_CONDITION: Final = "errorCondition"

OK: Final = 200
NO_CONTENT: Final = 204

# Room for the largest message in a schedule request, with others and the maps around them.
REQUEST_BYTES_MAX: Final = 1 * limits.MIB

CANCELLED_AT_ONCE: Final = 100  # scheduled messages: more of them in one request are a large one
# What they take in memory.
NUMBER_BYTES: Final = 44
TOKEN_BYTES: Final = 64

STRINGS: Final = 0xB1  # an array of str32
_TIMESTAMPS: Final = 0x83
_FAR_FUTURE_MS: Final = 253_402_300_800_000  # the year 10000: "no matter when it was enqueued"

# `suspended` is dead-letter, and `defered` is spelled so; both are what the SDKs send.
_STATUS_KINDS: Final = {
    "completed": COMPLETE,
    "abandoned": ABANDON,
    "defered": DEFER,
    "deferred": DEFER,
    "suspended": DEAD_LETTER,
}


class Pending:
    """A request under way: what is needed to say its answer."""

    def __init__(self, operation: str, correlation_id: object, path: str, omits_body: bool) -> None:
        self.operation = operation
        self.correlation_id = correlation_id
        self.path = path
        self.omits_body = omits_body


class ManagementResponse:
    def __init__(self, status: int, body: dict[object, object]) -> None:
        self.status = status
        self.body = body


def rights_for(operation: str) -> int:
    """The claim an operation needs. What is not known here is refused before anything else is looked at."""
    if operation == SCHEDULE or operation == CANCEL:
        return SEND
    if operation in (RENEW_LOCK, UPDATE_DISPOSITION, PEEK, RECEIVE, BATCH_DELETE) or operation in SESSION_OPERATIONS:
        return LISTEN
    if operation in (ADD_RULE, LIST_RULES, REMOVE_RULE):
        # Whoever receives from a subscription may say what it wants. The SDKs promise that their rule managers "require
        # only Listen claims", against Manage for the administration clients.
        return LISTEN
    raise NotImplementedHere(f"The operation '{operation[:100]}' is not known here.")


# -- requests ---------------------------------------------------------------------------------------------------


def is_large(command: Request) -> bool:
    """Whether its answer may have a megabyte or more, or what it asks for is long and may wait with the core."""
    if isinstance(command, CancelScheduled):
        return len(command.sequence_numbers) > CANCELLED_AT_ONCE
    return isinstance(command, (Peek, ReceiveDeferred, ListRules))


def weight_of(command: Request) -> int:
    """What a request takes in memory until it is answered, about."""
    if isinstance(command, (ReceiveDeferred, CancelScheduled)):
        return len(command.sequence_numbers) * NUMBER_BYTES
    if isinstance(command, (RenewLocks, UpdateDisposition)):
        return len(command.lock_tokens) * TOKEN_BYTES
    if isinstance(command, Schedule):
        return command.messages_bytes + len(command.messages) * limits.RESIDENT_MESSAGE_BYTES
    if isinstance(command, SetSessionState):
        return 0 if command.state is None else len(command.state)
    return 0


def read_command(operation: str, number: int, path: str, body: object, tracker: Tracker) -> Request:
    """The command with this request number; `BrokerError` names the field that is wrong."""
    fields = read_map(body, "body")
    session_id = read_session_id(fields)
    if operation == RENEW_LOCK:
        return RenewLocks(number, path, read_tokens(fields, "lock-tokens"), session_id)
    if operation == UPDATE_DISPOSITION:
        tokens = list(dict.fromkeys(read_tokens(fields, "lock-tokens")))
        return UpdateDisposition(number, path, tokens, _read_settlement(fields), session_id)
    if operation == PEEK:
        first = read_long(fields, "from-sequence-number")
        count = read_count(fields, "message-count", limits.PEEK_MESSAGES_MAX)
        return Peek(number, path, max(first, 0), count, session_id)
    if operation == SCHEDULE:
        return _read_schedule(number, path, fields, tracker)
    if operation == CANCEL:
        return CancelScheduled(number, path, _read_numbers(fields))
    if operation == RECEIVE:
        mode = read_long(fields, "receiver-settle-mode")
        if mode != 0 and mode != 1:
            raise ArgumentError("'receiver-settle-mode' must be 1 (lock) or 0 (delete).")
        return ReceiveDeferred(number, path, _read_numbers(fields), mode == 0, session_id)
    if operation == BATCH_DELETE:
        count = read_count(fields, "message-count", limits.BATCH_DELETE_MAX)
        before_ms = _FAR_FUTURE_MS
        if fields.get("enqueued-time-utc") is not None:
            before_ms = read_long(fields, "enqueued-time-utc")
        return BatchDelete(number, path, count, before_ms)
    if operation in SESSION_OPERATIONS:
        return _read_session_command(operation, number, path, fields, session_id)
    return _read_rule_command(operation, number, path, fields)


def _read_session_command(
    operation: str, number: int, path: str, fields: dict[object, object], session_id: str | None
) -> Request:
    if operation == LIST_SESSIONS:
        since_ms = read_long(fields, "last-updated-time")
        skip = read_long(fields, "skip")
        if skip < 0 or since_ms < 0:
            raise ArgumentOutOfRange("'skip' and 'last-updated-time' must not be negative.")
        top = read_count(fields, "top", SESSIONS_LISTED_MAX)
        # The far future asks for sessions with messages or a state, a real time for those whose state changed since.
        return ListSessions(number, path, NEVER if since_ms >= _FAR_FUTURE_MS else max(since_ms, 1), skip, top)
    if session_id is None:
        raise ArgumentError("'session-id' must be a string.")
    if operation == GET_SESSION_STATE:
        return GetSessionState(number, path, session_id)
    if operation == RENEW_SESSION:
        return RenewSession(number, path, session_id)
    assert operation == SET_SESSION_STATE, "rights_for knows the same operations"
    state = fields.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentError("'session-state' must be binary, or null to clear it.")
    if state is not None and len(state) > limits.MESSAGE_BYTES_MAX:
        raise ArgumentOutOfRange(f"'session-state' has at most {limits.MESSAGE_BYTES_MAX} bytes.")
    # Go writes nil as no bytes, and Azure reads no bytes as nil.
    return SetSessionState(number, path, session_id, bytes(state) if state else None)


def _read_rule_command(operation: str, number: int, path: str, fields: dict[object, object]) -> Request:
    if operation == ADD_RULE:
        return AddRule(number, path, read_rule(fields))
    if operation == REMOVE_RULE:
        return RemoveRule(number, path, read_rule_name(fields))
    assert operation == LIST_RULES, "rights_for knows the same operations"
    skip = read_long(fields, "skip")
    if skip < 0:
        raise ArgumentOutOfRange("'skip' must not be negative.")
    return ListRules(number, path, skip, read_count(fields, "top", limits.RULES_LISTED_MAX))


def read_omits_body(body: object) -> bool:
    """JavaScript can ask to browse without bodies."""
    return isinstance(body, dict) and body.get("omit-message-body") is True


def _read_numbers(fields: dict[object, object]) -> list[int]:
    """Each number once, in the order asked."""
    return list(dict.fromkeys(read_longs(fields, "sequence-numbers", limits.SEQUENCE_NUMBERS_MAX)))


def _read_settlement(fields: dict[object, object]) -> Settlement:
    status = fields.get("disposition-status")
    kind = _STATUS_KINDS.get(status) if isinstance(status, str) else None
    if kind is None:
        raise ArgumentError("'disposition-status' must be 'completed', 'abandoned', 'defered' or 'suspended'.")
    properties: dict[str, bytes] | None = None
    if fields.get("properties-to-modify") is not None:
        changed = read_map(fields["properties-to-modify"], "properties-to-modify")
        properties = encoded_properties(changed, "properties-to-modify")
    if kind != DEAD_LETTER:
        return Settlement(kind, None, None, properties)
    # Python sends an empty string for "none".
    reason = dead_letter_text(fields.get("deadletter-reason"), "deadletter-reason") or None
    description = dead_letter_text(fields.get("deadletter-description"), "deadletter-description") or None
    return Settlement(kind, reason, description, properties)


def _read_schedule(number: int, path: str, fields: dict[object, object], tracker: Tracker) -> Request:
    messages: list[Message] = []
    size = 0
    for item in read_items(fields, "messages", limits.BATCH_MESSAGES_MAX):
        encoded = read_map(item, "messages").get("message")
        if not isinstance(encoded, bytes):
            raise ArgumentError("'message' in each of 'messages' must be binary: an encoded AMQP message.")
        message = admit(encoded, tracker)
        if message.scheduled_ms == NEVER:
            raise ArgumentError("A message to schedule needs the annotation 'x-opt-scheduled-enqueue-time'.")
        message.is_ping = False  # each gets its number, so each is stored
        messages.append(message)
        size += len(encoded)
    return Schedule(number, path, messages, size)


# -- answers ------------------------------------------------------------------------------------------------------


def response_to(pending: Pending, answer: Answer) -> ManagementResponse:
    """The map that says it. A `Failed` is said by `failure_body` and `error_properties`."""
    assert not isinstance(answer, Failed), "refusals have no map of their own"
    if isinstance(answer, Renewed) and pending.operation == RENEW_SESSION:
        return ManagementResponse(OK, {"expiration": Timestamp(answer.locked_until_ms[0])})
    if isinstance(answer, SessionState):
        return ManagementResponse(OK, {"session-state": answer.state})
    if isinstance(answer, SessionNames):
        if not answer.names:
            return ManagementResponse(NO_CONTENT, {})
        return ManagementResponse(OK, {"skip": Int(len(answer.names)), "sessions-ids": Array(STRINGS, answer.names)})
    if isinstance(answer, Renewed):
        times = [Timestamp(ms) for ms in answer.locked_until_ms]
        return ManagementResponse(OK, {"expirations": Array(_TIMESTAMPS, times)})
    if isinstance(answer, Messages):
        return _messages_response(pending, answer)
    if isinstance(answer, Scheduled):
        return ManagementResponse(OK, {"sequence-numbers": Array(LONGS, answer.sequence_numbers)})
    if isinstance(answer, Rules):
        return _rules_response(answer)
    if isinstance(answer, Deleted):
        return ManagementResponse(OK if answer.count else NO_CONTENT, {"message-count": Int(answer.count)})
    return ManagementResponse(OK, {})


def _messages_response(pending: Pending, answer: Messages) -> ManagementResponse:
    if not answer.messages:
        return ManagementResponse(NO_CONTENT, {})
    items: list[object] = []
    copied = is_copy(pending.path)
    for index, stored in enumerate(answer.messages):
        item: dict[object, object] = {}
        if answer.lock_tokens:
            token = answer.lock_tokens[index]
            item["message"] = encode_delivery(stored, token, answer.locked_until_ms, copied)
            item["lock-token"] = uuid.UUID(bytes_le=token)
        elif pending.omits_body:
            item["message"] = encode_without_body(stored, copied)
        else:
            item["message"] = encode_delivery(stored, b"", 0, copied)
        items.append(item)
    return ManagementResponse(OK, {"messages": items})


def _rules_response(answer: Rules) -> ManagementResponse:
    """As many as fit, one at least."""
    items: list[object] = []
    size = 0
    for rule in answer.rules:
        description = rule_description(rule)
        size += len(encode(description))
        if items and size > limits.RULES_LISTED_BYTES_MAX:
            break
        items.append({"rule-description": description})
    return ManagementResponse(OK, {"rules": items}) if items else ManagementResponse(NO_CONTENT, {})


def response_of_nothing(operation: str, path: str) -> ManagementResponse:
    """From where no message ever is. `BrokerError` where one was asked for."""
    if operation == PEEK:
        return ManagementResponse(NO_CONTENT, {})
    if operation == BATCH_DELETE:
        return ManagementResponse(NO_CONTENT, {"message-count": Int(0)})
    if operation == RECEIVE:
        raise MessageNotFound(f"'{path}' has no deferred message.")
    if operation == RENEW_LOCK or operation == UPDATE_DISPOSITION:
        raise MessageLockLost(f"'{path}' has no message, so none that is locked.")
    raise NotAllowed(f"'{path}' is a dead-letter queue: this is not for it.")


def failure_body(operation: str) -> dict[object, object]:
    """Empty; but the count of a batch delete is read even when it failed."""
    return {"message-count": Int(0)} if operation == BATCH_DELETE else {}


def status_properties(status: int) -> dict[object, object]:
    return {STATUS_CODE: Int(status), STATUS_DESCRIPTION: "OK" if status == OK else "No Content"}


def error_properties(error: BrokerError, text: str) -> dict[object, object]:
    return {
        STATUS_CODE: Int(error.status_code),
        STATUS_DESCRIPTION: text,
        ERROR_CONDITION: Symbol(error.said_condition()),
    }
