"""The rules of a subscription as `Config.json` says them: SQL without parameters, and equality with plain values."""

import math
from typing import Any, Final

from spillway.emulator_config.properties import CORRELATION_TEXTS
from spillway.model.rule_values import STRING, RuleValue
from spillway.model.rules import (
    DEFAULT_RULE,
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlFilter,
    TrueFilter,
)

LONG_MAX: Final = (1 << 63) - 1


def write_rules(path: str, rules: list[Rule], warnings: list[str]) -> list[dict[str, Any]]:
    """A list without rules stands for the default one. Rules that the file cannot say are left out and named."""
    if len(rules) == 1 and is_default(rules[0]):
        return []
    written = []
    for rule in rules:
        problem = rule_problem(rule)
        if problem is None:
            written.append(rule_of(rule))
        else:
            warnings.append(f"subscription {path}: rule {rule.name} is left out: {problem}")
    if not written:
        warnings.append(f"subscription {path}: a rule that selects nothing stands for no rule at all")
        written.append(rule_of(Rule(DEFAULT_RULE, FalseFilter(), None, 0)))
    return written


def is_default(rule: Rule) -> bool:
    return rule.name == DEFAULT_RULE and isinstance(rule.filter, TrueFilter) and rule.action is None


def rule_problem(rule: Rule) -> str | None:
    """Why Config.json cannot say it, or None."""
    for part in (rule.filter, rule.action):
        if getattr(part, "parameters", None):
            return "Config.json has no parameters of SQL expressions"
    if isinstance(rule.filter, CorrelationFilter):
        if any(getattr(rule.filter, name) == "" for name in CORRELATION_TEXTS.values()):
            return "Config.json cannot ask for an empty text"
        for name, value in rule.filter.properties.items():
            if plain_value(value) is None:
                return f"Config.json has no values of the type {value.kind} ({name})"
    return None


def rule_of(rule: Rule) -> dict[str, Any]:
    properties = filter_of(rule.filter)
    if rule.action is not None:
        properties["Action"] = {"SqlExpression": rule.action.expression}
    return {"Name": rule.name, "Properties": properties}


def filter_of(wanted: RuleFilter) -> dict[str, Any]:
    if isinstance(wanted, CorrelationFilter):
        texts = {key: getattr(wanted, name) for key, name in CORRELATION_TEXTS.items()}
        said: dict[str, Any] = {key: text for key, text in texts.items() if text is not None}
        if wanted.properties:
            said["Properties"] = {name: plain_value(value) for name, value in wanted.properties.items()}
        return {"FilterType": "Correlation", "CorrelationFilter": said}
    if isinstance(wanted, SqlFilter):
        expression = wanted.expression
    else:
        expression = FALSE_EXPRESSION if isinstance(wanted, FalseFilter) else TRUE_EXPRESSION
    return {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}


def plain_value(value: RuleValue) -> str | int | float | bool | None:
    """A value that JSON has; numbers are compared by value, whatever their type. None: it has not."""
    if value.kind == STRING:
        return value.text
    found = value.value()
    if isinstance(found, bool):
        return found
    if isinstance(found, int):
        return found if found <= LONG_MAX else None
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    return None
