"""AMQP types of values, written down before the SDK forgets them.

The SDK sends a Python value as the AMQP type it finds natural (`int` as a 32-bit int, `str` as a string), or as one
that the sender chose explicitly, `{"TYPE": "LONG", "VALUE": 5}`. What it reads back has lost that: every integer is an
`int`; strings, symbols and binaries are all `bytes`. So a message on its way to the backlog carries a note of every
value whose type is not the natural one; with it the way back is exact. Messages that need no note carry none.
"""

import datetime
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

INT_MIN: Final = -(1 << 31)
INT_MAX: Final = (1 << 31) - 1
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
UNKNOWN: Final = "?"  # a value that cannot be given back exactly
# The types of the SDK's explicit values that come back as one Python value each.
SIMPLE: Final = frozenset(
    ("NULL", "BOOL", "UBYTE", "BYTE", "USHORT", "SHORT", "UINT", "INT", "ULONG", "LONG", "FLOAT", "DOUBLE")
    + ("TIMESTAMP", "UUID", "BINARY", "STRING", "SYMBOL")
)

Note = Any  # JSON: None for natural, a type's name, or {"l": {index: note}} or {"m": {key: note}} for what is inside


class Inexpressible(Exception):
    """A value that the SDK cannot send again as it was. The message stays where it is, with this as the reason."""


def typed(name: str, value: object) -> dict[str, object]:
    """A value with an explicit AMQP type, as the SDK takes it."""
    return {"TYPE": name, "VALUE": value}


def is_typed(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"TYPE", "VALUE"}


def note_of(value: object, bytes_are_text: bool = False) -> Note:
    """What must be noted of a value that is to be sent. `bytes_are_text`: the SDK sends them as a string there."""
    if value is None or isinstance(value, (bool, int, float, str, uuid.UUID)):
        return None
    if isinstance(value, (bytes, bytearray)):
        return None if bytes_are_text else "BINARY"
    if isinstance(value, datetime.datetime):
        return "TIMESTAMP"
    if is_typed(value):
        assert isinstance(value, dict)
        return value["TYPE"] if value["TYPE"] in SIMPLE else UNKNOWN
    if isinstance(value, list):
        inside = {str(at): note for at, each in enumerate(value) if (note := note_of(each)) is not None}
        return {"l": inside} if inside else None
    return _note_of_map(value) if isinstance(value, dict) else UNKNOWN


def note_of_body(value: object) -> Note:
    """To the SDK a map is a map where it is the body itself, whatever its keys are called."""
    return _note_of_map(value) if isinstance(value, dict) else note_of(value)


def _note_of_map(value: dict[Any, Any]) -> Note:
    if not all(isinstance(key, str) for key in value):
        return UNKNOWN
    inside = {key: note for key, each in value.items() if (note := note_of(each)) is not None}
    return {"m": inside} if inside else None


def notes_of(values: Mapping[Any, Any] | None, bytes_are_text: bool = False) -> dict[str, Note]:
    """The notes of a map's values, by key."""
    if not values:
        return {}
    return {text(key): note for key, value in values.items() if (note := note_of(value, bytes_are_text)) is not None}


def restored(value: object, note: Note) -> Any:
    """A value as it was read, turned into what the SDK sends as the type it had."""
    if isinstance(note, str):
        if note not in SIMPLE:
            raise Inexpressible("it has a value of an AMQP type that the SDK cannot send again")
        return typed(note, value)
    inside = note if isinstance(note, dict) else {}
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, list):
        notes = inside.get("l", {})
        return [restored(each, notes.get(str(at))) for at, each in enumerate(value)]
    if isinstance(value, dict):
        notes = inside.get("m", {})
        return {text(key): restored(each, notes.get(text(key))) for key, each in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and not INT_MIN <= value <= INT_MAX:
        return typed("LONG" if value < 1 << 63 else "ULONG", value)
    return value


def restored_body(value: object, note: Note) -> Any:
    """The same for a body, to which the SDK gives its type by the Python value alone."""
    if note == "BINARY" and isinstance(value, bytes):
        return value
    if note == "TIMESTAMP" and isinstance(value, int):
        return EPOCH + datetime.timedelta(milliseconds=value)
    body = restored(value, note)
    if is_typed(body) and not isinstance(value, dict):
        raise Inexpressible("its body is a value of an AMQP type that the SDK cannot send as a body")
    return body


def restored_map(values: Mapping[Any, Any] | None, notes: dict[str, Note]) -> dict[str | bytes, Any]:
    return {text(key): restored(value, notes.get(text(key))) for key, value in (values or {}).items()}


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise Inexpressible("it has a binary value where no note says so") from None
    raise Inexpressible(f"it has a key of type {type(value).__name__}")


def write_notes(notes: dict[str, Any]) -> str | None:
    """Nothing if there is nothing to note."""
    kept = {name: note for name, note in notes.items() if note}
    return json.dumps(kept, separators=(",", ":")) if kept else None
