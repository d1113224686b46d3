"""A quick parser of Azure's SQL subset: what the grammar makes of a text, in a fifth of its time.

It knows what is right and nothing of mistakes: of a text that it does not understand, the grammar (`grammar.py`)
says what is wrong and where. tests/broker/test_filter_parser.py holds the two against each other.
"""

import re
from typing import Final

from spillway.broker.rules import syntax as syn
from spillway.broker.rules.syntax import Syntax, syntax_error
from spillway.model.errors import ArgumentError
from spillway.model.rules import CONDITIONS_MAX, EXPRESSION_CHARS_MAX, NESTING_MAX
from spillway.model.texts import text_problem

_AND: Final = "and"
_OR: Final = "or"
_NOT: Final = "not"
_IS: Final = "is"
_IN: Final = "in"
_LIKE: Final = "like"
_ESCAPE: Final = "escape"
_EXISTS: Final = "exists"
_NULL: Final = "null"
_SET: Final = "set"
_REMOVE: Final = "remove"
_COMPARATOR: Final = "COMPARATOR"
_END: Final = ""

# The grammar takes seven microseconds for each: nobody waits for it to find fault with a longer text.
EXPLAINED_TOKENS_MAX: Final = 200

# The grammar's terminals, in the order in which its lexer tries them.
_VALUES: Final = (
    r"(?P<BOOLEAN>(?i:true|false)(?!\w))"
    r"|(?P<DECIMAL>(?i:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+))"
    r"|(?P<INTEGER>[0-9]+)"
    r"|(?P<STRING>'(?:''|[^'])*+')"
    r"|(?P<DELIMITED>\[(?:\]\]|[^\]])++\])"
    r'|(?P<QUOTED>"(?:""|[^"])++")'
    r"|(?P<NAME>[^\W\d_]\w*)"
    r"|(?P<PARAMETER>@\w+)"
)
_FILTER: Final = re.compile(
    r"\s*(?:(?P<word>(?i:or|and|not|is|in|like|escape|exists|null)(?!\w))|"
    + _VALUES
    + r"|(?P<COMPARATOR><>|!=|<=|>=|=|<|>)|(?P<sign>[+*/%(),.]|-(?!-)))"
)
_ACTION: Final = re.compile(
    r"\s*(?:(?P<word>(?i:set|remove|null)(?!\w))|" + _VALUES + r"|(?P<sign>[=;+*/%(),.]|-(?!-)))"
)
# What the grammar calls the signs that stay in what it makes.
_SIGNS: Final[dict[str, str]] = {"+": "PLUS", "-": "MINUS", "*": "FACTOR", "/": "FACTOR", "%": "FACTOR"}
_LEAVES: Final = frozenset((syn.STRING, syn.INTEGER, syn.DECIMAL, syn.BOOLEAN, syn.PARAMETER))


def parse_filter(text: str) -> Syntax:
    """Raises ArgumentError that says where and what is wrong."""
    syntax = _parse(text, False, "a filter")
    if syntax.conditions > CONDITIONS_MAX:
        raise ArgumentError(
            f"A SQL filter has at most {CONDITIONS_MAX} conditions, this one has {syntax.conditions}."
            " Use IN, or several rules: they are combined by OR."
        )
    return syntax


def parse_action(text: str) -> Syntax:
    syntax = _parse(text, True, "an action")
    if len(syntax.children) > CONDITIONS_MAX:
        raise ArgumentError(
            f"A SQL action has at most {CONDITIONS_MAX} statements, this one has {len(syntax.children)}."
        )
    return syntax


def _parse(text: str, is_action: bool, what: str) -> Syntax:
    if not text.strip():
        raise ArgumentError(f"The SQL expression of {what} must not be empty.")
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ArgumentError(
            f"The SQL expression of {what} has at most {EXPRESSION_CHARS_MAX} characters, this one has {len(text)}."
        )
    problem = text_problem(text)
    if problem is not None:
        raise ArgumentError(f"The SQL expression of {what} is no text: {problem}.")
    parser = _Parser()
    found = parser.parse(text, is_action)
    if found is None:
        if len(parser.leaves) > EXPLAINED_TOKENS_MAX:
            raise parser.refusal(what)
        # lark is loaded with the first mistake: most brokers never see one.
        from spillway.broker.rules.grammar import parse_by_grammar

        found = parse_by_grammar(text, is_action)
    if found.depth > NESTING_MAX:
        raise _too_deep(what, f"this one {found.depth}")
    return found


def _too_deep(what: str, how_deep: str) -> ArgumentError:
    return ArgumentError(f"The SQL expression of {what} is nested at most {NESTING_MAX} deep, {how_deep}.")


def parse_quickly(text: str, is_action: bool) -> Syntax | None:
    """None: it is not right, or too deep."""
    return _Parser().parse(text, is_action)


class _Wrong(Exception):
    pass


class _Parser:
    """Recursive descent. `kind` is of the token that is next: a terminal's name, a word in small letters, a sign."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.leaves: list[Syntax] = []
        self.at = 0
        self.kind = _END
        self.depth = 0
        self.is_value = False  # what `_condition_or_sum` has found

    def parse(self, text: str, is_action: bool) -> Syntax | None:
        if not self.read(text, is_action):
            return None
        try:
            found = self.statements() if is_action else self.either()
        except _Wrong:
            return None
        return found if self.kind == _END else None

    def refusal(self, what: str) -> ArgumentError:
        """The refusal of a text, at the place where it was left. What was expected there takes the grammar too long."""
        if self.depth > NESTING_MAX:
            return _too_deep(what, "this one deeper")
        place = self.leaves[min(self.at, len(self.leaves) - 1)]
        details = "syntax error" if self.at < len(self.leaves) else "syntax error behind it"
        return syntax_error(place.line, place.column, place.text, details)

    def read(self, text: str, is_action: bool) -> bool:
        """All tokens. False: there is something that is none."""
        pattern = _ACTION if is_action else _FILTER
        text = text.rstrip()
        has_lines = "\n" in text
        line = 1
        line_begins = 0
        looked_upto = 0
        at = 0
        while at < len(text):
            found = pattern.match(text, at)
            if found is None:
                self.at = len(self.leaves)
                return False
            kind = found.lastgroup
            assert kind is not None
            begin, at = found.span(kind)
            if has_lines:
                line += text.count("\n", looked_upto, begin)
                line_begins = text.rfind("\n", 0, begin) + 1
                looked_upto = begin
            token = text[begin:at]
            self.leaves.append(Syntax(_SIGNS.get(token, kind), [], token, line, begin - line_begins + 1))
            if kind == "word":
                kind = token.lower()
            elif kind == "sign":
                kind = token
            self.kinds.append(kind)
        self.kinds.append(_END)
        self.kind = self.kinds[0]
        return True

    def _next(self) -> Syntax:
        """The token that was next, as a leaf."""
        leaf = self.leaves[self.at]
        self.at += 1
        self.kind = self.kinds[self.at]
        return leaf

    def _expect(self, kind: str) -> None:
        if self.kind != kind:
            raise _Wrong()
        self._next()

    def _go_deeper(self) -> None:
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise _Wrong()

    # -- conditions -------------------------------------------------------------------------------------------

    def either(self) -> Syntax:
        return self._either_from(self._negatable())

    def _either_from(self, first: Syntax) -> Syntax:
        first = self._both_from(first)
        if self.kind != _OR:
            return first
        parts = [first]
        while self.kind == _OR:
            self._next()
            parts.append(self._both_from(self._negatable()))
        return Syntax(syn.EITHER, parts, "", 0, 0)

    def _both_from(self, first: Syntax) -> Syntax:
        if self.kind != _AND:
            return first
        parts = [first]
        while self.kind == _AND:
            self._next()
            parts.append(self._negatable())
        return Syntax(syn.BOTH, parts, "", 0, 0)

    def _negatable(self) -> Syntax:
        found = self._negatable_or_sum()
        if self.is_value:
            raise _Wrong()
        return found

    def _negatable_or_sum(self) -> Syntax:
        if self.kind == _NOT:
            self._next()
            self._go_deeper()
            inner = self._negatable()
            self.depth -= 1
            self.is_value = False
            return Syntax(syn.NEGATION, [inner], "", 0, 0)
        return self._condition_or_sum()

    def _condition_or_sum(self) -> Syntax:
        """What a bracket begins shows only at its end: a condition, or a value that is compared."""
        if self.kind == _EXISTS:
            self._next()
            self._expect("(")
            place = self._property()
            self._expect(")")
            self.is_value = False
            return Syntax(syn.EXISTS, [place], "", 0, 0)
        if self.kind == "(":
            self._next()
            self._go_deeper()
            inner = self._negatable_or_sum()
            if not self.is_value:
                inner = self._either_from(inner)
                self.is_value = False
            self.depth -= 1
            is_value = self.is_value
            self._expect(")")
            nested = Syntax(syn.NESTED, [inner], "", 0, 0)
            if not is_value:
                self.is_value = False
                return nested
            left = self._sum_from(self._product_from(nested))
        else:
            left = self._sum()
        return self._condition_of(left)

    def _condition_of(self, left: Syntax) -> Syntax:
        self.is_value = False
        kind = self.kind
        if kind == _COMPARATOR:
            operator = self._next()
            return self._made(syn.COMPARISON, [left, operator, self._sum()])
        if kind == _IS:
            if left.kind != syn.PROPERTY and left.kind != syn.CALL:
                raise _Wrong()
            self._next()
            if self.kind == _NOT:
                self._next()
                self._expect(_NULL)
                return Syntax(syn.IS_NOT_NULL, [left], "", 0, 0)
            self._expect(_NULL)
            return Syntax(syn.IS_NULL, [left], "", 0, 0)
        is_negated = kind == _NOT
        if is_negated:
            self._next()
            kind = self.kind
        if kind == _IN:
            self._next()
            return self._made(syn.IS_NOT_IN if is_negated else syn.IS_IN, [left, self._choices()])
        if kind == _LIKE:
            self._next()
            parts = [left, self._sum()]
            if self.kind == _ESCAPE:
                self._next()
                parts.append(self._sum())
            return self._made(syn.NOT_LIKE if is_negated else syn.LIKE, parts)
        if is_negated:
            raise _Wrong()
        self.is_value = True
        return left

    def _made(self, kind: str, parts: list[Syntax]) -> Syntax:
        self.is_value = False
        return Syntax(kind, parts, "", 0, 0)

    def _choices(self) -> Syntax:
        self._expect("(")
        parts = [self._sum()]
        while self.kind == ",":
            self._next()
            parts.append(self._sum())
        self._expect(")")
        return Syntax(syn.CHOICES, parts, "", 0, 0)

    # -- actions ----------------------------------------------------------------------------------------------

    def statements(self) -> Syntax:
        found: list[Syntax] = []
        while True:
            if self.kind == _SET:
                self._next()
                place = self._property()
                self._expect("=")
                found.append(Syntax(syn.SET, [place, self._sum()], "", 0, 0))
            else:
                self._expect(_REMOVE)
                found.append(Syntax(syn.REMOVE, [self._property()], "", 0, 0))
            while self.kind == ";":
                self._next()
            if self.kind == _END:
                return Syntax(syn.STATEMENTS, found, "", 0, 0)

    # -- values -----------------------------------------------------------------------------------------------

    def _sum(self) -> Syntax:
        return self._sum_from(self._product())

    def _sum_from(self, first: Syntax) -> Syntax:
        if self.kind != "+" and self.kind != "-":
            return first
        parts = [first]
        while self.kind == "+" or self.kind == "-":
            parts.append(self._next())
            parts.append(self._product())
        return Syntax(syn.SUM, parts, "", 0, 0)

    def _product(self) -> Syntax:
        return self._product_from(self._signed())

    def _product_from(self, first: Syntax) -> Syntax:
        if self.kind != "*" and self.kind != "/" and self.kind != "%":
            return first
        parts = [first]
        while self.kind == "*" or self.kind == "/" or self.kind == "%":
            parts.append(self._next())
            parts.append(self._signed())
        return Syntax(syn.PRODUCT, parts, "", 0, 0)

    def _signed(self) -> Syntax:
        kind = self.kind
        if kind == "+" or kind == "-":
            sign = self._next()
            self._go_deeper()
            operand = self._signed()
            self.depth -= 1
            return Syntax(syn.POSITIVE if kind == "+" else syn.NEGATIVE, [sign, operand], "", 0, 0)
        return self._atom()

    def _atom(self) -> Syntax:
        kind = self.kind
        if kind == syn.NAME:
            if self.kinds[self.at + 1] == "(":
                return self._call()
            return self._property()
        if kind in _LEAVES:
            return self._next()
        if kind == _NULL:
            self._next()
            return Syntax(syn.NULL, [], "", 0, 0)
        if kind == "(":
            self._next()
            self._go_deeper()
            inner = self._sum()
            self.depth -= 1
            self._expect(")")
            return Syntax(syn.NESTED, [inner], "", 0, 0)
        return self._property()

    def _call(self) -> Syntax:
        parts = [self._next()]
        self._next()
        if self.kind != ")":
            self._go_deeper()
            parts.append(self._sum())
            self.depth -= 1
        self._expect(")")
        return Syntax(syn.CALL, parts, "", 0, 0)

    def _property(self) -> Syntax:
        kind = self.kind
        if kind != syn.NAME and kind != syn.DELIMITED and kind != syn.QUOTED:
            raise _Wrong()
        parts = [self._next()]
        if kind == syn.NAME and self.kind == ".":
            self._next()
            if self.kind != syn.NAME and self.kind != syn.DELIMITED and self.kind != syn.QUOTED:
                raise _Wrong()
            parts.append(self._next())
        return Syntax(syn.PROPERTY, parts, "", 0, 0)
