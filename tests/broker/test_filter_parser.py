"""The quick parser against the grammar: the same of what is right, nothing of what is wrong."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.broker.rules.grammar import parse_by_grammar
from spillway.broker.rules.parser import parse_filter, parse_quickly
from spillway.broker.rules.syntax import Syntax
from spillway.model.errors import ArgumentError
from spillway.model.rules import NESTING_MAX
from tests.steps import steps_of

STEPS_MAX = 20_000  # of a filter as long as it may be
WORDS = ["and", "OR", "Not", "is", "IN", "like", "escape", "exists", "null", "true", "FALSE", "set", "REMOVE"]
SIGNS = ["(", ")", ",", ".", ";", "+", "-", "*", "/", "%", "=", "<>", "!=", "<", "<=", ">", ">=", "--", "~", "'", "["]
NAMES = [
    "a",
    "sys",
    "user",
    "p",
    "newid",
    "orx",
    "isnt",
    "[a b]",
    '"q""r"',
    "[x]]y]",
    "é",
    "_x",
    "\u0131s",
    "li\u212ae",
]
VALUES = ["1", "007", "1.5", ".5", "2.", "1e3", "1E-2", "'text'", "'it''s'", "''", "@p", "@P1", "'a\nb'"]
GAPS = [" ", "", "\n", "  ", "\t\n ", "\u2003"]

tokens = st.sampled_from([*WORDS, *SIGNS, *NAMES, *VALUES])


def spaced(parts: list[str], gaps: list[str]) -> str:
    return "".join(part + gaps[index % len(gaps)] for index, part in enumerate(parts))


def values() -> st.SearchStrategy[list[str]]:
    atoms = st.one_of(
        st.sampled_from([*NAMES, *VALUES, "NULL", "TRUE"]).map(lambda one: [one]),
        st.sampled_from([["sys", ".", "Label"], ["user", ".", "[a]"], ["newid", "(", ")"], ["p", "(", "'x'", ")"]]),
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds(lambda a, sign, b: [*a, sign, *b], inner, st.sampled_from(list("+-*/%")), inner),
            st.builds(lambda sign, a: [sign, *a], st.sampled_from("+-"), inner),
            inner.map(lambda a: ["(", *a, ")"]),
        ),
        max_leaves=5,
    )


def conditions() -> st.SearchStrategy[list[str]]:
    value = values()
    simple = st.one_of(
        st.builds(lambda a, sign, b: [*a, sign, *b], value, st.sampled_from(["=", "<>", "!=", "<", ">="]), value),
        st.builds(lambda a, sign: [*a, *sign], value, st.sampled_from([["IS", "NULL"], ["is", "not", "null"]])),
        st.builds(
            lambda a, no, b: [*a, *no, "IN", "(", *b, ",", "1", ")"], value, st.sampled_from([[], ["NOT"]]), value
        ),
        st.builds(lambda a, no, b: [*a, *no, "like", *b], value, st.sampled_from([[], ["not"]]), value),
        st.builds(lambda a, b: [*a, "like", *b, "ESCAPE", "'!'"], value, value),
        st.just(["EXISTS", "(", "a", ")"]),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.builds(lambda a, word, b: [*a, word, *b], inner, st.sampled_from(["and", "OR"]), inner),
            inner.map(lambda a: ["NOT", *a]),
            inner.map(lambda a: ["(", *a, ")"]),
        ),
        max_leaves=5,
    )


def actions() -> st.SearchStrategy[list[str]]:
    place = st.sampled_from([["a"], ["sys", ".", "Label"], ["[b c]"], ["user", ".", '"x"']])
    one = st.one_of(
        st.builds(lambda where, value: ["SET", *where, "=", *value], place, values()),
        st.builds(lambda where: ["remove", *where], place),
    )
    end = st.sampled_from([[], [";"], [";", ";"]])
    many = st.lists(st.tuples(one, end), min_size=1, max_size=3)
    return many.map(lambda parts: [token for body, tail in parts for token in [*body, *tail]])


def plain(syntax: Syntax) -> object:
    children = [plain(child) for child in syntax.children]
    return (syntax.kind, syntax.text, syntax.line, syntax.column, syntax.depth, syntax.conditions, children)


def assert_same(text: str, is_action: bool) -> None:
    found = parse_quickly(text, is_action) if text.strip() else None
    try:
        expected = parse_by_grammar(text, is_action)
    except ArgumentError:
        assert found is None, text
        return
    assert found is not None, text
    assert plain(found) == plain(expected), text


gaps = st.lists(st.sampled_from(GAPS), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(conditions(), gaps)
def test_filters_are_read_as_the_grammar_reads_them(parts: list[str], between: list[str]) -> None:
    assert_same(spaced(parts, between), False)
    assert_same(" ".join(parts), False)


@settings(max_examples=200, deadline=None)
@given(actions(), gaps)
def test_actions_are_read_as_the_grammar_reads_them(parts: list[str], between: list[str]) -> None:
    assert_same(spaced(parts, between), True)
    assert_same(" ".join(parts), True)


@settings(max_examples=400, deadline=None)
@given(st.one_of(conditions(), actions()), st.integers(0, 40), st.integers(0, 2), tokens, st.booleans())
def test_what_is_wrong_is_left_to_the_grammar(
    parts: list[str], place: int, length: int, token: str, is_action: bool
) -> None:
    place = place % (len(parts) + 1)
    assert_same(" ".join([*parts[:place], token, *parts[place + length :]]), is_action)
    assert_same(" ".join(parts[:place] + parts[place + length :]), is_action)


@settings(max_examples=400, deadline=None)
@given(st.lists(tokens, max_size=8), gaps, st.booleans())
def test_any_tokens_in_any_order(parts: list[str], between: list[str], is_action: bool) -> None:
    assert_same(spaced(parts, between), is_action)


@pytest.mark.parametrize("text", ["(" * 100 + "a" + ")" * 100 + "=1", "not " * 200 + "a=1", "a=" + "-+" * 100 + "1"])
def test_what_is_nested_too_deep_is_refused_and_never_recursed_into(text: str) -> None:
    with pytest.raises(ArgumentError, match=f"nested at most {NESTING_MAX} deep, this one (deeper|[0-9]+)"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("+", "column=1001, Token in error=+, Additional details=syntax error behind it"),
        (" ~ 1", "column=1000, Token in error=a, Additional details=syntax error behind it"),
        ("\n= 1\nand +", "line=3, column=5, Token in error=+, Additional details=syntax error behind it"),
        ("\nlike ) = 1", "line=2, column=6, Token in error=), Additional details=syntax error"),
    ],
)
def test_of_a_long_text_the_place_is_said_where_it_goes_wrong(end: str, said: str) -> None:
    text = "b" * 2 + "+" + "+".join(["a"] * 499) + end
    with pytest.raises(ArgumentError, match="error parsing the SQL expression") as caught:
        parse_filter(text)
    assert said in caught.value.description


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_text_that_is_wrong_takes_no_longer_than_one_that_is_right(is_wrong: bool) -> None:
    """However long it is, and wherever it goes wrong."""
    with pytest.raises(ArgumentError):
        parse_filter("a =")  # lark is loaded
    text = "a=" + "+".join(["a"] * 510) + "+" * is_wrong

    def parsed_by(parse: Callable[[], Syntax]) -> None:
        try:
            parse()
        except ArgumentError:
            assert is_wrong
        else:
            assert not is_wrong

    assert steps_of(lambda: parsed_by(lambda: parse_filter(text))) < STEPS_MAX
    assert steps_of(lambda: parsed_by(lambda: parse_by_grammar(text, False))) > STEPS_MAX, "the grammar, over all of it"
