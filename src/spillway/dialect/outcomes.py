"""Settlement over the link, both directions (docs/wire.md, "Settlement").

The client says an AMQP delivery state and waits for its echo; the broker knows settlements. The echo repeats the
outcome that was asked for, and a dead-letter is echoed as `rejected` without an error: with one, both SDKs read it as
"settlement refused" (docs/wire.md, "The same outcome back" and "Dead letters are echoed without an error").
"""

import uuid
from typing import Final

from spillway.amqp.codec import encode
from spillway.amqp.errors import AmqpError
from spillway.amqp.performatives import ACCEPTED, RELEASED, Accepted, DeliveryState, Modified, Rejected, Released
from spillway.dialect.annotations import DEAD_LETTER_CONDITION, DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from spillway.model import limits
from spillway.model.errors import ArgumentError, ArgumentOutOfRange, NotImplementedHere
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement

_COMPLETED: Final = Settlement(COMPLETE)
_RELEASED: Final = Settlement(RELEASE)

_ABANDONED_ECHO: Final = Modified(True, False, None)
_DEFERRED_ECHO: Final = Modified(True, True, None)
_DEAD_LETTERED_ECHO: Final = Rejected(None)

PROPERTY_NAME_CHARS_MAX: Final = 1_024


def settlement_of(state: DeliveryState) -> Settlement:
    """What the client asks for; `BrokerError` if it cannot be done. The caller has sifted out `received`."""
    if isinstance(state, Accepted):
        return _COMPLETED
    if isinstance(state, Modified):
        # JavaScript leaves delivery-failed out, so undeliverable-here alone tells a defer from an abandon.
        kind = DEFER if state.undeliverable_here else ABANDON
        return Settlement(kind, None, None, encoded_properties(state.message_annotations, "message-annotations"))
    if isinstance(state, Rejected):
        return _dead_letter(state.error)
    if isinstance(state, Released):
        return _RELEASED
    raise NotImplementedHere("Transactions are not supported: settle without a transactional state.")


def echo_of(kind: int) -> DeliveryState:
    """The outcome that tells the client: done as asked."""
    if kind == COMPLETE:
        return ACCEPTED
    if kind == ABANDON:
        return _ABANDONED_ECHO
    if kind == DEFER:
        return _DEFERRED_ECHO
    if kind == DEAD_LETTER:
        return _DEAD_LETTERED_ECHO
    assert kind == RELEASE, f"settlement {kind} is none we know"
    return RELEASED


def _dead_letter(error: AmqpError | None) -> Settlement:
    if error is None or error.condition != DEAD_LETTER_CONDITION or error.info is None:
        return Settlement(DEAD_LETTER)
    info = dict(error.info)
    reason = dead_letter_text(info.pop(DEAD_LETTER_REASON, None), DEAD_LETTER_REASON)
    description = dead_letter_text(info.pop(DEAD_LETTER_DESCRIPTION, None), DEAD_LETTER_DESCRIPTION)
    return Settlement(DEAD_LETTER, reason, description, encoded_properties(info, "info"))


def dead_letter_text(value: object, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentError(f"'{field}' must be a string.")
    if len(value) > limits.DEAD_LETTER_TEXT_CHARS_MAX:
        raise ArgumentOutOfRange(
            f"'{field}' has {len(value)} characters; at most {limits.DEAD_LETTER_TEXT_CHARS_MAX} are allowed."
        )
    return str(value)


def encoded_properties(values: dict[object, object] | None, field: str) -> dict[str, bytes] | None:
    """Properties to modify, as the broker keeps them: encoded one by one. Only what a property may hold [3.2.5]."""
    if not values:
        return None
    properties: dict[str, bytes] = {}
    total = 0
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"The keys of '{field}' must be names of properties.")
        if len(name) > PROPERTY_NAME_CHARS_MAX:
            raise ArgumentOutOfRange(
                f"A property name in '{field}' has more than {PROPERTY_NAME_CHARS_MAX} characters."
            )
        if not is_simple(value):
            raise ArgumentError(
                f"The property '{name}' in '{field}' must have a simple value, not a list, map or array."
            )
        encoded = encode(value)
        if len(encoded) > limits.PROPERTY_BYTES_MAX:
            raise ArgumentOutOfRange(
                f"The property '{name}' has {len(encoded)} bytes; at most {limits.PROPERTY_BYTES_MAX} are allowed."
            )
        total += len(name) + len(encoded)
        properties[str(name)] = encoded
    if total > limits.PROPERTIES_BYTES_MAX:
        raise ArgumentOutOfRange(
            f"The properties in '{field}' have {total} bytes; at most {limits.PROPERTIES_BYTES_MAX} are allowed."
        )
    return properties


def is_simple(value: object) -> bool:
    """Application properties hold primitive values only, and no collections."""
    return value is None or isinstance(value, (str, bytes, bool, int, float, uuid.UUID))
