"""The nodes that a rule's text becomes: expressions have a value, predicates are true, false or unknown.

Built by `filter_builder`; nesting is bounded there, so evaluation may recurse. A parsed rule is shared by all messages
of its topic and keeps nothing of any of them.
"""

from spillway.broker.filter_like import LikePattern
from spillway.broker.filter_values import (
    EQUAL,
    FALSE,
    NOT_EQUAL,
    TRUE,
    UNKNOWN,
    calculate,
    compare,
    kind_of,
    negate,
)
from spillway.model.properties import ChangedProperties, MessageProperties, fold
from spillway.model.rules import FilterError


class Expression:
    """Something with a value; None is unknown."""

    def value(self, properties: MessageProperties) -> object:
        return None


class Constant(Expression):
    def __init__(self, constant: object) -> None:
        self.constant = constant

    def value(self, properties: MessageProperties) -> object:
        return self.constant


class UserProperty(Expression):
    def __init__(self, name: str) -> None:
        self.name = name
        self.key = fold(name)

    def value(self, properties: MessageProperties) -> object:
        return properties.user(self.key)


class SystemProperty(Expression):
    """`name` is one of `model/properties.py`'s constants."""

    def __init__(self, name: str) -> None:
        self.name = name

    def value(self, properties: MessageProperties) -> object:
        return properties.system(self.name)


class PropertyByName(Expression):
    """`property(name)`: of user properties only, as on Azure."""

    def __init__(self, name: Expression) -> None:
        self.name = name

    def value(self, properties: MessageProperties) -> object:
        name = self.name.value(properties)
        if isinstance(name, str):
            return properties.user(fold(name))
        if name is None:
            return None
        raise FilterError(f"property(name) takes the name as a string, not {kind_of(name)}.")


class NewId(Expression):
    """`newid()`, in actions: their properties are changeable ones, and bring the seed."""

    def value(self, properties: MessageProperties) -> object:
        assert isinstance(properties, ChangedProperties), "the builder refuses newid() in a filter"
        return properties.new_id()


class Negative(Expression):
    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def value(self, properties: MessageProperties) -> object:
        return negate(self.operand.value(properties))


class Calculation(Expression):
    """`a + b - c` or `a * b / c`, from the left. One node however long, so that length is not depth."""

    def __init__(self, first: Expression, signs: list[str], others: list[Expression]) -> None:
        self.first = first
        self.signs = signs
        self.others = others

    def value(self, properties: MessageProperties) -> object:
        result = self.first.value(properties)
        for index in range(len(self.others)):
            result = calculate(self.signs[index], result, self.others[index].value(properties))
        return result


class Predicate:
    """Something that holds, does not hold, or is not known."""

    def test(self, properties: MessageProperties) -> int:
        return UNKNOWN


class Both(Predicate):
    """AND: false as soon as one is false; what follows is not looked at."""

    def __init__(self, parts: list[Predicate]) -> None:
        self.parts = parts

    def test(self, properties: MessageProperties) -> int:
        result = TRUE
        for part in self.parts:
            outcome = part.test(properties)
            if outcome == FALSE:
                return FALSE
            if outcome == UNKNOWN:
                result = UNKNOWN
        return result


class Either(Predicate):
    """OR: true as soon as one is true."""

    def __init__(self, parts: list[Predicate]) -> None:
        self.parts = parts

    def test(self, properties: MessageProperties) -> int:
        result = FALSE
        for part in self.parts:
            outcome = part.test(properties)
            if outcome == TRUE:
                return TRUE
            if outcome == UNKNOWN:
                result = UNKNOWN
        return result


class Not(Predicate):
    def __init__(self, part: Predicate) -> None:
        self.part = part

    def test(self, properties: MessageProperties) -> int:
        outcome = self.part.test(properties)
        if outcome == UNKNOWN:
            return UNKNOWN
        return FALSE if outcome == TRUE else TRUE


class Comparison(Predicate):
    def __init__(self, operator: int, left: Expression, right: Expression) -> None:
        self.operator = operator
        self.left = left
        self.right = right

    def test(self, properties: MessageProperties) -> int:
        return compare(self.operator, self.left.value(properties), self.right.value(properties))


class TextIs(Predicate):
    """`property = 'text'` or `<>`: what most filters are."""

    def __init__(self, operator: int, left: Expression, text: str) -> None:
        assert operator == EQUAL or operator == NOT_EQUAL, operator
        self.is_negated = operator == NOT_EQUAL
        self.left = left
        self.text = text

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        if not isinstance(value, str):
            return UNKNOWN
        return TRUE if (value == self.text) != self.is_negated else FALSE


class In(Predicate):
    """True if equal to one; else unknown if one of them was, as in SQL: `1 IN (2, NULL)` is not known."""

    def __init__(self, left: Expression, choices: list[Expression]) -> None:
        self.left = left
        self.choices = choices

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        if value is None:
            return UNKNOWN
        result = FALSE
        for choice in self.choices:
            outcome = compare(EQUAL, value, choice.value(properties))
            if outcome == TRUE:
                return TRUE
            if outcome == UNKNOWN:
                result = UNKNOWN
        return result


class InTexts(Predicate):
    """IN with nothing but texts to choose from."""

    def __init__(self, left: Expression, texts: set[str]) -> None:
        self.left = left
        self.texts = texts

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        if not isinstance(value, str):
            return UNKNOWN
        return TRUE if value in self.texts else FALSE


class Like(Predicate):
    """LIKE with a pattern known in advance."""

    def __init__(self, left: Expression, pattern: LikePattern) -> None:
        self.left = left
        self.pattern = pattern

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        if not isinstance(value, str):
            return UNKNOWN
        is_like = self.pattern.matches(value)
        properties.work += self.pattern.work
        return TRUE if is_like else FALSE


class LikeProperty(Predicate):
    """LIKE with a pattern or an escape character that the message brings."""

    def __init__(self, left: Expression, pattern: Expression, escape: Expression | None) -> None:
        self.left = left
        self.pattern = pattern
        self.escape = escape

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        pattern = self.pattern.value(properties)
        escape: object = "" if self.escape is None else self.escape.value(properties)
        if value is None or pattern is None or escape is None:
            return UNKNOWN
        if not isinstance(pattern, str):
            raise FilterError(f"The pattern of LIKE is a string, not {kind_of(pattern)}.")
        if not isinstance(escape, str) or (self.escape is not None and len(escape) != 1):
            raise FilterError("The ESCAPE character of LIKE is a string of one character.")
        if not isinstance(value, str):
            return UNKNOWN
        like = LikePattern(pattern, escape)
        is_like = like.matches(value)
        properties.work += like.work + len(pattern) // 8
        return TRUE if is_like else FALSE


class IsNull(Predicate):
    """Absent and null are the same here. Never unknown."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def test(self, properties: MessageProperties) -> int:
        return TRUE if self.operand.value(properties) is None else FALSE


class Exists(Predicate):
    """Of a user property: it is there, even as null. Of a system property: it has a value."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def test(self, properties: MessageProperties) -> int:
        operand = self.operand
        if isinstance(operand, UserProperty):
            return TRUE if properties.has_user(operand.key) else FALSE
        return FALSE if operand.value(properties) is None else TRUE
