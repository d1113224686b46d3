"""The messages of a random play: good ones, odd ones that must arrive exactly or be refused, and bad ones that nobody
takes. A digest says whether what arrived is what was sent, with the types that AMQP has."""

import datetime
import hashlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from spillway.client.message import ReceivedMessage

GOOD: Final = "good"
DIGEST_CHARS: Final = 16
TTL_MS_MAX: Final = 5 * 86_400_000  # a longer one is the entity's, which a message without one gets
# Annotations that the service puts on a message, or that say when it is due.
OF_THE_SERVICE: Final = ("x-opt-enqueue", "x-opt-sequence", "x-opt-scheduled", "x-opt-locked", "x-opt-message-state",
                         "x-opt-partition")  # fmt: skip
KINDS: dict[str, Callable[[str, str | None], Any]] = {}


def _kind(name: str) -> Callable[[Callable[[str, str | None], Any]], Callable[[str, str | None], Any]]:
    def add(make: Callable[[str, str | None], Any]) -> Callable[[str, str | None], Any]:
        KINDS[name] = make
        return make

    return add


def make_message(kind: str, identity: str, session_id: str | None) -> Any:
    """What a caller hands to the sender; `identity` begins its message id."""
    return KINDS[kind](identity, session_id)


@_kind(GOOD)
def _good(identity: str, session_id: str | None) -> Any:
    return ServiceBusMessage(
        f"body of {identity}",
        message_id=identity,
        session_id=session_id,
        subject="good",
        content_type="text/plain",
        correlation_id=identity[::-1],
        application_properties={"text": "väl", "number": 7, "half": 0.5, "is": True},
        time_to_live=datetime.timedelta(days=1),
    )


# -- bad: nobody takes them -------------------------------------------------------------------------------------------


@_kind("long-id")
def _long_id(identity: str, session_id: str | None) -> Any:
    """The SDK's own class refuses such an id when it is set; what is below it does not."""
    return _raw(f"{identity}-".ljust(200, "x"), session_id)


@_kind("no-session")
def _no_session(identity: str, session_id: str | None) -> Any:
    return ServiceBusMessage(b"no session id", message_id=identity)


@_kind("long-session")
def _long_session(identity: str, session_id: str | None) -> Any:
    return _raw(identity, "s" * 200)


@_kind("too-large")
def _too_large(identity: str, session_id: str | None) -> Any:
    return ServiceBusMessage(b"x" * 300_000, message_id=identity, session_id=session_id)


# -- odd: exact, or refused --------------------------------------------------------------------------------------------


@_kind("many-properties")
def _many_properties(identity: str, session_id: str | None) -> Any:
    return _with(identity, session_id, {f"p{number:05}": "x" * 990 for number in range(65)})


@_kind("dates")
def _dates(identity: str, session_id: str | None) -> Any:
    day = datetime.datetime(2027, 1, 31, tzinfo=datetime.UTC)
    return _with(identity, session_id, {f"d{number}": day for number in range(1_100)})


@_kind("bytearray")
def _bytearray(identity: str, session_id: str | None) -> Any:
    return _with(identity, session_id, {"buffer": bytearray(b"\x01\x02"), "after": "text"})


@_kind("decimal")
def _decimal(identity: str, session_id: str | None) -> Any:
    return _with(identity, session_id, {"price": Decimal("12.34")})


@_kind("number-annotation")
def _number_annotation(identity: str, session_id: str | None) -> Any:
    message = _raw(identity, session_id)
    message.annotations = {7: "seven", "x-opt-text": "text"}
    return message


@_kind("number-keys")
def _number_keys(identity: str, session_id: str | None) -> Any:
    return _raw(identity, session_id, value_body={1: "one", b"two": 2})


@_kind("tuple-body")
def _tuple_body(identity: str, session_id: str | None) -> Any:
    return _raw(identity, session_id, value_body=("one", 2))


@_kind("no-text")
def _no_text(identity: str, session_id: str | None) -> Any:
    return _raw(identity, session_id, value_body=[b"\xff\xfe", {"key": b"\xc3\x28"}])


BAD: Final = ("long-id", "no-session", "long-session", "too-large")
SESSION_KINDS: Final = ("no-session", "long-session")  # bad where sessions are required, and only there
ODD: Final = tuple(name for name in KINDS if name not in (GOOD, *BAD))
# Nobody else than the primary knows that these are bad.
BAD_AT_HOME_ONLY: Final = ("no-session", "long-session")


def _with(identity: str, session_id: str | None, properties: dict[Any, Any]) -> Any:
    return ServiceBusMessage("odd", message_id=identity, session_id=session_id, application_properties=properties)


def _raw(identity: str, session_id: str | None, **body: Any) -> Any:
    properties: dict[str, Any] = {"message_id": identity}
    if session_id is not None:
        properties["group_id"] = session_id
    return AmqpAnnotatedMessage(**(body or {"data_body": [b"raw"]}), properties=properties)


# -- what it is --------------------------------------------------------------------------------------------------------


def identity_of(message: Any) -> str:
    """The message id of what a caller sends."""
    raw = getattr(message, "raw_amqp_message", message)
    return str(raw.properties.message_id)


def digest_of_sent(message: Any) -> str | None:
    """The digest of the SDK's own encoding of a message; None if it has none."""
    # There is no other way to see what the SDK puts on the wire.
    from azure.servicebus._pyamqp._encode import encode_payload
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    raw = getattr(message, "raw_amqp_message", message)
    try:
        encoded = encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw))
        return digest(ReceivedMessage(bytes(encoded)))
    except Exception:  # the encoder's own errors have no common class
        return None


def digest(message: ReceivedMessage) -> str:
    """Body, properties and application properties, with their types, and the sender's own annotations."""
    from spillway.amqp.message import decode_sequences

    properties = message.properties
    ttl_ms = message.header.ttl_ms
    own = {key: value for key, value in message.annotations.items() if not str(key).startswith(OF_THE_SERVICE)}
    said = (
        message.body,
        _typed(message.value),
        [_typed(item) for item in decode_sequences(message.raw, message.sections)],
        [_typed(getattr(properties, name)) for name in ("message_id", "subject", "correlation_id", "content_type")],
        properties.group_id,
        ttl_ms if ttl_ms is not None and ttl_ms <= TTL_MS_MAX else None,
        sorted(map(str, map(_typed, message.application_properties.items()))),
        sorted(map(str, map(_typed, own.items()))),
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()[:DIGEST_CHARS]


def _typed(value: object) -> object:
    """A value with the type of every part of it: an int is not a long."""
    if isinstance(value, dict):
        return sorted((str(_typed(key)), str(_typed(each))) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return [_typed(each) for each in value]
    return type(value).__name__, repr(value)
