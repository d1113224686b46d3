"""Filters and actions that were written to hurt: refused in words, or evaluated in time linear in the message."""

import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from spillway.broker.rules.actions import compile_action
from spillway.broker.rules.filters import Condition, compile_filter
from spillway.broker.rules.like import LikePattern
from spillway.model.errors import ArgumentError
from spillway.model.rule_values import RuleValue, rule_value
from spillway.model.rules import CONDITIONS_MAX, CorrelationFilter, FilterError, SqlAction, SqlFilter
from spillway.model.text_planes import TextMemory
from tests.broker.given_properties import given

KIB = 1024


def sql(expression: str) -> Condition:
    return compile_filter(SqlFilter(expression))


def refusal(expression: str) -> str:
    with pytest.raises(ArgumentError) as caught:
        sql(expression)
    assert caught.value.condition == "com.microsoft:argument-error"
    assert len(caught.value.description) < 500
    return caught.value.description


def test_1024_characters_are_taken_and_1025_are_not() -> None:
    longest = "a = '" + "x" * (1024 - 6) + "'"
    assert len(longest) == 1024
    assert sql(longest).evaluate(given({"a": "x" * 1018}))
    assert refusal(longest + " ") == "The SQL expression of a filter has at most 1024 characters, this one has 1025."
    with pytest.raises(ArgumentError, match="of an action has at most 1024 characters, this one has 1025"):
        compile_action(SqlAction(("SET " + longest[:900] + "'").ljust(1025)))


HALF = "is no text: its character %d is U+D83D, half of a surrogate pair."


def test_half_a_character_which_json_can_write_and_amqp_cannot_is_refused_wherever_it_stands() -> None:
    assert refusal("a = '\ud83d'") == "The SQL expression of a filter " + HALF % 6
    assert sql("a = '\U0001f600'").evaluate(given({"a": "\U0001f600"}))
    with pytest.raises(ArgumentError, match="of an action is no text"):
        compile_action(SqlAction("SET a = '\ud83d'"))
    for filter_with_it, what in (
        (SqlFilter("a = @p", {"@p": RuleValue("string", "\ud83d")}), "One of the rule's parameters " + HALF % 1),
        (CorrelationFilter(label="x\ud83d"), "Label of a correlation filter " + HALF % 2),
        (
            CorrelationFilter(properties={"\ud83d": rule_value(1)}),
            "One of the rule's correlation properties " + HALF % 1,
        ),
    ):
        with pytest.raises(ArgumentError) as caught:
            compile_filter(filter_with_it)
        assert caught.value.description == what


@pytest.mark.parametrize("expression", ["", " ", "\n\t"])
def test_an_empty_expression_is_refused(expression: str) -> None:
    assert refusal(expression) == "The SQL expression of a filter must not be empty."


def test_32_conditions_are_taken_and_33_are_not() -> None:
    assert sql(" AND ".join(["a=1"] * CONDITIONS_MAX)).evaluate(given({"a": 1}))
    for joint in (" AND ", " OR ", " AND NOT "):
        assert "at most 32 conditions, this one has 33" in refusal(joint.join(["a=1"] * (CONDITIONS_MAX + 1)))


def test_conditions_of_every_kind_count() -> None:
    kinds = ["a=1", "EXISTS(a)", "a IS NULL", "a IN (1)", "a LIKE 'x'", "a NOT IN (1)", "a NOT LIKE 'x'"]
    assert "this one has 35" in refusal(" OR ".join(kinds * 5))


def test_a_long_list_is_one_condition() -> None:
    assert sql("a IN (" + ", ".join(str(n) for n in range(200)) + ")").evaluate(given({"a": 199}))


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 10_000 + "a=1" + ")" * 10_000,
        "(" * 10_000,
        "- " * 10_000 + "a = 1",
        "NOT " * 10_000 + "a = 1",
    ],
)
def test_10000_brackets_are_refused_by_length(expression: str) -> None:
    assert "at most 1024 characters" in refusal(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 500 + "a=1" + ")" * 500,
        "(" * 500 + "a" + ")" * 500 + "=1",
        "- " * 500 + "a=1",
        "NOT " * 250 + "a=1",
        "p(" * 300 + "a" + ")" * 300 + "=1",
        "(1+" * 200 + "a" + ")" * 200 + "=1",
    ],
)
def test_what_fits_but_is_nested_too_deep_is_refused(expression: str) -> None:
    assert "nested at most 64 deep" in refusal(expression)


def test_thirty_brackets_are_fine() -> None:
    assert sql("(1+" * 30 + "a" + ")" * 30 + " = 31").evaluate(given({"a": 1}))
    assert sql("(1=2 OR " * 30 + "a=1" + ")" * 30).evaluate(given({"a": 1}))


def test_a_long_sum_is_not_deep() -> None:
    assert sql("+".join(["1"] * 500) + " = 500").evaluate(given())


def test_brackets_that_do_not_match_are_refused() -> None:
    assert "expecting" in refusal("(" * 30 + "a=1" + ")" * 29)
    assert "expecting" in refusal("(" * 60)
    assert "nested at most 64 deep" in refusal("(" * 300 + "a=1" + ")" * 299)
    assert "nested at most 64 deep" in refusal("(" * 1_000)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a = 'x", "column=5, Token in error=', Additional details=the string that begins here does not end"),
        ("a = 'x''", "column=5"),
        ("a = '", "the string that begins here does not end"),
        ("a = 'x'''", None),
        ("[a = 1", "column=1, Token in error=[, Additional details=the name that begins here does not end"),
        ('"a = 1', "the name that begins here does not end"),
        ("[] = 1", "is empty"),
        ("a = ''; DROP TABLE messages; --'", "column=7, Token in error=;, Additional details=';' has no meaning here"),
        ("a = 'x' -- comment", "column=9, Token in error=-, Additional details=there are no comments"),
        ("a = 'x' /* comment */", "expecting"),
        ("a = 1 UNION SELECT 1", "expecting"),
        ("a = (SELECT 1)", "expecting"),
        ("a = 0x10", "expecting"),
        ("a = `b`", "'`' has no meaning here"),
        ("a = {b}", "has no meaning here"),
        ("a = $b", "has no meaning here"),
        ("__import__('os') = 1", "'_' has no meaning here"),
        ("a\x00 = 1", "'\\x00' has no meaning here"),
        ("\ufeffa = 1", "has no meaning here"),
        ("a = \u20181\u2019", "has no meaning here"),
        ("a = \u0661", "has no meaning here"),  # a digit, but not one of ours
        ("a || b = 'ab'", "has no meaning here"),
        ("a BETWEEN 1 AND 2", "expecting"),
    ],
)
def test_unfinished_and_foreign_sql_is_refused(expression: str, text: str | None) -> None:
    if text is None:
        assert sql(expression).evaluate(given({"a": "x'"}))
    else:
        assert text in refusal(expression)


def test_huge_numbers_are_refused_or_are_infinite_never_slow() -> None:
    assert "an integer is at most 9223372036854775807" in refusal("a = 9223372036854775808")
    assert "an integer is at most" in refusal("a = -9223372036854775809")
    assert "an integer is at most" in refusal("a = " + "9" * 1_000)
    assert sql("a = " + "0" * 900 + "7").evaluate(given({"a": 7}))
    assert "a number is at most" in refusal("a = 1E400")
    assert "a number is at most" in refusal("a = " + "9" * 400 + ".0")
    assert sql("a = 1E-400").evaluate(given({"a": 0.0}))
    # An unsigned long may be larger than our integers: compared by value, never calculated with past 64 bits.
    assert sql("a > 9223372036854775807").evaluate(given({"a": (1 << 64) - 1}))
    with pytest.raises(FilterError, match="64 bits"):
        sql("a + 1 > 0").evaluate(given({"a": (1 << 64) - 1}))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a LIKE 'x' ESCAPE ''", "a string of one character, not of 0"),
        ("a LIKE 'x' ESCAPE 'ab'", "a string of one character, not of 2"),
        ("a LIKE 'x' ESCAPE 5", "not a number"),
        ("a LIKE 'x' ESCAPE TRUE", "not a boolean"),
        ("a LIKE 'x!' ESCAPE '!'", "must not end with its ESCAPE character '!'"),
        ("a LIKE 'x!!!' ESCAPE '!'", "must not end with its ESCAPE character '!'"),
        ("a LIKE '!' ESCAPE '!'", "must not end with its ESCAPE character '!'"),
        ("a LIKE ESCAPE '!'", "expecting an expression"),
        ("a LIKE 'x' ESCAPE", "expecting an expression"),
        ("a LIKE 'x' ESCAPE '!' ESCAPE '!'", "expecting"),
        ("a = 'x' ESCAPE '!'", "expecting"),
    ],
)
def test_a_bad_escape_is_refused(expression: str, text: str) -> None:
    assert text in refusal(expression)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%a" * 500 + "b", "a" * (64 * KIB)),
        ("%a" * 500 + "%", "b" * (64 * KIB)),
        ("%" + "a_" * 500 + "b%", "a" * (64 * KIB)),
        ("%" + "_" * 500 + "b%", "a" * (64 * KIB)),
        ("%a_b" * 250 + "%", "ab" * (32 * KIB)),
        ("%" + "a" * 1_000 + "b%", "a" * (64 * KIB)),
        ("%_" * 500 + "%", "a" * (64 * KIB)),
        ("%" * 1_000, "a" * (64 * KIB)),
        ("a%" * 500, "a" * (64 * KIB)),
        ("_%" * 511 + "x", "\U0001f600" * (64 * KIB)),
    ],
)
def test_like_looks_at_no_character_twice(pattern: str, text: str) -> None:
    """Steps, not seconds: a greedy matcher that goes back needs 65,536 x 500 of them."""
    like = LikePattern(pattern, "")
    like.matches(text, TextMemory())
    assert like.steps <= len(text) + len(pattern)


def test_a_pattern_from_a_message_is_bounded_too() -> None:
    condition = sql("a LIKE b")
    assert condition.evaluate(given({"a": "x" * (32 * KIB), "b": "%x" * 512}))
    with pytest.raises(FilterError, match="at most 1024 characters, this one has 32768"):
        condition.evaluate(given({"a": "x", "b": "%_" * (16 * KIB)}))


def test_a_correlation_filter_with_1000_properties_is_refused() -> None:
    properties = {f"p{n}": rule_value(n) for n in range(1_000)}
    with pytest.raises(ArgumentError, match="at most 100 correlation properties, this one has 1000"):
        compile_filter(CorrelationFilter(properties=properties))


def test_the_values_of_a_rule_are_bounded_together() -> None:
    with pytest.raises(ArgumentError, match="at most 32768 characters together"):
        compile_filter(CorrelationFilter(properties={"a": rule_value("x" * 20_000), "b": rule_value("y" * 20_000)}))
    with pytest.raises(ArgumentError, match="at most 100 parameters, this one has 101"):
        compile_filter(SqlFilter("1=1", {f"@p{n}": rule_value(n) for n in range(101)}))


@pytest.mark.parametrize(
    "wanted",
    [
        CorrelationFilter(properties={"": rule_value("x")}),
        CorrelationFilter(properties={"a": rule_value("x"), "A": rule_value("y")}),
        CorrelationFilter(properties={"a": RuleValue("int", "1e3")}),
        CorrelationFilter(properties={"a": RuleValue("anyType", "1")}),
        CorrelationFilter(message_id="x" * 129),
    ],
)
def test_bad_values_of_a_correlation_filter_are_refused(wanted: CorrelationFilter) -> None:
    with pytest.raises(ArgumentError):
        compile_filter(wanted)


WORDS = st.sampled_from(
    [
        *"ab(),=<+-*/%;.@'[\"",
        "sys.Label",
        "user.x",
        "[q]",
        '"q"',
        "'x'",
        "''",
        "1",
        "2.5",
        "1E3",
        "TRUE",
        "NULL",
        "@p",
        "<>",
    ]
    + ["AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "EXISTS", "SET", "REMOVE", "newid()", "p("]
)


@generated(st.lists(WORDS, max_size=40).map(" ".join) | st.text(max_size=200))
@settings(max_examples=800, deadline=None)
def test_whatever_is_written_is_taken_or_refused_and_nothing_else(expression: str) -> None:
    parameters = {"@p": rule_value(1)}
    message = given({"a": 1, "b": "x", "q": None})
    try:
        compile_filter(SqlFilter(expression, parameters)).evaluate(message)
    except (ArgumentError, FilterError):
        pass
    try:
        compile_action(SqlAction(expression, parameters)).apply(message, b"seed")
    except (ArgumentError, FilterError):
        pass
