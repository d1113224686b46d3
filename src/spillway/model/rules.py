"""Rules of a subscription: which messages it wants, and what is changed in its copy of them. Plain data, as stored.

`broker/rules/filters.py` and `broker/rules/actions.py` make of these what is evaluated, and check them while at it.
"""

import json
from typing import ClassVar, Final

from spillway.model import limits
from spillway.model.rule_values import RuleValue

# Azure's quotas for Standard; what has none there is bounded by us.
EXPRESSION_CHARS_MAX: Final = 1_024
CONDITIONS_MAX: Final = 32  # comparisons and the like in a filter; statements in an action
NESTING_MAX: Final = 64  # ours: evaluation recurses this deep at most, which is some 30 brackets
RULE_VALUES_MAX: Final = 100  # ours: parameters, or properties of a correlation filter
RULE_VALUES_CHARS_MAX: Final = 32_768  # ours: of all of them together, names included
RULE_NAME_CHARS_MAX: Final = 50
RULE_BYTES: Final = 2_000
RULE_CHAR_BYTES: Final = 8

DEFAULT_RULE: Final = "$Default"
# The SQL by which the service describes the two filters that have none of their own.
TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"

_TRUE: Final = "true"
_FALSE: Final = "false"
_SQL: Final = "sql"
_CORRELATION: Final = "correlation"
_NOT_IN_NAMES: Final = frozenset("/\\?#*@:")


class FilterError(Exception):
    """A rule could not be evaluated for this message; its text goes to the dead-letter queue where so configured."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


def rule_name_problem(name: str) -> str | None:
    """What is wrong with the name of a rule, or None."""
    if not name:
        return "the name of a rule must not be empty"
    if len(name) > RULE_NAME_CHARS_MAX:
        return f"the name of a rule has at most {RULE_NAME_CHARS_MAX} characters, this one has {len(name)}"
    if name != name.strip():
        return "the name of a rule neither begins nor ends with a blank"
    for char in name:
        if char in _NOT_IN_NAMES or not char.isprintable():
            return f"the name of a rule has no {char!r}"
    return None


class RuleFilter:
    """One of the four below."""

    kind: ClassVar[str] = ""

    def to_plain(self) -> dict[str, object]:
        return {"kind": self.kind}


class TrueFilter(RuleFilter):
    """Every message."""

    kind: ClassVar[str] = _TRUE


class FalseFilter(RuleFilter):
    """No message."""

    kind: ClassVar[str] = _FALSE


class SqlFilter(RuleFilter):
    """A condition in Azure's subset of SQL. Parameters are named with their `@`."""

    kind: ClassVar[str] = _SQL

    def __init__(self, expression: str, parameters: dict[str, RuleValue] | None = None) -> None:
        self.expression = expression
        self.parameters: dict[str, RuleValue] = {} if parameters is None else parameters

    def to_plain(self) -> dict[str, object]:
        return {"kind": self.kind, "expression": self.expression, "parameters": _values_to_plain(self.parameters)}


class CorrelationFilter(RuleFilter):
    """Equality with every value that is given; None: not given."""

    kind: ClassVar[str] = _CORRELATION

    def __init__(
        self,
        correlation_id: str | None = None,
        message_id: str | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        label: str | None = None,
        session_id: str | None = None,
        reply_to_session_id: str | None = None,
        content_type: str | None = None,
        properties: dict[str, RuleValue] | None = None,
    ) -> None:
        self.correlation_id = correlation_id
        self.message_id = message_id
        self.to = to
        self.reply_to = reply_to
        self.label = label
        self.session_id = session_id
        self.reply_to_session_id = reply_to_session_id
        self.content_type = content_type
        self.properties: dict[str, RuleValue] = {} if properties is None else properties

    def to_plain(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "correlation_id": self.correlation_id,
            "message_id": self.message_id,
            "to": self.to,
            "reply_to": self.reply_to,
            "label": self.label,
            "session_id": self.session_id,
            "reply_to_session_id": self.reply_to_session_id,
            "content_type": self.content_type,
            "properties": _values_to_plain(self.properties),
        }


class SqlAction:
    """SET and REMOVE statements, performed on the copy of a message that the rule's filter selected."""

    def __init__(self, expression: str, parameters: dict[str, RuleValue] | None = None) -> None:
        self.expression = expression
        self.parameters: dict[str, RuleValue] = {} if parameters is None else parameters

    def to_plain(self) -> dict[str, object]:
        return {"expression": self.expression, "parameters": _values_to_plain(self.parameters)}


class Rule:
    """A named filter, with an action or without."""

    def __init__(self, name: str, filter: RuleFilter, action: SqlAction | None, created_ms: int) -> None:
        self.name = name
        self.filter = filter
        self.action = action
        self.created_ms = created_ms
        self.number = 0  # its place among the rules of its subscription, which gives it; they are tried in this order
        self.problem = ""  # why it cannot be read from the store; empty if it can
        self.weight = 0  # see `weight_of`; 0: not weighed yet

    def to_json(self) -> str:
        return json.dumps(self.to_plain())

    def compile_steps(self) -> int:
        """What it takes to make of it what is evaluated, in steps of about a microsecond: one for each character."""
        steps = limits.RULE_STEPS
        if isinstance(self.filter, SqlFilter):
            steps += len(self.filter.expression) + len(self.filter.parameters)
        if self.action is not None:
            steps += len(self.action.expression) + len(self.action.parameters)
        return steps

    def to_plain(self) -> dict[str, object]:
        """Dicts, lists and scalars: what becomes the JSON that it is stored as."""
        return {
            "name": self.name,
            "filter": self.filter.to_plain(),
            "action": None if self.action is None else self.action.to_plain(),
            "created_ms": self.created_ms,
        }


def default_rule(now_ms: int) -> Rule:
    """What a subscription has that was made without rules."""
    return Rule(DEFAULT_RULE, TrueFilter(), None, now_ms)


def rule_from_json(text: str) -> Rule:
    rule = rule_from_plain(json.loads(text))
    rule.weight = _weight(text)
    return rule


def unreadable_rule(name: str, problem: str) -> Rule:
    """A rule in the place of one that the store cannot read any more: nobody knows what it wanted."""
    rule = Rule(name, FalseFilter(), None, 0)
    rule.problem = problem
    return rule


def rule_from_plain(plain: object) -> Rule:
    """The inverse of `to_plain`; what it gets was written by us."""
    values = _dict(plain)
    action = values["action"]
    return Rule(
        _text(values["name"]),
        _filter_from_plain(_dict(values["filter"])),
        None if action is None else _action_from_plain(_dict(action)),
        _int(values["created_ms"]),
    )


def _filter_from_plain(values: dict[str, object]) -> RuleFilter:
    kind = values["kind"]
    if kind == _TRUE:
        return TrueFilter()
    if kind == _FALSE:
        return FalseFilter()
    if kind == _SQL:
        return SqlFilter(_text(values["expression"]), _values_from_plain(values["parameters"]))
    assert kind == _CORRELATION, kind
    return CorrelationFilter(
        _text_or_none(values["correlation_id"]),
        _text_or_none(values["message_id"]),
        _text_or_none(values["to"]),
        _text_or_none(values["reply_to"]),
        _text_or_none(values["label"]),
        _text_or_none(values["session_id"]),
        _text_or_none(values["reply_to_session_id"]),
        _text_or_none(values["content_type"]),
        _values_from_plain(values["properties"]),
    )


def _action_from_plain(values: dict[str, object]) -> SqlAction:
    return SqlAction(_text(values["expression"]), _values_from_plain(values["parameters"]))


def _values_to_plain(values: dict[str, RuleValue]) -> dict[str, list[str]]:
    return {name: [value.kind, value.text] for name, value in values.items()}


def _values_from_plain(plain: object) -> dict[str, RuleValue]:
    values = {}
    for name, pair in _dict(plain).items():
        assert isinstance(pair, list), pair
        values[name] = RuleValue(_text(pair[0]), _text(pair[1]))
    return values


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict), value
    return value


def _text(value: object) -> str:
    assert isinstance(value, str), value
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _int(value: object) -> int:
    assert isinstance(value, int), value
    return value


def weight_of(rule: Rule) -> int:
    """What a rule takes in memory, about: as it is stored, and as it is evaluated."""
    if rule.weight == 0:
        rule.weight = _weight(rule.to_json())
    return rule.weight


def _weight(text: str) -> int:
    return RULE_BYTES + RULE_CHAR_BYTES * len(text)
