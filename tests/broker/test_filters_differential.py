"""The same expressions asked of SQLite: three-valued logic, comparisons, IN, LIKE, arithmetic, precedence.

Expressions are generated along the grammar with few brackets, so that precedence is compared too. Each is typed: on
mixed types the two differ by design (here unknown, there an order of types). SQLite's LIKE is told to heed case.
"""

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from spillway.broker.rules.filters import SqlCondition, compile_filter
from spillway.broker.rules.like import LikePattern
from spillway.model.rules import CONDITIONS_MAX, EXPRESSION_CHARS_MAX, SqlFilter
from spillway.model.text_planes import TextMemory
from tests.broker.given_properties import given as message

OUTCOMES = {0: 0, 1: 1, 2: None}
COLUMNS = ("i1", "i2", "f1", "f2", "s1", "s2", "b1", "b2")
TEXT = "aAb%_!é'"

Row = dict[str, object]


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    yield connection
    connection.close()


def ask_sqlite(database: sqlite3.Connection, expression: str, row: Row) -> int | None:
    columns = ", ".join(f"?{index + 1} AS {name}" for index, name in enumerate(COLUMNS))
    statement = f"SELECT {expression} FROM (SELECT {columns})"
    (found,) = database.execute(statement, [row[name] for name in COLUMNS]).fetchone()
    assert found is None or isinstance(found, int)
    return found


def ask_ours(expression: str, row: Row) -> int | None:
    condition = compile_filter(SqlFilter(expression))
    assert isinstance(condition, SqlCondition)
    # Absent and null must be the same: half of the nulls are left out.
    given_row = {name: value for index, (name, value) in enumerate(row.items()) if value is not None or index % 2}
    return OUTCOMES[condition.predicate.test(message(given_row))]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def chain(operand: st.SearchStrategy[str], sign: st.SearchStrategy[str], size: int) -> st.SearchStrategy[str]:
    """`a + b - c`."""
    further = st.lists(st.tuples(sign, operand), max_size=size)
    return st.builds(lambda first, rest: " ".join([first, *(f"{s} {o}" for s, o in rest)]), operand, further)


def bracketed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return inner.map(lambda text: f"({text})")


def signed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda sign, text: f"{sign} {text}", st.sampled_from(["-", "+", "- -"]), inner)


def arithmetic(atom: st.SearchStrategy[str], divisor: st.SearchStrategy[str], division: str) -> st.SearchStrategy[str]:
    """Sums of products; divided by constants only, since SQLite makes nothing of a division by zero."""

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        unary = st.one_of(inner, signed(inner), bracketed(inner))
        times = chain(unary, st.just("*"), 1)
        product = st.builds(
            lambda text, sign, by: f"{text} {sign} {by}", times, st.sampled_from(list(division)), divisor
        )
        return chain(st.one_of(product, times, bracketed(times)), st.sampled_from(["+", "-"]), 1)

    return st.recursive(atom, larger, max_leaves=4)


small = st.integers(-20, 20)
eighths = st.integers(-80, 80).map(lambda n: n / 8)
texts = st.text(TEXT, max_size=5)

integer_atoms = st.one_of(st.sampled_from(["i1", "i2"]), st.integers(0, 20).map(str))
float_atoms = st.one_of(
    st.sampled_from(["f1", "f2", "i1"]), st.integers(0, 80).map(lambda n: str(n / 8)), st.just("2E1")
)
divisors = st.integers(1, 9).map(str)
integers = arithmetic(integer_atoms, divisors, "/%")
floats = arithmetic(float_atoms, divisors.map(lambda n: n + ".0"), "/")
strings = st.one_of(st.sampled_from(["s1", "s2"]), texts.map(quoted), st.just("NULL"))
booleans = st.sampled_from(["b1", "b2", "TRUE", "false", "NULL"])

comparators = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


def comparison(operand: st.SearchStrategy[str], operators: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda left, sign, right: f"{left} {sign} {right}", operand, operators, operand)


def membership(operand: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    choices = st.lists(st.one_of(operand, st.just("NULL")), min_size=1, max_size=4).map(", ".join)
    negation = st.sampled_from(["IN", "NOT IN", "not in"])
    return st.builds(lambda left, sign, right: f"{left} {sign} ({right})", operand, negation, choices)


likeness = st.builds(
    lambda left, sign, right: f"{left} {sign} {right}", strings, st.sampled_from(["LIKE", "NOT LIKE"]), strings
)
emptiness = st.builds(
    lambda name, sign: f"{name} {sign}", st.sampled_from(COLUMNS), st.sampled_from(["IS NULL", "IS NOT NULL"])
)
conditions = st.one_of(
    comparison(integers, comparators),
    comparison(floats, comparators),
    comparison(strings, comparators),
    comparison(booleans, st.sampled_from(["=", "<>", "!="])),
    membership(integers),
    membership(strings),
    likeness,
    emptiness,
)


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    part = st.one_of(
        inner, bracketed(inner), inner.map(lambda text: f"NOT {text}"), bracketed(inner).map("NOT ".__add__)
    )
    return chain(part, st.sampled_from(["AND", "OR", "and"]), 3)


predicates = st.recursive(conditions, combined, max_leaves=8)
rows: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {
        "i1": st.none() | small,
        "i2": st.none() | small,
        "f1": st.none() | eighths,
        "f2": st.none() | eighths,
        "s1": st.none() | texts,
        "s2": st.none() | texts,
        "b1": st.none() | st.booleans(),
        "b2": st.none() | st.booleans(),
    }
)


def is_within_limits(expression: str) -> bool:
    words = expression.upper().replace("(", " ").replace(")", " ").split()
    return len(expression) <= EXPRESSION_CHARS_MAX and sum(word in ("AND", "OR") for word in words) < CONDITIONS_MAX


@given(expression=conditions, row=rows)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_single_conditions_agree_with_sqlite(database: sqlite3.Connection, expression: str, row: Row) -> None:
    assume(is_within_limits(expression))
    assert ask_ours(expression, row) == ask_sqlite(database, expression, row)


@given(expression=predicates, row=rows)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whole_filters_agree_with_sqlite(database: sqlite3.Connection, expression: str, row: Row) -> None:
    assume(is_within_limits(expression))
    assert ask_ours(expression, row) == ask_sqlite(database, expression, row)


@given(
    text=st.text("aAb%_é", max_size=12),
    pattern=st.text("aAb%_!é", max_size=8),
    escape=st.sampled_from(["", "!", "%", "_", "a"]),
)
@settings(max_examples=1500, deadline=None)
def test_like_agrees_with_sqlite(database: sqlite3.Connection, text: str, pattern: str, escape: str) -> None:
    assume(escape == "" or not ends_with_escape(pattern, escape))
    asked = "SELECT ?1 LIKE ?2 ESCAPE ?3" if escape else "SELECT ?1 LIKE ?2"
    arguments = [text, pattern, escape] if escape else [text, pattern]
    (expected,) = database.execute(asked, arguments).fetchone()
    assert LikePattern(pattern, escape).matches(text, TextMemory()) is bool(expected)


def ends_with_escape(pattern: str, escape: str) -> bool:
    """SQLite lets such a pattern match nothing; here it is refused."""
    return (len(pattern) - len(pattern.rstrip(escape))) % 2 == 1


@pytest.mark.parametrize("left", ["TRUE = TRUE", "TRUE = FALSE", "NULL = 1"])
@pytest.mark.parametrize("right", ["TRUE = TRUE", "TRUE = FALSE", "NULL = 1"])
@pytest.mark.parametrize("operator", ["AND", "OR"])
def test_the_truth_tables(database: sqlite3.Connection, left: str, operator: str, right: str) -> None:
    row: Row = dict.fromkeys(COLUMNS)
    for expression in (
        f"{left} {operator} {right}",
        f"NOT ({left} {operator} {right})",
        f"NOT {left} {operator} {right}",
    ):
        assert ask_ours(expression, row) == ask_sqlite(database, expression, row)
