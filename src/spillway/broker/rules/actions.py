"""Actions ready to be applied: what a rule changes in its copy of a message."""

from spillway.broker.rules import syntax as syn
from spillway.broker.rules.builder import Builder
from spillway.broker.rules.nodes import Expression, SystemProperty, UserProperty
from spillway.broker.rules.parser import parse_action
from spillway.broker.rules.syntax import Syntax, syntax_error
from spillway.broker.rules.values import kind_of, text_of
from spillway.model.properties import (
    MESSAGE_ID,
    SCHEDULED_ENQUEUE_TIME,
    SETTABLE,
    TIME_TO_LIVE,
    ChangedProperties,
    Duration,
    MessageProperties,
    Moment,
    fold,
)
from spillway.model.rules import FilterError, SqlAction


class Statement:
    """A statement of an action: one change to a property."""

    def apply(self, changed: ChangedProperties) -> None:
        """May raise FilterError."""


class SetUser(Statement):
    """Makes or changes a property. What is unknown makes it null: it exists, and is nothing."""

    def __init__(self, name: str, expression: Expression) -> None:
        self.name = name
        self.key = fold(name)
        self.expression = expression

    def apply(self, changed: ChangedProperties) -> None:
        value = self.expression.value(changed)
        if isinstance(value, int) and not isinstance(value, bool) and isinstance(changed.user(self.key), float):
            value = float(value)  # SET converts to the type that the property has, where C# does so by itself
        changed.set_user(self.name, value)


class RemoveUser(Statement):
    def __init__(self, name: str) -> None:
        self.name = name

    def apply(self, changed: ChangedProperties) -> None:
        changed.remove_user(self.name)


class SetSystem(Statement):
    """`expression` is None to remove the property."""

    def __init__(self, name: str, expression: Expression | None) -> None:
        self.name = name
        self.chars_max = SETTABLE[name]
        self.expression = expression

    def apply(self, changed: ChangedProperties) -> None:
        value = None if self.expression is None else self.expression.value(changed)
        changed.set_system(self.name, None if value is None else self._converted(value))

    def _converted(self, value: object) -> object:
        if self.name == TIME_TO_LIVE:
            if not isinstance(value, Duration) or value.ms <= 0:
                raise FilterError(f"sys.{self.name} is a duration greater than zero, not {kind_of(value)}.")
            return value
        if self.name == SCHEDULED_ENQUEUE_TIME:
            if not isinstance(value, Moment):
                raise FilterError(f"sys.{self.name} is a time, not {kind_of(value)}.")
            return value
        text = text_of(value)
        if text is None:
            raise FilterError(f"sys.{self.name} is a string, not {kind_of(value)}.")
        if len(text) > self.chars_max:
            raise FilterError(f"sys.{self.name} has at most {self.chars_max} characters, this would have {len(text)}.")
        if not text and self.name == MESSAGE_ID:
            raise FilterError("sys.MessageId cannot be empty.")
        return text


class Action:
    """The statements of one rule, performed in order; each sees what those before it did."""

    def __init__(self, statements: list[Statement]) -> None:
        self.statements = statements

    def apply(self, properties: MessageProperties, seed: bytes = b"") -> ChangedProperties:
        """What becomes of the copy. All or nothing: FilterError is raised before anybody has seen a change.

        `seed` is for newid(): bytes that no other copy of any message gets, so that no two have the same id.
        """
        changed = ChangedProperties(properties, seed)
        for statement in self.statements:
            statement.apply(changed)
        return changed


def compile_action(action: SqlAction) -> Action:
    """Raises ArgumentError that says what is wrong with the action, and where."""
    builder = Builder(action.parameters, is_action=True)
    return Action([_statement(builder, child) for child in parse_action(action.expression).children])


def _statement(builder: Builder, syntax: Syntax) -> Statement:
    place = syntax.children[0]
    leaf = place.children[-1]
    target = builder.property(place)
    expression = builder.expression(syntax.children[1]) if syntax.kind == syn.SET else None
    if isinstance(target, UserProperty):
        return RemoveUser(target.name) if expression is None else SetUser(target.name, expression)
    assert isinstance(target, SystemProperty), syntax.kind
    if target.name not in SETTABLE:
        details = f"{target.name} belongs to the broker; an action may set {', '.join(sorted(SETTABLE))}"
        raise syntax_error(leaf.line, leaf.column, leaf.text, details)
    if expression is None and target.name == MESSAGE_ID:
        raise syntax_error(leaf.line, leaf.column, leaf.text, "a message keeps a MessageId; it can be set, not removed")
    return SetSystem(target.name, expression)
