"""From syntax to nodes: names are looked up, constants read, and whatever can be refused before a message comes, is."""

from typing import Final

from spillway.broker.rules import syntax as syn
from spillway.broker.rules.like import LikePattern
from spillway.broker.rules.nodes import (
    Both,
    Calculation,
    Comparison,
    Constant,
    Either,
    Exists,
    Expression,
    In,
    InTexts,
    IsNull,
    Like,
    LikeProperty,
    Negative,
    NewId,
    Not,
    Predicate,
    PropertyByName,
    SystemProperty,
    TextIs,
    UserProperty,
)
from spillway.broker.rules.syntax import Syntax, syntax_error
from spillway.broker.rules.values import (
    EQUAL,
    GREATER,
    GREATER_OR_EQUAL,
    INTEGER_MAX,
    LESS,
    LESS_OR_EQUAL,
    NOT_EQUAL,
    kind_of,
    negate,
)
from spillway.model.errors import ArgumentError
from spillway.model.properties import fold, system_name
from spillway.model.rule_values import RuleValue
from spillway.model.rules import RULE_VALUES_CHARS_MAX, RULE_VALUES_MAX, FilterError
from spillway.model.texts import text_problem

_OPERATORS: Final[dict[str, int]] = {
    "=": EQUAL,
    "<>": NOT_EQUAL,
    "!=": NOT_EQUAL,
    "<": LESS,
    "<=": LESS_OR_EQUAL,
    ">": GREATER,
    ">=": GREATER_OR_EQUAL,
}
# In an action the grammar itself knows only some of these.
RESERVED: Final = frozenset(("and", "or", "not", "in", "like", "escape", "is", "null", "exists", "true", "false"))


def check_values(values: dict[str, RuleValue], what: str) -> dict[str, object]:
    """Parameters or properties of a rule as what they stand for; their names as they were written."""
    if len(values) > RULE_VALUES_MAX:
        raise ArgumentError(f"A rule has at most {RULE_VALUES_MAX} {what}, this one has {len(values)}.")
    chars = 0
    known: dict[str, object] = {}
    for name, value in values.items():
        chars += len(name) + len(value.text)
        if chars > RULE_VALUES_CHARS_MAX:
            raise ArgumentError(f"The {what} of a rule have at most {RULE_VALUES_CHARS_MAX} characters together.")
        if not name or name == "@":
            raise ArgumentError(f"One of the rule's {what} has no name.")
        problem = text_problem(name) or text_problem(value.text)
        if problem is not None:
            raise ArgumentError(f"One of the rule's {what} is no text: {problem}.")
        known[name] = value.value()
    return known


class Builder:
    """Makes the nodes of one expression."""

    def __init__(self, parameters: dict[str, RuleValue], is_action: bool) -> None:
        self.is_action = is_action
        self.parameters: dict[str, object] = {}
        for name, value in check_values(parameters, "parameters").items():
            self.parameters[fold(name if name.startswith("@") else "@" + name)] = value

    # -- conditions -------------------------------------------------------------------------------------------

    def predicate(self, syntax: Syntax) -> Predicate:
        kind = syntax.kind
        if kind == syn.COMPARISON:
            return self._comparison(syntax)
        if kind == syn.BOTH:
            return Both([self.predicate(child) for child in syntax.children])
        if kind == syn.EITHER:
            return Either([self.predicate(child) for child in syntax.children])
        if kind == syn.NESTED:
            return self.predicate(syntax.children[0])
        if kind == syn.NEGATION:
            return Not(self.predicate(syntax.children[0]))
        if kind == syn.IS_NULL:
            return IsNull(self.expression(syntax.children[0]))
        if kind == syn.IS_NOT_NULL:
            return Not(IsNull(self.expression(syntax.children[0])))
        if kind == syn.IS_IN:
            return self._is_in(syntax)
        if kind == syn.IS_NOT_IN:
            return Not(self._is_in(syntax))
        if kind == syn.LIKE:
            return self._like(syntax)
        if kind == syn.NOT_LIKE:
            return Not(self._like(syntax))
        assert kind == syn.EXISTS, kind
        return Exists(self.expression(syntax.children[0]))

    def _comparison(self, syntax: Syntax) -> Predicate:
        left = self.expression(syntax.children[0])
        operator = _OPERATORS[syntax.children[1].text]
        right = self.expression(syntax.children[2])
        if isinstance(right, Constant) and (operator == EQUAL or operator == NOT_EQUAL):
            text = right.constant
            if isinstance(text, str):
                return TextIs(operator, left, text)
        return Comparison(operator, left, right)

    def _is_in(self, syntax: Syntax) -> Predicate:
        left = self.expression(syntax.children[0])
        choices = [self.expression(child) for child in syntax.children[1].children]
        texts: set[str] = set()
        for choice in choices:
            if not isinstance(choice, Constant):
                return In(left, choices)
            text = choice.constant
            if not isinstance(text, str):
                return In(left, choices)
            texts.add(text)
        return InTexts(left, texts)

    def _like(self, syntax: Syntax) -> Predicate:
        left = self.expression(syntax.children[0])
        pattern = self.expression(syntax.children[1])
        escape = self.expression(syntax.children[2]) if len(syntax.children) > 2 else None
        if isinstance(pattern, Constant):
            self._check_text(syntax.children[1], pattern.constant, "the pattern of LIKE is a string")
        if isinstance(escape, Constant):
            self._check_escape(syntax.children[2], escape.constant)
        if not isinstance(pattern, Constant) or (escape is not None and not isinstance(escape, Constant)):
            return LikeProperty(left, pattern, escape)
        known_pattern = pattern.constant
        known_escape = "" if escape is None else escape.constant
        if not isinstance(known_pattern, str) or not isinstance(known_escape, str):  # NULL: always unknown
            return LikeProperty(left, pattern, escape)
        try:
            return Like(left, LikePattern(known_pattern, known_escape))
        except FilterError as error:
            raise self._refusal(syntax.children[1], error.description) from error

    def _check_text(self, place: Syntax, value: object, details: str) -> None:
        if value is not None and not isinstance(value, str):
            raise self._refusal(place, f"{details}, not {kind_of(value)}")

    def _check_escape(self, place: Syntax, value: object) -> None:
        self._check_text(place, value, "the ESCAPE character is a string of one character")
        if isinstance(value, str) and len(value) != 1:
            raise self._refusal(place, f"the ESCAPE character is a string of one character, not of {len(value)}")

    # -- values -----------------------------------------------------------------------------------------------

    def expression(self, syntax: Syntax) -> Expression:
        kind = syntax.kind
        if kind == syn.PROPERTY:
            return self.property(syntax)
        if kind == syn.NESTED:
            return self.expression(syntax.children[0])
        if kind == syn.SUM or kind == syn.PRODUCT:
            children = syntax.children
            signs = [children[index].text for index in range(1, len(children), 2)]
            others = [self.expression(children[index]) for index in range(2, len(children), 2)]
            return Calculation(self.expression(children[0]), signs, others)
        if kind == syn.NEGATIVE:
            return self._negative(syntax)
        if kind == syn.POSITIVE:
            return self.expression(syntax.children[1])
        if kind == syn.CALL:
            return self._call(syntax)
        if kind == syn.NULL:
            return Constant(None)
        return Constant(self._constant(syntax))

    def _constant(self, syntax: Syntax) -> object:
        kind = syntax.kind
        if kind == syn.STRING:
            return syntax.text[1:-1].replace("''", "'")
        if kind == syn.INTEGER:
            return self._integer(syntax, INTEGER_MAX)
        if kind == syn.DECIMAL:
            value = float(syntax.text)
            if value > 1.7976931348623157e308:
                raise self._refusal(syntax, "a number is at most 1.7976931348623157E308")
            return value
        if kind == syn.BOOLEAN:
            return fold(syntax.text) == "true"
        assert kind == syn.PARAMETER, kind
        key = fold(syntax.text)
        if key not in self.parameters:
            given = ", ".join(sorted(self.parameters)) or "none"
            raise self._refusal(syntax, f"there is no such parameter; given: {given}")
        return self.parameters[key]

    def _integer(self, syntax: Syntax, largest: int) -> int:
        digits = syntax.text.lstrip("0") or "0"
        if len(digits) > 19 or int(digits) > largest:
            raise self._refusal(syntax, f"an integer is at most {INTEGER_MAX}; write it with a decimal point")
        return int(digits)

    def _negative(self, syntax: Syntax) -> Expression:
        """The sign of a constant is part of it, or the least integer could not be written."""
        operand = syntax.children[1]
        if operand.kind == syn.INTEGER:
            return Constant(-self._integer(operand, INTEGER_MAX + 1))
        node = self.expression(operand)
        if not isinstance(node, Constant):
            return Negative(node)
        try:
            return Constant(negate(node.constant))
        except FilterError as error:
            raise self._refusal(syntax, error.description) from error

    def _call(self, syntax: Syntax) -> Expression:
        name = fold(syntax.children[0].text)
        arguments = syntax.children[1:]
        if name == "newid" and not arguments:
            if not self.is_action:
                raise self._refusal(syntax, "newid() is for actions: in a filter it would equal nothing")
            return NewId()
        if (name == "property" or name == "p") and arguments:
            argument = self.expression(arguments[0])
            if isinstance(argument, Constant):
                value = argument.constant
                if not isinstance(value, str):
                    raise self._refusal(arguments[0], f"the name of a property is a string, not {kind_of(value)}")
                return UserProperty(value)
            return PropertyByName(argument)
        raise self._refusal(syntax.children[0], "the functions are property(name), p(name) and newid()")

    def property(self, syntax: Syntax) -> Expression:
        """A `UserProperty` or a `SystemProperty`."""
        leaf = syntax.children[-1]
        name = self._name(leaf)
        if len(syntax.children) == 1:
            return UserProperty(name)
        scope = fold(syntax.children[0].text)
        if scope == "user":
            return UserProperty(name)
        if scope != "sys":
            raise self._refusal(
                syntax, "before the '.' stands sys or user; a name that has a '.' in it is written [in.brackets]"
            )
        known = system_name(name)
        if known is None:
            raise self._refusal(leaf, f"there is no system property '{name}'")
        return SystemProperty(known)

    def _name(self, leaf: Syntax) -> str:
        if leaf.kind == syn.DELIMITED:
            return leaf.text[1:-1].replace("]]", "]")
        if leaf.kind == syn.QUOTED:
            return leaf.text[1:-1].replace('""', '"')
        if fold(leaf.text) in RESERVED:
            raise self._refusal(leaf, "a word of the language as a name is written in brackets: [name]")
        return leaf.text

    def _refusal(self, syntax: Syntax, details: str) -> ArgumentError:
        token = syntax
        while not token.text and token.children:
            token = token.children[0]
        return syntax_error(token.line, token.column, token.text, details)
