"""Filters ready to be evaluated: which messages of a topic a subscription gets.

A condition is made once when the rule is, or when its subscription is read back, and asked for every message.
"""

from spillway.broker.rules.builder import Builder, check_values
from spillway.broker.rules.nodes import NODES_MASK, Predicate
from spillway.broker.rules.parser import parse_filter
from spillway.broker.rules.values import EQUAL, TRUE, compare
from spillway.model import properties as names
from spillway.model.errors import ArgumentError
from spillway.model.properties import MessageProperties, fold
from spillway.model.rules import CorrelationFilter, FalseFilter, RuleFilter, SqlFilter, TrueFilter
from spillway.model.texts import text_problem


class Condition:
    """Whether a message is wanted. `evaluate` may raise FilterError."""

    def evaluate(self, properties: MessageProperties) -> bool:
        return False


class Always(Condition):
    def evaluate(self, properties: MessageProperties) -> bool:
        return True


class Never(Condition):
    def evaluate(self, properties: MessageProperties) -> bool:
        return False


class SqlCondition(Condition):
    """Wanted if true: unknown is not."""

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate

    def evaluate(self, properties: MessageProperties) -> bool:
        return self.predicate.test(properties) == TRUE


class CorrelationCondition(Condition):
    """Equality with all of them. Numbers are equal by value, whatever their types: JavaScript writes all as doubles."""

    def __init__(self) -> None:
        self.system_names: list[str] = []
        self.system_texts: list[str] = []
        self.user_keys: list[str] = []
        self.user_values: list[object] = []

    def evaluate(self, properties: MessageProperties) -> bool:
        for index in range(len(self.system_names)):
            value = properties.system(self.system_names[index])
            if not isinstance(value, str) or value != self.system_texts[index]:
                return False
        for index in range(len(self.user_keys)):
            if index & NODES_MASK == NODES_MASK:
                properties.work += 1
            wanted = self.user_values[index]
            value = properties.user(self.user_keys[index])
            if isinstance(wanted, str):
                if not isinstance(value, str) or value != wanted:
                    return False
            elif compare(EQUAL, value, wanted) != TRUE:
                return False
        return True


def compile_filter(rule_filter: RuleFilter) -> Condition:
    """Raises ArgumentError that says what is wrong with the filter, and where."""
    if isinstance(rule_filter, SqlFilter):
        builder = Builder(rule_filter.parameters, is_action=False)
        return SqlCondition(builder.predicate(parse_filter(rule_filter.expression)))
    if isinstance(rule_filter, CorrelationFilter):
        return _correlation(rule_filter)
    if isinstance(rule_filter, TrueFilter):
        return Always()
    assert isinstance(rule_filter, FalseFilter), rule_filter
    return Never()


def _correlation(wanted: CorrelationFilter) -> CorrelationCondition:
    condition = CorrelationCondition()
    _add_system(condition, names.CORRELATION_ID, wanted.correlation_id)
    _add_system(condition, names.MESSAGE_ID, wanted.message_id)
    _add_system(condition, names.TO, wanted.to)
    _add_system(condition, names.REPLY_TO, wanted.reply_to)
    _add_system(condition, names.LABEL, wanted.label)
    _add_system(condition, names.SESSION_ID, wanted.session_id)
    _add_system(condition, names.REPLY_TO_SESSION_ID, wanted.reply_to_session_id)
    _add_system(condition, names.CONTENT_TYPE, wanted.content_type)
    for name, value in check_values(wanted.properties, "correlation properties").items():
        if fold(name) in condition.user_keys:
            raise ArgumentError(f"The correlation property '{name}' is given twice; the case of names does not matter.")
        condition.user_keys.append(fold(name))
        condition.user_values.append(value)
    if not condition.system_names and not condition.user_keys:
        raise ArgumentError(
            "A correlation filter needs at least one property to compare; for all messages use a true filter."
        )
    return condition


def _add_system(condition: CorrelationCondition, name: str, text: str | None) -> None:
    if text is None:
        return
    problem = text_problem(text)
    if problem is not None:
        raise ArgumentError(f"{name} of a correlation filter is no text: {problem}.")
    if len(text) > names.SETTABLE[name]:
        raise ArgumentError(f"{name} of a correlation filter has at most {names.SETTABLE[name]} characters.")
    condition.system_names.append(name)
    condition.system_texts.append(text)
