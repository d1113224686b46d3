"""Rules over `$management`: maps when added, described lists when listed (docs/wire.md, "Rules over management")."""

import uuid
from typing import Final

from spillway.amqp.types import Described, Int, Symbol, Timestamp, ULong
from spillway.dialect.fields import read_map
from spillway.dialect.property_values import known_value
from spillway.model.errors import ArgumentError
from spillway.model.properties import Duration, Moment
from spillway.model.rule_values import INT, RuleValue, rule_value
from spillway.model.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)

# Ten digits for filters, eleven for the others (docs/wire.md, "Filters are a digit shorter than actions").
RULE_DESCRIPTION: Final = 0x13700000004
NO_ACTION: Final = 0x13700000005
SQL_ACTION: Final = 0x13700000006
SQL_FILTER: Final = 0x1370000006
TRUE_FILTER: Final = 0x1370000007
FALSE_FILTER: Final = 0x1370000008
CORRELATION_FILTER: Final = 0x1370000009

COMPATIBILITY_LEVEL: Final = 20  # of SQL; there is no other

# What .NET writes that AMQP has no type for, in ticks of 100 ns; times since the year 1.
TIMESPAN: Final = "com.microsoft:timespan"
DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
URI: Final = "com.microsoft:uri"
_TICKS_PER_MS: Final = 10_000
_EPOCH_MS: Final = 62_135_596_800_000  # 1970, in ms since the year 1

_TEXTS: Final = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)


# -- added ------------------------------------------------------------------------------------------------------------


def read_rule_name(fields: dict[object, object]) -> str:
    return _read_text(fields, "rule-name")


def read_rule(fields: dict[object, object]) -> Rule:
    """`ArgumentError` names the field that is wrong. Expressions and names are for the core to judge."""
    name = read_rule_name(fields)
    description = read_map(fields.get("rule-description"), "rule-description")
    return Rule(name, _read_filter(description), _read_action(description), 0)  # the core says when it was made


def _read_filter(description: dict[object, object]) -> RuleFilter:
    sql = description.get("sql-filter")
    correlation = description.get("correlation-filter")
    if (sql is None) == (correlation is None):
        raise ArgumentError("'rule-description' must have either 'sql-filter' or 'correlation-filter'.")
    if sql is not None:
        return SqlFilter(_read_text(read_map(sql, "sql-filter"), "expression", "sql-filter"))
    return _read_correlation(read_map(correlation, "correlation-filter"))


def _read_action(description: dict[object, object]) -> SqlAction | None:
    action = description.get("sql-rule-action")
    if action is None:
        return None
    return SqlAction(_read_text(read_map(action, "sql-rule-action"), "expression", "sql-rule-action"))


def _read_correlation(fields: dict[object, object]) -> CorrelationFilter:
    """JavaScript sends every key, with null for what is not given."""
    texts = [_read_text_or_none(fields, name) for name in _TEXTS]
    properties: dict[str, RuleValue] = {}
    if fields.get("properties") is not None:
        for name, value in read_map(fields["properties"], "properties").items():
            if not isinstance(name, str):
                raise ArgumentError("The names in 'properties' of 'correlation-filter' must be strings.")
            properties[str(name)] = _read_value(str(name), value)
    return CorrelationFilter(texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], texts[7], properties)


def _read_value(name: str, value: object) -> RuleValue:
    known = _undescribed(value) if isinstance(value, Described) else known_value(value)
    if known is None:
        raise ArgumentError(
            f"'{name[:100]}' in 'properties' of 'correlation-filter' must be a string, a number, a boolean, a time, "
            "a timespan, a uuid or binary."
        )
    try:
        return rule_value(known)
    except OverflowError:
        raise ArgumentError(f"'{name[:100]}' in 'properties' of 'correlation-filter' is out of range.") from None


def _undescribed(value: Described) -> object:
    inner = value.value
    if value.descriptor == URI:
        return str(inner) if isinstance(inner, str) else None
    if isinstance(inner, int) and not isinstance(inner, bool):
        if value.descriptor == TIMESPAN:
            return Duration(int(inner) // _TICKS_PER_MS)
        if value.descriptor == DATETIME_OFFSET:
            return Moment(int(inner) // _TICKS_PER_MS - _EPOCH_MS)
    return None


def _read_text(fields: dict[object, object], field: str, parent: str = "") -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        where = f" of '{parent}'" if parent else ""
        raise ArgumentError(f"'{field}'{where} must be a string.")
    return str(value)


def _read_text_or_none(fields: dict[object, object], field: str) -> str | None:
    return None if fields.get(field) is None else _read_text(fields, field, "correlation-filter")


# -- listed -----------------------------------------------------------------------------------------------------------


def rule_description(rule: Rule) -> Described:
    action = _described(NO_ACTION, [])
    if rule.action is not None:
        action = _described(SQL_ACTION, [rule.action.expression, Int(COMPATIBILITY_LEVEL)])
    return _described(RULE_DESCRIPTION, [_filter(rule.filter), action, rule.name, Timestamp(rule.created_ms)])


def _described(code: int, fields: list[object]) -> Described:
    return Described(ULong(code), fields)


def _filter(rule_filter: RuleFilter) -> Described:
    if isinstance(rule_filter, SqlFilter):
        return _described(SQL_FILTER, [rule_filter.expression, Int(COMPATIBILITY_LEVEL)])
    if isinstance(rule_filter, TrueFilter):
        return _described(TRUE_FILTER, [])
    if isinstance(rule_filter, FalseFilter):
        return _described(FALSE_FILTER, [])
    assert isinstance(rule_filter, CorrelationFilter), rule_filter
    wanted = rule_filter
    properties: dict[object, object] = {}
    for name, value in wanted.properties.items():
        properties[name] = _wire_value(value)
    fields: list[object] = [
        wanted.correlation_id,
        wanted.message_id,
        wanted.to,
        wanted.reply_to,
        wanted.label,
        wanted.session_id,
        wanted.reply_to_session_id,
        wanted.content_type,
        properties,
    ]
    return _described(CORRELATION_FILTER, fields)


def _wire_value(value: RuleValue) -> object:
    known = value.value()
    if value.kind == INT:
        assert isinstance(known, int), value
        return Int(known)
    if isinstance(known, (bool, str, float, bytes, uuid.UUID)):
        return known
    if isinstance(known, int):
        return ULong(known) if known > (1 << 63) - 1 else known
    if isinstance(known, Moment):
        return Timestamp(known.ms)
    assert isinstance(known, Duration), value
    return Described(Symbol(TIMESPAN), known.ms * _TICKS_PER_MS)
