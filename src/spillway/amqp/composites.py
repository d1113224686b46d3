"""Decoded lists to performatives, termini and delivery states: which field has which type, and which must be there.

Bytes that are no AMQP are a decode error, found before; here a field that is missing, of a wrong type or out of range
is `amqp:invalid-field`. Symbols and strings are taken for each other in text fields: SDKs mix them.
"""

from collections.abc import Callable
from typing import Final

from spillway.amqp.codec import Composite
from spillway.amqp.errors import CONNECTION, INVALID_FIELD, AmqpError, DecodeError, ProtocolError
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    UINT_MAX,
    USHORT_MAX,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Detach,
    Discharge,
    Disposition,
    End,
    Flow,
    Map,
    Modified,
    Open,
    Received,
    Rejected,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Terminus,
    TransactionalState,
    Transfer,
)
from spillway.amqp.types import (
    Array,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)


class Fields:
    """The list of a composite, read field by field. Missing trailing fields are null [1.4]."""

    def __init__(self, name: str, values: list[object], count_max: int) -> None:
        if len(values) > count_max:
            # SDKs unpack the list into a fixed number of fields: what they cannot read we do not take.
            raise DecodeError(f"{name} has more than {count_max} fields")
        self.name = name
        self.values = values

    def at(self, index: int) -> object:
        return self.values[index] if index < len(self.values) else None

    def wrong(self, index: int) -> ProtocolError:
        return ProtocolError(CONNECTION, INVALID_FIELD, f"{self.name}: field {index} is missing or of a wrong type")

    def text(self, index: int) -> str | None:
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, str) or isinstance(value, Char):
            raise self.wrong(index)
        return str(value)

    def need_text(self, index: int) -> str:
        value = self.text(index)
        if value is None:
            raise self.wrong(index)
        return value

    def binary(self, index: int) -> bytes | None:
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, bytes) or isinstance(value, (Decimal32, Decimal64, Decimal128)):
            raise self.wrong(index)
        return value

    def need_binary(self, index: int) -> bytes:
        value = self.binary(index)
        if value is None:
            raise self.wrong(index)
        return value

    def uint(self, index: int) -> int | None:
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, UInt):
            raise self.wrong(index)
        return int(value)

    def uint_or(self, index: int, default: int) -> int:
        value = self.uint(index)
        return default if value is None else value

    def need_uint(self, index: int) -> int:
        value = self.uint(index)
        if value is None:
            raise self.wrong(index)
        return value

    def ushort(self, index: int) -> int | None:
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, UShort):
            raise self.wrong(index)
        return int(value)

    def ulong(self, index: int) -> int | None:
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, ULong):
            raise self.wrong(index)
        return int(value)

    def ubyte(self, index: int, limit: int) -> int | None:
        """A choice: a ubyte up to `limit`."""
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, UByte) or value > limit:
            raise self.wrong(index)
        return int(value)

    def ubyte_or(self, index: int, limit: int, default: int) -> int:
        value = self.ubyte(index, limit)
        return default if value is None else value

    def boolean(self, index: int) -> bool | None:
        value = self.at(index)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(index)

    def flag(self, index: int) -> bool:
        """A boolean whose default is false."""
        return self.boolean(index) is True

    def need_boolean(self, index: int) -> bool:
        value = self.boolean(index)
        if value is None:
            raise self.wrong(index)
        return value

    def mapping(self, index: int) -> Map | None:
        value = self.at(index)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(index)
        return value

    def names(self, index: int) -> list[str] | None:
        """Symbols: none, one by itself, or an array [1.4: multiple]."""
        value = self.at(index)
        if value is None:
            return None
        if isinstance(value, Symbol):
            return [str(value)]
        if not isinstance(value, list) or (isinstance(value, Array) and value.descriptor is not None):
            raise self.wrong(index)
        names: list[str] = []
        for name in value:
            if not isinstance(name, str) or isinstance(name, Char):
                raise self.wrong(index)
            names.append(str(name))
        return names

    def described(self, index: int) -> Described | None:
        value = self.at(index)
        if value is None or isinstance(value, Described):
            return value
        raise self.wrong(index)

    def error(self, index: int) -> AmqpError | None:
        value = self.described(index)
        if value is None:
            return None
        if code_of(value.descriptor) != AmqpError.code:
            raise self.wrong(index)
        fields = Fields("error", list_of(value), 3)
        return AmqpError(fields.need_text(0), fields.text(1), fields.mapping(2))

    def state(self, index: int) -> DeliveryState | None:
        value = self.described(index)
        if value is None:
            return None
        state = composite_from(value)
        if not isinstance(state, DeliveryState):
            raise self.wrong(index)
        return state

    def source(self, index: int) -> Source | None:
        value = self.described(index)
        if value is None:
            return None
        source = composite_from(value)
        if not isinstance(source, Source):
            raise self.wrong(index)
        return source

    def target(self, index: int) -> Terminus | None:
        value = self.described(index)
        if value is None:
            return None
        target = composite_from(value)
        if not isinstance(target, (Target, Coordinator)):
            raise self.wrong(index)
        return target


def list_of(value: Described) -> list[object]:
    """The list inside a described value; an array is no list."""
    if not isinstance(value.value, list) or isinstance(value.value, Array):
        raise DecodeError("a described list is not a list")
    return value.value


def code_of(descriptor: object) -> int:
    """The number of a descriptor in either form, -1 if it is none we know. Exact: no prefixes, no other types."""
    if isinstance(descriptor, ULong):
        return int(descriptor)
    if isinstance(descriptor, Symbol):
        return _CODES.get(str(descriptor), -1)
    return -1


def composite_from(value: Described) -> Composite:
    """A performative, terminus, delivery state or transaction command from its described list."""
    code = code_of(value.descriptor)
    builder = _BUILDERS.get(code)
    if builder is None:
        raise DecodeError(f"unknown descriptor {str(value.descriptor)[:64]!r}")
    return builder(list_of(value))


def build(code: int, values: list[object]) -> Composite | None:
    """The composite of a descriptor code, None if there is no such."""
    builder = _BUILDERS.get(code)
    return None if builder is None else builder(values)


def _open(values: list[object]) -> Composite:
    f = Fields("open", values, 10)
    channel_max = f.ushort(3)
    return Open(
        f.need_text(0),
        f.text(1),
        f.uint_or(2, UINT_MAX),
        USHORT_MAX if channel_max is None else channel_max,
        f.uint(4),
        f.names(5),
        f.names(6),
        f.names(7),
        f.names(8),
        f.mapping(9),
    )


def _begin(values: list[object]) -> Composite:
    f = Fields("begin", values, 8)
    return Begin(
        f.ushort(0),
        f.need_uint(1),
        f.need_uint(2),
        f.need_uint(3),
        f.uint_or(4, UINT_MAX),
        f.names(5),
        f.names(6),
        f.mapping(7),
    )


def _attach(values: list[object]) -> Composite:
    f = Fields("attach", values, 14)
    return Attach(
        f.need_text(0),
        f.need_uint(1),
        f.need_boolean(2),
        f.ubyte_or(3, 2, 2),
        f.ubyte_or(4, 1, 0),
        f.source(5),
        f.target(6),
        f.mapping(7),
        f.flag(8),
        f.uint(9),
        f.ulong(10),
        f.names(11),
        f.names(12),
        f.mapping(13),
    )


def _flow(values: list[object]) -> Composite:
    f = Fields("flow", values, 11)
    return Flow(
        f.uint(0),
        f.need_uint(1),
        f.need_uint(2),
        f.need_uint(3),
        f.uint(4),
        f.uint(5),
        f.uint(6),
        f.uint(7),
        f.flag(8),
        f.flag(9),
        f.mapping(10),
    )


def _transfer(values: list[object]) -> Composite:
    f = Fields("transfer", values, 11)
    tag = f.binary(2)
    return Transfer(
        f.need_uint(0),
        f.uint(1),
        tag,
        f.uint(3),
        f.boolean(4),
        f.flag(5),
        f.ubyte(6, 1),
        f.state(7),
        f.flag(8),
        f.flag(9),
        f.flag(10),
    )


def _disposition(values: list[object]) -> Composite:
    f = Fields("disposition", values, 6)
    return Disposition(f.need_boolean(0), f.need_uint(1), f.uint(2), f.flag(3), f.state(4), f.flag(5))


def _detach(values: list[object]) -> Composite:
    f = Fields("detach", values, 3)
    return Detach(f.need_uint(0), f.flag(1), f.error(2))


def _end(values: list[object]) -> Composite:
    return End(Fields("end", values, 1).error(0))


def _close(values: list[object]) -> Composite:
    return Close(Fields("close", values, 1).error(0))


def _received(values: list[object]) -> Composite:
    f = Fields("received", values, 2)
    offset = f.ulong(1)
    if offset is None:
        raise f.wrong(1)
    return Received(f.need_uint(0), offset)


def _accepted(values: list[object]) -> Composite:
    Fields("accepted", values, 0)
    return ACCEPTED


def _rejected(values: list[object]) -> Composite:
    return Rejected(Fields("rejected", values, 1).error(0))


def _released(values: list[object]) -> Composite:
    Fields("released", values, 0)
    return RELEASED


def _modified(values: list[object]) -> Composite:
    f = Fields("modified", values, 3)
    return Modified(f.flag(0), f.flag(1), f.mapping(2))


def _source(values: list[object]) -> Composite:
    f = Fields("source", values, 11)
    expiry_policy = f.text(2)
    return Source(
        f.text(0),
        f.uint_or(1, 0),
        "session-end" if expiry_policy is None else expiry_policy,
        f.uint_or(3, 0),
        f.flag(4),
        f.mapping(5),
        f.text(6),
        f.mapping(7),
        f.state(8),
        f.names(9),
        f.names(10),
    )


def _target(values: list[object]) -> Composite:
    f = Fields("target", values, 7)
    expiry_policy = f.text(2)
    return Target(
        f.text(0),
        f.uint_or(1, 0),
        "session-end" if expiry_policy is None else expiry_policy,
        f.uint_or(3, 0),
        f.flag(4),
        f.mapping(5),
        f.names(6),
    )


def _coordinator(values: list[object]) -> Composite:
    return Coordinator(Fields("coordinator", values, 1).names(0))


def _declare(values: list[object]) -> Composite:
    return Declare(Fields("declare", values, 1).described(0))


def _discharge(values: list[object]) -> Composite:
    f = Fields("discharge", values, 2)
    return Discharge(f.need_binary(0), f.flag(1))


def _declared(values: list[object]) -> Composite:
    return Declared(Fields("declared", values, 1).need_binary(0))


def _transactional_state(values: list[object]) -> Composite:
    f = Fields("transactional-state", values, 2)
    return TransactionalState(f.need_binary(0), f.state(1))


def _sasl_mechanisms(values: list[object]) -> Composite:
    f = Fields("sasl-mechanisms", values, 1)
    names = f.names(0)
    if names is None:
        raise f.wrong(0)
    return SaslMechanisms(names)


def _sasl_init(values: list[object]) -> Composite:
    f = Fields("sasl-init", values, 3)
    return SaslInit(f.need_text(0), f.binary(1), f.text(2))


def _sasl_challenge(values: list[object]) -> Composite:
    return SaslChallenge(Fields("sasl-challenge", values, 1).need_binary(0))


def _sasl_response(values: list[object]) -> Composite:
    return SaslResponse(Fields("sasl-response", values, 1).need_binary(0))


def _sasl_outcome(values: list[object]) -> Composite:
    f = Fields("sasl-outcome", values, 2)
    outcome = f.ubyte(0, 4)
    if outcome is None:
        raise f.wrong(0)
    return SaslOutcome(outcome, f.binary(1))


_BUILDERS: Final[dict[int, Callable[[list[object]], Composite]]] = {
    0x10: _open,
    0x11: _begin,
    0x12: _attach,
    0x13: _flow,
    0x14: _transfer,
    0x15: _disposition,
    0x16: _detach,
    0x17: _end,
    0x18: _close,
    0x23: _received,
    0x24: _accepted,
    0x25: _rejected,
    0x26: _released,
    0x27: _modified,
    0x28: _source,
    0x29: _target,
    0x30: _coordinator,
    0x31: _declare,
    0x32: _discharge,
    0x33: _declared,
    0x34: _transactional_state,
    0x40: _sasl_mechanisms,
    0x41: _sasl_init,
    0x42: _sasl_challenge,
    0x43: _sasl_response,
    0x44: _sasl_outcome,
}

# The symbolic descriptors of the specification; message sections are here too, so that there is one list.
_CODES: Final[dict[str, int]] = {
    "amqp:open:list": 0x10,
    "amqp:begin:list": 0x11,
    "amqp:attach:list": 0x12,
    "amqp:flow:list": 0x13,
    "amqp:transfer:list": 0x14,
    "amqp:disposition:list": 0x15,
    "amqp:detach:list": 0x16,
    "amqp:end:list": 0x17,
    "amqp:close:list": 0x18,
    "amqp:error:list": 0x1D,
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:source:list": 0x28,
    "amqp:target:list": 0x29,
    "amqp:coordinator:list": 0x30,
    "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
    "amqp:sasl-mechanisms:list": 0x40,
    "amqp:sasl-init:list": 0x41,
    "amqp:sasl-challenge:list": 0x42,
    "amqp:sasl-response:list": 0x43,
    "amqp:sasl-outcome:list": 0x44,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}
