"""The nodes that a rule's text becomes: expressions have a value, predicates are true, false or unknown.

Built by `builder`; nesting is bounded there, so evaluation may recurse. A parsed rule is shared by all messages
of its topic and keeps nothing of any of them.
"""

from typing import Final

from spillway.broker.rules.like import PATTERN_CHARS_MAX, LikePattern
from spillway.broker.rules.values import (
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

# What evaluating takes beside the one step of a rule, in steps of model/limits.py. Measured on the compiled build.
NODES_PER_STEP: Final = 4
NODES_MASK: Final = NODES_PER_STEP - 1
EQUAL_CHARS_PER_STEP: Final = 8_192  # of two texts: whether they are the same
ORDERED_CHARS_PER_STEP: Final = 4_096  # which is the greater
JOINED_CHARS_PER_STEP: Final = 8_192
HASHED_CHARS_PER_STEP: Final = 1_024
FOLDED_CHARS_PER_STEP: Final = 128
CUT_CHARS_PER_STEP: Final = 8  # of a pattern that a message brings
ASKED_CHARS_MIN: Final = 256  # of a text: matching a shorter one takes no longer than looking up what came of it


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
        if properties.settled is not None and self in properties.settled:
            return properties.settled[self]
        name = self.name.value(properties)
        if isinstance(name, str):
            value = properties.user(fold(name))
            if len(name) > FOLDED_CHARS_PER_STEP:
                properties.settle(self, value, len(name) // FOLDED_CHARS_PER_STEP)
            return value
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
            if isinstance(result, str):
                properties.work += len(result) // JOINED_CHARS_PER_STEP
        properties.work += len(self.others) // NODES_PER_STEP
        return result


def is_of_the_message(left: Expression) -> bool:
    """Whether a text is there as long as the message is: what is asked about it is remembered meanwhile.

    Many rules may ask the same. What was put together for one question is not kept.
    """
    return isinstance(left, (UserProperty, SystemProperty))


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
        for index in range(len(self.parts)):
            outcome = self.parts[index].test(properties)
            if index & NODES_MASK == NODES_MASK:
                properties.work += 1
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
        for index in range(len(self.parts)):
            outcome = self.parts[index].test(properties)
            if index & NODES_MASK == NODES_MASK:
                properties.work += 1
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
        left = self.left.value(properties)
        if isinstance(left, str):
            properties.work += len(left) // ORDERED_CHARS_PER_STEP
        return compare(self.operator, left, self.right.value(properties))


class TextIs(Predicate):
    """`property = 'text'` or `<>`: what most filters are."""

    def __init__(self, operator: int, left: Expression, text: str) -> None:
        assert operator == EQUAL or operator == NOT_EQUAL, operator
        self.is_negated = operator == NOT_EQUAL
        self.left = left
        self.text = text
        self.work = len(text) // EQUAL_CHARS_PER_STEP

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        if not isinstance(value, str):
            return UNKNOWN
        properties.work += self.work
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
        work = len(value) // EQUAL_CHARS_PER_STEP if isinstance(value, str) else 0
        result = FALSE
        for index in range(len(self.choices)):
            outcome = compare(EQUAL, value, self.choices[index].value(properties))
            properties.work += work
            if index & NODES_MASK == NODES_MASK:
                properties.work += 1
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
        self.is_hashed = is_of_the_message(left)  # once, that is

    def test(self, properties: MessageProperties) -> int:
        value = self.left.value(properties)
        if not isinstance(value, str):
            return UNKNOWN
        if not self.is_hashed:
            properties.work += len(value) // HASHED_CHARS_PER_STEP
        return TRUE if value in self.texts else FALSE


class Like(Predicate):
    """LIKE with a pattern known in advance."""

    def __init__(self, left: Expression, pattern: LikePattern) -> None:
        self.left = left
        self.pattern = pattern
        self.is_kept = is_of_the_message(left)

    def test(self, properties: MessageProperties) -> int:
        if properties.settled is not None and self in properties.settled:
            return TRUE if properties.settled[self] else FALSE
        value = self.left.value(properties)
        if not isinstance(value, str):
            return UNKNOWN
        like = self.pattern
        memory = properties.text_memory()
        if self.is_kept and len(value) >= ASKED_CHARS_MIN:
            answer = memory.answers.get((value, like.pattern, like.escape))
            if answer is not None:
                properties.work += 1
                return TRUE if answer else FALSE
        is_like = like.matches(value, memory)
        if like.work > 0:
            if self.is_kept:
                memory.store_answer(value, like.pattern, like.escape, is_like)
            properties.settle(self, is_like, like.work)
        return TRUE if is_like else FALSE


class LikeProperty(Predicate):
    """LIKE with a pattern or an escape character that the message brings."""

    def __init__(self, left: Expression, pattern: Expression, escape: Expression | None) -> None:
        self.left = left
        self.pattern = pattern
        self.escape = escape
        self.is_kept = is_of_the_message(left)

    def test(self, properties: MessageProperties) -> int:
        if properties.settled is not None and self in properties.settled:
            return TRUE if properties.settled[self] else FALSE
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
        return TRUE if self._is_like(value, pattern, escape, properties) else FALSE

    def _is_like(self, text: str, pattern: str, escape: str, properties: MessageProperties) -> bool:
        memory = properties.text_memory()
        if self.is_kept:
            answer = memory.answers.get((text, pattern, escape))
            if answer is not None:
                properties.work += 1
                return answer
        properties.work += 1 + min(len(pattern), PATTERN_CHARS_MAX) // CUT_CHARS_PER_STEP
        like = LikePattern(pattern, escape)
        is_like = like.matches(text, memory)
        if self.is_kept:
            memory.store_answer(text, pattern, escape, is_like)
        properties.settle(self, is_like, like.work)
        return is_like


class IsNull(Predicate):
    """Absent and null are the same here. Never unknown."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def test(self, properties: MessageProperties) -> int:
        return TRUE if self.operand.value(properties) is None else FALSE


class Exists(Predicate):
    """EXISTS: a user property is there, even as null; a system property has a value."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def test(self, properties: MessageProperties) -> int:
        operand = self.operand
        if isinstance(operand, UserProperty):
            return TRUE if properties.has_user(operand.key) else FALSE
        return FALSE if operand.value(properties) is None else TRUE
