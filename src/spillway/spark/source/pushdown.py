"""Filters of a query that a batch read of mode=browse takes upon itself (pushdown=true): less is asked for.

What a filter says of sequence numbers and entities is answered here, wholly. What it says of times and sessions makes
the read smaller, and is looked at by Spark once more. Everything else is left to Spark.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from spillway.spark.source.enqueued_times import CLOCK_STEP_MS
from spillway.spark.source.number_runs import Runs
from spillway.spark.source.options import SEQUENCE_NUMBER_MAX, ReadOptions

ALL_NUMBERS: Final = Runs([(0, SEQUENCE_NUMBER_MAX)])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Narrowed:
    """What is left to read when filters are taken into account."""

    entities: tuple[str, ...]
    numbers: Runs = ALL_NUMBERS
    from_ms: int | None = None  # enqueued then or later, as far as clocks tell
    to_ms: int | None = None
    sessions: tuple[str, ...] | None = None  # None: as the options say


def within(options: ReadOptions, narrowed: Narrowed) -> ReadOptions:
    """The options of what is left to read: of no entity, if that is nothing."""
    runs = narrowed.numbers.runs
    if not runs or narrowed.sessions == ():
        return replace(options, entities=())
    first, last = runs[0][0], runs[-1][1] - 1
    is_whole = narrowed.numbers == ALL_NUMBERS
    end_at = options.end_at if is_whole or options.end_at is None else min(options.end_at, last)
    return replace(
        options,
        entities=narrowed.entities,
        start_at=max(options.start_at or 0, first),
        end_at=end_at if is_whole or end_at is not None else last,
        sessions=options.sessions if narrowed.sessions is None else narrowed.sessions,
        has_all_sessions=options.has_all_sessions and narrowed.sessions is None,
    )


def push(options: ReadOptions, filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """What is left to read, and the filters that Spark has to look at."""
    narrowed = Narrowed(options.entities)
    if options.max_messages is not None:
        return narrowed, list(filters)  # so many messages are looked at, whatever they are: not so many that match
    left: list[Filter] = []
    for each in filters:
        column = _column(each)
        taken = _TAKERS[column](narrowed, each, options) if column in _TAKERS else None
        if taken is None:
            left.append(each)
            continue
        narrowed = taken
        if column not in _ANSWERED:
            left.append(each)
    return narrowed, left


def _column(each: Filter) -> str:
    child = each.child if isinstance(each, Not) else each
    path: Sequence[str] = getattr(child, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _by_number(narrowed: Narrowed, each: Filter, options: ReadOptions) -> Narrowed | None:
    if isinstance(each, IsNotNull):
        return narrowed  # what is browsed has a number
    if isinstance(each, In):
        numbers = [value for value in each.value if value is not None]
        if not all(_is_number(value) for value in numbers):
            return None
        wanted = Runs.of(value for value in numbers if 0 <= value < SEQUENCE_NUMBER_MAX)
        return replace(narrowed, numbers=narrowed.numbers & wanted)
    if type(each) not in _EDGES or not _is_number(_value(each)):
        return None
    start, end = _EDGES[type(each)](_value(each))
    return replace(narrowed, numbers=narrowed.numbers.within(_or(start, 0), _or(end, SEQUENCE_NUMBER_MAX)))


def _by_entity(narrowed: Narrowed, each: Filter, options: ReadOptions) -> Narrowed | None:
    test = _text_test(each.child if isinstance(each, Not) else each)
    if test is None:
        return None
    is_negated = isinstance(each, Not)
    return replace(narrowed, entities=tuple(name for name in narrowed.entities if test(name) != is_negated))


def _by_time(narrowed: Narrowed, each: Filter, options: ReadOptions) -> Narrowed | None:
    """A time may be kept more exactly than a message has it, and clocks are set: a little more is read."""
    values = [value for value in each.value if value is not None] if isinstance(each, In) else [_value(each)]
    moments = [_moment_ms(value) for value in values]
    known = [moment for moment in moments if moment is not None]
    if not known or len(known) != len(moments):
        return None
    edges: _Edges = (min(known), max(known) + 1)
    if not isinstance(each, In):
        if type(each) not in _EDGES:
            return None
        edges = _EDGES[type(each)](known[0])
    start, end = edges
    from_ms = None if start is None else start - CLOCK_STEP_MS
    to_ms = None if end is None else end + CLOCK_STEP_MS
    return replace(narrowed, from_ms=most(narrowed.from_ms, from_ms), to_ms=least(narrowed.to_ms, to_ms))


def _by_session(narrowed: Narrowed, each: Filter, options: ReadOptions) -> Narrowed | None:
    """Only where an entity has sessions: a message may name one in any other, too."""
    if not options.has_sessions or not isinstance(each, (EqualTo, EqualNullSafe, In)):
        return None
    values = [value for value in each.value if value is not None] if isinstance(each, In) else [each.value]
    if not all(isinstance(value, str) for value in values):
        return None
    before = narrowed.sessions if narrowed.sessions is not None else options.sessions or None
    wanted = dict.fromkeys(values)
    return replace(narrowed, sessions=tuple(name for name in (wanted if before is None else before) if name in wanted))


_TAKERS: Final[dict[str, Callable[[Narrowed, Filter, ReadOptions], Narrowed | None]]] = {
    "sequence_number": _by_number,
    "entity": _by_entity,
    "enqueued_time": _by_time,
    "session_id": _by_session,
}
_ANSWERED: Final = frozenset({"sequence_number", "entity"})
assert _TAKERS.keys() >= _ANSWERED, "what is answered here is taken here"

# From which value up to and without which one a comparison of whole numbers holds.
_Edges = tuple[int | None, int | None]
_EDGES: Final[dict[type[Filter], Callable[[int], _Edges]]] = {
    EqualTo: lambda value: (value, value + 1),
    EqualNullSafe: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value),
    LessThanOrEqual: lambda value: (None, value + 1),
}


def _text_test(each: Filter) -> Callable[[str], bool] | None:
    """Of an entity, which is never null."""
    if isinstance(each, IsNotNull):
        return lambda name: True
    if isinstance(each, In):
        values = each.value
        return (lambda name: name in values) if all(isinstance(value, str) for value in values) else None
    value = _value(each)
    if not isinstance(value, str):
        return None
    if isinstance(each, (EqualTo, EqualNullSafe)):
        return lambda name: name == value
    if isinstance(each, StringStartsWith):
        return lambda name: name.startswith(value)
    if isinstance(each, StringEndsWith):
        return lambda name: name.endswith(value)
    return (lambda name: value in name) if isinstance(each, StringContains) else None


def _value(each: Filter) -> Any:
    return getattr(each, "value", None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _moment_ms(value: Any) -> int | None:
    """In whole milliseconds, rounded down; None for what is no moment."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def most(one: int | None, other: int | None) -> int | None:
    """Of those that there are."""
    return max((each for each in (one, other) if each is not None), default=None)


def least(one: int | None, other: int | None) -> int | None:
    """Of those that there are."""
    return min((each for each in (one, other) if each is not None), default=None)
