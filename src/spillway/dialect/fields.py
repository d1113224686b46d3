"""Reading the maps of requests: each value is checked, and the text of a refusal names the field."""

import uuid
from typing import Final

from spillway.model import limits
from spillway.model.errors import ArgumentError, ArgumentOutOfRange

LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1


def read_map(value: object, field: str) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ArgumentError(f"'{field}' must be a map.")
    return value


def read_items(fields: dict[object, object], field: str, count_max: int) -> list[object]:
    """An array or a list with something in it."""
    value = fields.get(field)
    if not isinstance(value, list) or not value:
        raise ArgumentError(f"'{field}' must be an array or a list that is not empty.")
    if len(value) > count_max:
        raise ArgumentOutOfRange(
            f"'{field}' has {len(value)} elements; at most {count_max} are allowed in one request."
        )
    return value


def is_whole(value: object) -> bool:
    """Any of AMQP's integer types that fits a long, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and LONG_MIN <= value <= LONG_MAX


def read_long(fields: dict[object, object], field: str) -> int:
    value = fields.get(field)
    if not is_whole(value):
        raise ArgumentError(f"'{field}' must be an integer.")
    assert isinstance(value, int)
    return int(value)


def read_count(fields: dict[object, object], field: str, count_max: int) -> int:
    """How many at most: more than we give in one go is cut, not refused."""
    count = read_long(fields, field)
    if count < 1:
        raise ArgumentOutOfRange(f"'{field}' must be at least 1.")
    return min(count, count_max)


def read_longs(fields: dict[object, object], field: str, count_max: int) -> list[int]:
    numbers: list[int] = []
    for value in read_items(fields, field, count_max):
        if not is_whole(value):
            raise ArgumentError(f"'{field}' must hold integers only.")
        assert isinstance(value, int)
        numbers.append(int(value))
    return numbers


def read_tokens(fields: dict[object, object], field: str) -> list[bytes]:
    """A uuid here, in GUID order in the broker (docs/wire.md, "Lock tokens have two byte orders")."""
    tokens: list[bytes] = []
    for value in read_items(fields, field, limits.LOCK_TOKENS_MAX):
        if not isinstance(value, uuid.UUID):
            raise ArgumentError(f"'{field}' must hold uuids only.")
        tokens.append(value.bytes_le)
    return tokens


def read_session_id(fields: dict[object, object]) -> str | None:
    """None: it was left out. The empty string is a session like any other."""
    value = fields.get("session-id")
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentError("'session-id' must be a string.")
    if len(value) > limits.SESSION_ID_CHARS_MAX:
        raise ArgumentOutOfRange(f"'session-id' has at most {limits.SESSION_ID_CHARS_MAX} characters.")
    return str(value)
