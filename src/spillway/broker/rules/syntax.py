"""What the grammar makes of a rule's text, before its names and values are looked at; and how mistakes are told."""

from typing import Final

from spillway.model.errors import ArgumentError

# Kinds of branches. The grammar (`grammar.py`) has rules of the same names.
EITHER: Final = "either"
BOTH: Final = "both"
NEGATION: Final = "negation"
NESTED: Final = "nested"
COMPARISON: Final = "comparison"
IS_NULL: Final = "is_null"
IS_NOT_NULL: Final = "is_not_null"
IS_IN: Final = "is_in"
IS_NOT_IN: Final = "is_not_in"
LIKE: Final = "like"
NOT_LIKE: Final = "not_like"
EXISTS: Final = "exists"
CHOICES: Final = "choices"
SUM: Final = "sum"
PRODUCT: Final = "product"
POSITIVE: Final = "positive"
NEGATIVE: Final = "negative"
NULL: Final = "null"
CALL: Final = "call"
PROPERTY: Final = "property"
STATEMENTS: Final = "statements"
SET: Final = "set"
REMOVE: Final = "remove"
# Kinds of leaves: the grammar's terminals.
NAME: Final = "NAME"
DELIMITED: Final = "DELIMITED"
QUOTED: Final = "QUOTED"
STRING: Final = "STRING"
INTEGER: Final = "INTEGER"
DECIMAL: Final = "DECIMAL"
BOOLEAN: Final = "BOOLEAN"
PARAMETER: Final = "PARAMETER"

_CONDITIONS: Final = frozenset((COMPARISON, IS_NULL, IS_NOT_NULL, IS_IN, IS_NOT_IN, LIKE, NOT_LIKE, EXISTS))


class Syntax:
    """A branch, or a leaf with the text of one token. Knows how deep and how large it is: limits need no recursion."""

    def __init__(self, kind: str, children: list["Syntax"], text: str, line: int, column: int) -> None:
        self.kind = kind
        self.children = children
        self.text = text
        self.line = line
        self.column = column
        self.depth = 0
        self.conditions = 1 if kind in _CONDITIONS else 0
        for child in children:
            self.depth = max(self.depth, child.depth + 1)
            self.conditions += child.conditions
        if children:
            self.line = children[0].line
            self.column = children[0].column


def syntax_error(line: int, column: int, token: str, details: str) -> ArgumentError:
    """The error in the words that Azure begins with, and the place as it names it; columns count from 1."""
    shown = token if len(token) <= 40 else token[:37] + "..."
    return ArgumentError(
        "There was an error parsing the SQL expression."
        f" [Token line={line}, column={column}, Token in error={shown}, Additional details={details}]"
    )
