"""Invariants are asserted as densely in `client`, `paired` and `spark` as in the broker. Reads the sources alone.

An assertion says what is true because of how the code around it is built; what a peer, a user, a file, a service or
Spark can bring about is an error with a text instead, and never an assertion. What is counted is assertions a thousand
lines of code inside functions: blank lines, comments and docstrings are no code, and tables, options and schemas, of
which `spark` has many, do not run.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "spillway"
AS_DENSE_AS = "broker"
ROOMS = ("client", "paired", "spark")
NOT_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that stand in no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from functions_of(node)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def code_lines(text: str) -> int:
    """Lines of functions that have code on them."""
    tree = ast.parse(text)
    inside: set[int] = set()
    for function in functions_of(tree):
        inside.update(range(function.lineno, (function.end_lineno or function.lineno) + 1))
        for node in ast.walk(function):
            if is_docstring(node) and isinstance(node, ast.Expr):
                inside.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    return len(inside & with_code)


def assertions(text: str) -> list[ast.Assert]:
    """Of functions, too: one about a table is made once, when its module is imported."""
    functions = functions_of(ast.parse(text))
    return [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Assert)]


def density(room: str) -> float:
    """Assertions a thousand lines of code inside functions."""
    texts = [file.read_text("utf-8") for file in sorted((SOURCE / room).rglob("*.py"))]
    return 1_000 * sum(len(assertions(text)) for text in texts) / sum(map(code_lines, texts))


@pytest.mark.parametrize("room", ROOMS)
def test_invariants_are_asserted_as_densely_as_in_the_broker(room: str) -> None:
    found, wanted = density(room), density(AS_DENSE_AS)
    assert found >= wanted, f"{room}: {found:.2f} assertions a thousand lines, {AS_DENSE_AS}: {wanted:.2f}"


def test_what_is_counted_is_code_inside_functions() -> None:
    text = '''"""A module."""

TABLE = {
    "a": 1,
}
assert len(TABLE) == 1, "one"


class One:
    """A class."""

    def two(self) -> int:
        """What it does,
        in two lines."""
        # why
        assert TABLE, "full"

        def three() -> int:
            return 1

        return three()
'''
    assert code_lines(text) == 5
    assert len(assertions(text)) == 1
