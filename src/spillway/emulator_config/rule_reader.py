"""The rules of a subscription in `Config.json`: filters and actions, tried before anything is started."""

from typing import Final

from spillway.broker.rules.actions import compile_action
from spillway.broker.rules.filters import compile_filter
from spillway.emulator_config.properties import (
    CORRELATION_KEYS,
    CORRELATION_TEXTS,
    RULE_KEYS,
    RULE_PROPERTIES,
    SQL_KEYS,
)
from spillway.emulator_config.values import JsonObject, Values, is_secret, key_shown, one_line
from spillway.model.errors import BrokerError
from spillway.model.rule_values import RuleValue, rule_value
from spillway.model.rules import CorrelationFilter, Rule, RuleFilter, SqlAction, SqlFilter, rule_name_problem

# By FilterType: the member that has the filter.
FILTER_MEMBERS: Final = {"Sql": "SqlFilter", "Correlation": "CorrelationFilter"}
AT_LEAST_ONE: Final = f"at least one of {', '.join(CORRELATION_KEYS)}"


def read_rules(values: Values, items: list[object], at: str) -> list[Rule]:
    """The rules that can be read; the others are among the mistakes."""
    names: dict[str, str] = {}
    found = [_read_rule(values, item, f"{at}[{index}]", names) for index, item in enumerate(items)]
    return [rule for rule in found if rule is not None]


def _read_rule(values: Values, value: object, at: str, names: dict[str, str]) -> Rule | None:
    rule = values.members(value, at, RULE_KEYS, required=RULE_KEYS)
    name = values.name(rule, at, names, rule_name_problem)
    if "Properties" not in rule:
        return None
    at = f"{at}.Properties"
    properties = values.members(rule["Properties"], at, RULE_PROPERTIES, required=("FilterType",))
    rule_filter = _read_filter(values, properties, at)
    action = _read_action(values, properties, at)
    # It is made when the broker reads the file; the broker stamps it then.
    return None if rule_filter is None else Rule(name, rule_filter, action, 0)


def _read_filter(values: Values, properties: dict[str, object], at: str) -> RuleFilter | None:
    if "FilterType" not in properties:
        return None
    kind = properties["FilterType"]
    if not isinstance(kind, str) or kind not in FILTER_MEMBERS:
        values.problem(f"{at}.FilterType", kind, " or ".join(FILTER_MEMBERS))
        return None
    for other_kind, member in FILTER_MEMBERS.items():
        if other_kind != kind and properties.get(member) is not None:
            values.warnings.append(f"{values.path}: {at}.{member}: without effect: FilterType is {kind}")
    wanted = FILTER_MEMBERS[kind]
    if wanted not in properties:
        values.problems.append(f"{values.path}: {at}.{wanted}: missing: FilterType {kind} requires it")
        return None
    if kind == "Sql":
        return _read_sql_filter(values, properties[wanted], f"{at}.{wanted}")
    return _read_correlation(values, properties[wanted], f"{at}.{wanted}")


# -- SQL --------------------------------------------------------------------------------------------------------------


def _read_sql_filter(values: Values, value: object, at: str) -> SqlFilter | None:
    expression = _expression(values, value, at)
    if expression is None:
        return None
    made = SqlFilter(expression)
    try:
        compile_filter(made)
    except BrokerError as error:
        _refuse_sql(values, at, expression, "a condition in SQL", error)
        return None
    return made


def _read_action(values: Values, properties: dict[str, object], at: str) -> SqlAction | None:
    if properties.get("Action") is None:
        return None
    at = f"{at}.Action"
    expression = _expression(values, properties["Action"], at)
    if expression is None:
        return None
    made = SqlAction(expression)
    try:
        compile_action(made)
    except BrokerError as error:
        _refuse_sql(values, at, expression, "SET and REMOVE statements in SQL", error)
        return None
    return made


def _expression(values: Values, value: object, at: str) -> str | None:
    found = values.members(value, at, SQL_KEYS, required=SQL_KEYS)
    if "SqlExpression" in found and found["SqlExpression"] is None:
        values.problem(f"{at}.SqlExpression", None, "a string")
    return values.text(found, at, "SqlExpression")


def _refuse_sql(values: Values, at: str, expression: str, allowed: str, error: BrokerError) -> None:
    """The parser names the token that it could not read: not if that may be a secret."""
    at = f"{at}.SqlExpression"
    why = "" if is_secret("", expression) else f": {one_line(error.description)}"
    values.problem(at, expression, f"{allowed}{why}")


# -- correlation ------------------------------------------------------------------------------------------------------


def _read_correlation(values: Values, value: object, at: str) -> CorrelationFilter | None:
    problems_before = len(values.problems)
    found = values.members(value, at, CORRELATION_KEYS)
    made = CorrelationFilter()
    is_empty = True
    for key, name in CORRELATION_TEXTS.items():
        text = values.text(found, at, key)
        if text == "":
            values.problem(f"{at}.{key}", text, "a text to compare with; leave the key out if it does not matter")
        elif text is not None:
            setattr(made, name, text)
            is_empty = False
    made.properties = _read_properties(values, found.get("Properties"), f"{at}.Properties")
    if len(values.problems) > problems_before:
        return None
    if is_empty and not made.properties:
        values.problem(at, value, AT_LEAST_ONE)
        return None
    try:
        compile_filter(made)
    except BrokerError as error:
        values.problem(at, value, one_line(error.description))
        return None
    return made


def _read_properties(values: Values, value: object, at: str) -> dict[str, RuleValue]:
    if value is None:
        return {}
    if not isinstance(value, JsonObject):
        values.problem(at, value, "an object with the properties to compare with")
        return {}
    for key in value.repeated:
        values.problem(f"{at}.{key_shown(key)}", value.values[key], "each key once")
    found: dict[str, RuleValue] = {}
    for key, given in value.values.items():
        try:
            made = rule_value(given)
            made.value()
        except BrokerError:
            values.problem(f"{at}.{key_shown(key)}", given, "a string, a number of at most 64 bits, true or false")
            continue
        found[key] = made
    return found
