"""Dead letters that were chosen: how one is told from all others, and what is changed about it before it is sent."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from spillway.model.entity import DEAD_LETTER_SUFFIX, entity_key
from spillway.spark.platform.access import OptionError
from spillway.spark.source.values import value_of

APPLICATION: Final = "application_properties."
# Fields of a message that may be changed, with the SQL types that they may get.
TEXT_FIELDS: Final = (
    "subject", "session_id", "partition_key", "correlation_id", "content_type", "to", "reply_to", "reply_to_session_id",
)  # fmt: skip
TIME_TO_LIVE: Final = "time_to_live_ms"
SCHEDULED: Final = "scheduled_enqueue_time"
BODY: Final = "body"
FIELDS: Final = (*TEXT_FIELDS, TIME_TO_LIVE, SCHEDULED, BODY)

_WHOLE_NUMBERS: Final = ("byte", "short", "int", "long")
_BY_SQL_TYPE: Final = {
    "string": "string",
    "boolean": "boolean",
    "tinyint": "byte",
    "smallint": "short",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "binary": "binary",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "void": "null",  # NULL takes a property out
}
assert list(_BY_SQL_TYPE)[-1] == "void", "all but the last are types to cast to"


class Key(NamedTuple):
    """One dead letter. An entity that was made anew numbers from 1 again: the time tells them apart."""

    entity: str  # whose dead letter it is, as paths are compared
    number: int
    enqueued_ms: int

    def mark(self, namespace: str) -> str:
        """The same for every try to send this dead letter, and no other's."""
        text = "/".join((namespace.lower(), self.entity, str(self.number), str(self.enqueued_ms)))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def key_of(entity: str, number: int, enqueued_ms: int) -> Key:
    return Key(entity_key(entity), number, enqueued_ms)


class Setting(NamedTuple):
    """`--set NAME=EXPRESSION`, read."""

    name: str
    expression: str


class Edit(NamedTuple):
    """One changed value of one message: its AMQP type and the value as text; None takes it out."""

    name: str
    kind: str
    text: str | None

    def value(self) -> Any:
        """`ValueError` for a text that is none of its type."""
        return None if self.text is None else value_of(self.text, self.kind)


class Planned(NamedTuple):
    """A dead letter that was chosen, with its changes."""

    key: Key
    edits: tuple[Edit, ...] = ()

    def to_plain(self) -> list[Any]:
        return [self.key.number, self.key.enqueued_ms, [list(edit) for edit in self.edits]]


def planned_of(entity: str, plain: Sequence[Any]) -> Planned:
    number, enqueued_ms, edits = plain
    return Planned(key_of(entity, number, enqueued_ms), tuple(Edit(*edit) for edit in edits))


def settings_of(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Checked by their names; the expressions are Spark's to check."""
    found: dict[str, Setting] = {}
    for text in texts:
        name, is_given, expression = text.partition("=")
        name, expression = name.strip(), expression.strip()
        if not is_given or not expression:
            raise OptionError(f"set '{text[:100]}': NAME=EXPRESSION in SQL, as subject='again', or NAME=NULL")
        is_property = name.startswith(APPLICATION) and len(name) > len(APPLICATION)
        if not is_property and name not in FIELDS:
            raise OptionError(f"set: there is no '{name[:100]}' to change; {', '.join(FIELDS)}, {APPLICATION}NAME")
        if name in found:
            raise OptionError(f"set: {name} is there twice")
        found[name] = Setting(name, expression)
    return tuple(found.values())


def kind_of(name: str, sql_type: str) -> str:
    """The AMQP type of a changed value, from the SQL type of its expression; `OptionError` if it cannot have it."""
    kind = _BY_SQL_TYPE.get(sql_type)
    if kind is None:
        raise OptionError(f"set: {name} is {sql_type}; cast it to {', '.join(list(_BY_SQL_TYPE)[:-1])}")
    allowed: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(TEXT_FIELDS, ("string",)),
        TIME_TO_LIVE: _WHOLE_NUMBERS,
        SCHEDULED: ("timestamp",),
        BODY: ("string", "binary"),
    }
    if kind != "null" and kind not in allowed.get(name, (kind,)):
        words = {TIME_TO_LIVE: "a whole number of milliseconds", SCHEDULED: "a timestamp", BODY: "a string or binary"}
        raise OptionError(f"set: {name} is {sql_type}; it has to be {words.get(name, 'a string')}")
    if kind == "null" and name == BODY:
        raise OptionError("set: body is NULL; '' is an empty one")
    return kind


def owner_of(path: str) -> str:
    """The entity whose dead letters a path names; the entity itself means its dead letters too."""
    path = path.strip("/")
    return path[: -len(DEAD_LETTER_SUFFIX)] if path.lower().endswith(DEAD_LETTER_SUFFIX.lower()) else path


def dead_letters_of(entity: str) -> str:
    return f"{entity}{DEAD_LETTER_SUFFIX.lower()}"
