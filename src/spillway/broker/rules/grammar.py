"""The grammar of Azure's SQL subset, for filters and for actions. The only file that knows lark; not compiled.

What is right is parsed by `parser.py`, which is quicker; this is what the language is, and says what is wrong.

LALR, so parsing is linear and does not recurse. Azure's grammar keeps conditions and values apart: `TRUE` alone is not
a filter, and a condition cannot be compared. Words of the language are not property names unless in `[ ]` or `" "`.
"""

from functools import cache
from typing import Final, cast

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken

from spillway.broker.rules.syntax import Syntax, syntax_error
from spillway.model.errors import ArgumentError

_FILTER: Final = r"""
?start: either
?either: both (_OR both)*
?both: _negatable (_AND _negatable)*
_negatable: negation | condition
negation: _NOT _negatable
?condition: sum COMPARATOR sum             -> comparison
    | _reference _IS _NULL                 -> is_null
    | _reference _IS _NOT _NULL            -> is_not_null
    | sum _IN choices                      -> is_in
    | sum _NOT _IN choices                 -> is_not_in
    | sum _LIKE sum (_ESCAPE sum)?         -> like
    | sum _NOT _LIKE sum (_ESCAPE sum)?    -> not_like
    | _EXISTS "(" property ")"             -> exists
    | "(" either ")"                       -> nested
choices: "(" sum ("," sum)* ")"
_reference: property | call

COMPARATOR: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">"
_OR.2: /or(?!\w)/i
_AND.2: /and(?!\w)/i
_NOT.2: /not(?!\w)/i
_IS.2: /is(?!\w)/i
_IN.2: /in(?!\w)/i
_LIKE.2: /like(?!\w)/i
_ESCAPE.2: /escape(?!\w)/i
_EXISTS.2: /exists(?!\w)/i
"""

_ACTION: Final = r"""
start: statement+ -> statements
?statement: _action ";"*
_action: set | remove
set: _SET property "=" sum
remove: _REMOVE property

_SET.2: /set(?!\w)/i
_REMOVE.2: /remove(?!\w)/i
"""

_EXPRESSION: Final = r"""
?sum: product ((PLUS | MINUS) product)*
?product: _signed (FACTOR _signed)*
_signed: positive | negative | _atom
positive: PLUS _signed
negative: MINUS _signed
_atom: STRING | INTEGER | DECIMAL | BOOLEAN | PARAMETER | null | property | call | bracketed
null: _NULL
bracketed: "(" sum ")" -> nested
call: NAME "(" sum? ")"
property: NAME | DELIMITED | QUOTED | NAME "." (NAME | DELIMITED | QUOTED)

STRING: /'(?:''|[^'])*+'/
DELIMITED: /\[(?:\]\]|[^\]])++\]/
QUOTED: /"(?:""|[^"])++"/
DECIMAL.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INTEGER: /[0-9]+/
BOOLEAN.2: /(?:true|false)(?!\w)/i
_NULL.2: /null(?!\w)/i
NAME: /[^\W\d_]\w*/
PARAMETER: /@\w+/
PLUS: "+"
MINUS: /-(?!-)/
FACTOR: "*" | "/" | "%"
%ignore /\s+/
"""

_HINTS: Final = {
    "'": "the string that begins here does not end; a ' inside one is written twice",
    '"': 'the name that begins here does not end; a " inside one is written twice',
    "[": "the name that begins here does not end, or is empty; a ] inside one is written twice",
    "-": "there are no comments; two signs have a blank between them",
}
# Terminals in the words of the language; what stands in none of these is written as it is.
_PHRASES: Final = {
    "NAME": "a property name",
    "DELIMITED": "a property name",
    "QUOTED": "a property name",
    "STRING": "a constant",
    "INTEGER": "a constant",
    "DECIMAL": "a constant",
    "BOOLEAN": "a constant",
    "PARAMETER": "a constant",
    "_NULL": "NULL",
    "COMPARATOR": "a comparison",
    "PLUS": "an arithmetic operator",
    "MINUS": "an arithmetic operator",
    "FACTOR": "an arithmetic operator",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "DOT": ".",
    "SEMICOLON": ";",
    "EQUAL": "=",
    "$END": "the end",
}
_EXPRESSION_BEGINNINGS: Final = frozenset(
    (
        "NAME",
        "DELIMITED",
        "QUOTED",
        "STRING",
        "INTEGER",
        "DECIMAL",
        "BOOLEAN",
        "PARAMETER",
        "_NULL",
        "PLUS",
        "MINUS",
        "LPAR",
    )
)


def parse_by_grammar(text: str, is_action: bool) -> Syntax:
    """Raises ArgumentError that says where and what is wrong. Limits are for who asks."""
    parser = _action_parser() if is_action else _filter_parser()
    try:
        found = cast(object, parser.parse(text))
    except UnexpectedCharacters as error:
        raise _unknown_character(error) from None
    except UnexpectedToken as other:
        raise _unexpected(text, other) from None
    assert isinstance(found, Syntax), "both grammars begin with a rule"
    return found


@cache
def _filter_parser() -> Lark:
    return _parser(_FILTER + _EXPRESSION)


@cache
def _action_parser() -> Lark:
    return _parser(_ACTION + _EXPRESSION)


def _parser(grammar: str) -> Lark:
    # lark calls tree_class(kind, children) for every rule that it has recognised.
    return Lark(grammar, parser="lalr", lexer="basic", tree_class=cast(type[object], _branch))


class _Part:
    """A rule that stands for its children alone (`_…`). lark makes one for every item of a list, from the one before.

    So it takes the children as they are: to look at all of them each time would cost the square of their number.
    """

    __slots__ = ("children",)

    def __init__(self, children: list[Syntax | Token]) -> None:
        self.children = children


def _branch(kind: str, children: list[Syntax | Token]) -> Syntax | _Part:
    if kind[0] == "_":
        return _Part(children)
    return Syntax(kind, [child if isinstance(child, Syntax) else _leaf(child) for child in children], "", 0, 0)


def _leaf(token: Token) -> Syntax:
    return Syntax(token.type, [], str(token), token.line or 0, token.column or 0)


def _unknown_character(error: UnexpectedCharacters) -> ArgumentError:
    char = str(error.char)
    return syntax_error(error.line, error.column, char, _HINTS.get(char, f"{char!r} has no meaning here"))


def _unexpected(text: str, error: UnexpectedToken) -> ArgumentError:
    expected = _in_words(set(error.accepts or error.expected))
    if error.token.type == "$END":
        lines = text.split("\n")
        return syntax_error(len(lines), len(lines[-1]) + 1, "the end", f"syntax error, expecting {expected}")
    return syntax_error(error.line, error.column, str(error.token), f"syntax error, expecting {expected}")


def _in_words(terminals: set[str]) -> str:
    phrases = set()
    if {"NAME", "STRING"} <= terminals:
        phrases.add("an expression")
        terminals = terminals - _EXPRESSION_BEGINNINGS
    for terminal in terminals:
        phrases.add(_PHRASES.get(terminal, terminal.lstrip("_")))
    ordered = sorted(phrases, key=str.lower)
    return " or ".join([", ".join(ordered[:-1]), ordered[-1]]) if len(ordered) > 1 else ordered[0]
