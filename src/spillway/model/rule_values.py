"""The typed values that rules carry: parameters of SQL expressions and properties of correlation filters.

A value is kept as the type's name and the text that the client wrote, so that it comes back from the administration
API as it went in (docs/wire.md, "Descriptions and feeds"); rules evaluate what the text stands for. The names are
XML Schema's.
"""

import base64
import math
import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.model.durations import parse_duration_ms
from spillway.model.errors import ArgumentError
from spillway.model.properties import Duration, Moment

STRING: Final = "string"
INT: Final = "int"
LONG: Final = "long"
BOOLEAN: Final = "boolean"
DOUBLE: Final = "double"
DATE_TIME: Final = "dateTime"
DURATION: Final = "duration"
GUID: Final = "guid"
BINARY: Final = "base64Binary"

_INTEGER_RANGES: Final[dict[str, tuple[int, int]]] = {
    INT: (-(1 << 31), (1 << 31) - 1),
    LONG: (-(1 << 63), (1 << 63) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "byte": (-(1 << 7), (1 << 7) - 1),
    "unsignedLong": (0, (1 << 64) - 1),
    "unsignedInt": (0, (1 << 32) - 1),
    "unsignedShort": (0, (1 << 16) - 1),
    "unsignedByte": (0, (1 << 8) - 1),
}
_FLOAT_KINDS: Final = (DOUBLE, "float", "decimal")
_NUMBER_CHARS: Final = frozenset("0123456789+-.eE")
_SPECIAL_FLOATS: Final[dict[str, float]] = {"INF": math.inf, "-INF": -math.inf, "NaN": math.nan}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RuleValue:
    """A value as written: the name of its type and its text."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text

    def value(self) -> object:
        """What it stands for. Raises ArgumentError: call it once when the rule is made, and no rule has a bad one."""
        try:
            return _parse(self.kind, self.text)
        except (ValueError, OverflowError) as error:
            raise ArgumentError(f"'{_shortened(self.text)}' is not a value of the type {self.kind}.") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleValue) and other.kind == self.kind and other.text == self.text

    def __hash__(self) -> int:
        return hash((self.kind, self.text))

    def __repr__(self) -> str:
        return f"RuleValue({self.kind!r}, {self.text!r})"


def rule_value(value: object) -> RuleValue:
    """The rule's form of a value that arrives with a type of its own, from AMQP or a configuration file."""
    if isinstance(value, bool):
        return RuleValue(BOOLEAN, "true" if value else "false")
    if isinstance(value, str):
        return RuleValue(STRING, value)
    if isinstance(value, int):
        low, high = _INTEGER_RANGES[INT]
        return RuleValue(INT if low <= value <= high else LONG, str(int(value)))
    if isinstance(value, float):
        return RuleValue(DOUBLE, _float_text(float(value)))
    if isinstance(value, Moment):
        moment = _EPOCH + timedelta(milliseconds=value.ms)
        return RuleValue(DATE_TIME, moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    if isinstance(value, Duration):
        sign = "-" if value.ms < 0 else ""
        whole, part = divmod(abs(value.ms), 1_000)
        return RuleValue(DURATION, f"{sign}PT{whole}.{part:03d}S")
    if isinstance(value, uuid.UUID):
        return RuleValue(GUID, str(value))
    if isinstance(value, bytes):
        return RuleValue(BINARY, base64.b64encode(value).decode("ascii"))
    raise ArgumentError(
        "A value in a rule is a string, a number, a boolean, a time, a duration, a uuid or bytes,"
        f" not {type(value).__name__}."
    )


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return repr(value)


def _parse(kind: str, text: str) -> object:
    if kind == STRING or kind == "char":
        return text
    if kind in _INTEGER_RANGES:
        return _integer(text, _INTEGER_RANGES[kind])
    if kind in _FLOAT_KINDS:
        return _float(text.strip())
    if kind == BOOLEAN:
        return _boolean(text.strip())
    if kind == DATE_TIME:
        return _moment(text.strip())
    if kind == DURATION:
        return Duration(parse_duration_ms(text.strip()))
    if kind == GUID:
        return uuid.UUID(text.strip())
    if kind == BINARY:
        return base64.b64decode(text, validate=True)
    raise ArgumentError(f"'{_shortened(kind)}' is not a type of rule values; those are {', '.join(known_kinds())}.")


def known_kinds() -> list[str]:
    return [STRING, "char", *_INTEGER_RANGES, *_FLOAT_KINDS, BOOLEAN, DATE_TIME, DURATION, GUID, BINARY]


def _integer(text: str, bounds: tuple[int, int]) -> int:
    text = text.strip()
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        raise ValueError(text)
    value = int(text)
    if not bounds[0] <= value <= bounds[1]:
        raise ValueError(text)
    return value


def _float(text: str) -> float:
    special = _SPECIAL_FLOATS.get(text)
    if special is not None:
        return special
    if not _NUMBER_CHARS.issuperset(text):  # Python would take 1_000 and infinity
        raise ValueError(text)
    return float(text)


def _boolean(text: str) -> bool:
    if text in ("true", "True", "1"):
        return True
    if text in ("false", "False", "0"):
        return False
    raise ValueError(text)


def _moment(text: str) -> Moment:
    """A time without a zone is UTC: the Python SDK writes its naive times so."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Moment((moment - _EPOCH) // timedelta(milliseconds=1))


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
