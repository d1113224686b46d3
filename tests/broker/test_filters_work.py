"""What a rule does is counted, in steps of about a microsecond, and a turn ends within a LIKE of its bound.

The steps are those of the compiled build, measured; nothing here looks at a clock.
"""

from collections.abc import Callable

import pytest
from hypothesis import example, settings
from hypothesis import given as generated
from hypothesis import strategies as st

from spillway.broker.rules.filters import Condition, compile_filter
from spillway.broker.rules.like import LikePattern, Piece
from spillway.model import limits
from spillway.model.properties import MessageProperties, RuleUnfinished
from spillway.model.rule_values import rule_value
from spillway.model.rules import CONDITIONS_MAX, CorrelationFilter, FilterError, SqlFilter
from spillway.model.text_planes import TextMemory
from tests.broker.given_properties import given

# One LIKE over the largest property that a message may have, at worst; and everything else in a rule.
LIKE_STEPS_MAX = 5_000
REST_STEPS_MAX = 4_000
TEXT_BYTES = limits.PROPERTY_BYTES_MAX - 100


def is_like(pattern: str, escape: str, text: str) -> bool:
    """As slow and as plain as it can be: which beginnings of the text the pattern so far stands for."""
    ends = [True] + [False] * len(text)
    index = 0
    while index < len(pattern):
        char = pattern[index]
        if char == "%" and char != escape:
            first = ends.index(True) if True in ends else len(ends)
            ends = [at >= first for at in range(len(ends))]
        else:
            is_any = char == "_" and char != escape
            if char == escape:
                index += 1
                char = pattern[index]
            ends = [False] + [ends[at] and (is_any or text[at] == char) for at in range(len(text))]
        index += 1
    return ends[-1]


ALPHABETS = ["ab", "abé\xff", "aя一", "a\U0001f600\U0001f601", "a\ud83d\udfff", "a%_!"]


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, str, str]:
    """Text that says the same again and again, so that no piece is found at the first few places."""
    alphabet = draw(st.sampled_from(ALPHABETS))
    parts = draw(st.lists(st.tuples(st.text(alphabet, max_size=4), st.integers(1, 40)), max_size=5))
    pieces = draw(st.lists(st.text(alphabet + "__", max_size=6), min_size=1, max_size=4))
    escape = draw(st.sampled_from(["", "!", "a", "%", "_"]))
    return "%".join(pieces), escape, "".join(part * count for part, count in parts)


@generated(questions())
@example(("%a_b%", "", "ab" * 50))
@example(("%a_a_b%a__", "", "a" * 60 + "b" + "a" * 60))
@example(("%a_" + "a" * 40 + "b%", "", "a" * 300 + "b" + "a" * 10))
@example(("%" + "a_" * 40 + "b%", "", ("a" * 85 + "cb") * 40 + "a" * 90 + "b"))
@example(("%" + "_".join(map(chr, range(0x100, 0x150))) + "%", "", "".join(map(chr, range(0x100, 0x150))) * 40))
@settings(max_examples=1_500, deadline=None)
def test_like_is_what_a_plain_matcher_says(question: tuple[str, str, str]) -> None:
    pattern, escape, text = question
    try:
        like = LikePattern(pattern, escape)
    except FilterError:
        return
    assert like.matches(text, TextMemory()) is is_like(pattern, escape, text)


@generated(questions(), st.integers(0, 30), st.integers(0, 200))
@settings(max_examples=800, deadline=None)
def test_a_piece_is_found_where_it_first_stands_by_the_places_of_its_characters(
    question: tuple[str, str, str], start: int, length: int
) -> None:
    pattern, _, text = question
    piece = Piece(list(pattern), [char in "_%" for char in pattern])
    end = min(start + length, len(text))
    if piece.is_all_any or start > end or not text:  # there is no such piece in a text without characters
        return
    expected = [at for at in range(start, end - piece.length + 1) if piece.stands_at(text, at)]
    assert piece._find_by_places(text, start, end, TextMemory()) == (expected[0] if expected else -1)


def filled(part: str) -> str:
    """As often as a property has room for it."""
    return part * (TEXT_BYTES // len(part.encode()))


MANY = "".join(map(chr, range(0x100, 0x700)))
HOSTILE = {
    "a character beside any": ("%a_b%", "b" + filled("a")[1:]),
    "every other": ("%" + "a_" * 490 + "_a%", filled("ab")),
    "every other and one that is nowhere": ("%" + "a_" * 490 + "b%", filled("a")),
    "long runs around one that is any": ("%" + "a" * 499 + "_" + "a" * 499 + "%", filled("a" * 999 + "b")),
    "an anchor everywhere": ("%" + "aab_" * 245 + "c%", filled("aabc")),
    "long before it fails": ("%" + "a" * 97 + "ba%", filled("a")[:29_999]),
    "long before it fails, in a short text": ("%" + "a" * 500 + "b" + "a" * 490 + "%", "a" * 2_499),
    "long before it fails, in a wide text": ("%" + "a" * 97 + "ba%", "\u4e00" + filled("a")[:29_990]),
    "many pieces": ("%a_b" * 250 + "%", filled("a" * 100 + "cb")),
    "many pieces that are there": ("%b_b" * 250 + "%", filled("ba")),
    "many pieces of one": ("%a_" * 330, filled("a")),
    "nothing but any": ("%_" * 500 + "%", filled("a")),
    "from the start": ("_a" * 490 + "%", filled("a")),
    "to the end": ("%" + "_a" * 490, filled("a")),
    "many characters": ("%" + "_".join(MANY[:980:2]) + "_x%", filled(MANY[:980])),
    "some hundred characters": ("%" + "_".join(MANY[:400:2] * 2) + "_x%", filled(MANY[:400])),
    "many characters that stand often": ("%" + "_".join(MANY[:480]) + "_%", filled(MANY[:480])),
    "latin": ("%" + "é_" * 490 + "_é%", filled("éa")),
    "wide": ("%" + "я_" * 490 + "_я%", filled("яa")),
    "astral": ("%" + "\U0001f600_" * 490 + "_\U0001f600%", filled("\U0001f600a")),
    "one that is astral": ("%" + "a_" * 490 + "_a%", "\U0001f600" + filled("ab")[4:]),
    "many characters, one astral": ("%" + "_".join(MANY[:480]) + "_%", "\U0001f600" + filled(MANY[:480])[4:]),
    "escaped": ("%" + "!__" * 330 + "!%%", filled("_a")),
}


Made = Callable[[str, str], tuple[Condition, dict[str, object]]]


def many_likes(pattern: str, text: str) -> tuple[Condition, dict[str, object]]:
    """As many as a rule may have, no two of them the same."""
    likes = [f"p LIKE @p{number} ESCAPE '!'" for number in range(CONDITIONS_MAX)]
    parameters = {f"@p{number}": rule_value("%" * (number % 20) + pattern) for number in range(CONDITIONS_MAX)}
    assert max(len(pattern.text) for pattern in parameters.values()) <= 1_024
    return compile_filter(SqlFilter(" AND ".join(f"NOT {like}" for like in likes), parameters)), {"p": text}


def likes_of_the_message(pattern: str, text: str) -> tuple[Condition, dict[str, object]]:
    likes = [f"NOT (p+'{number}') LIKE q" for number in range(CONDITIONS_MAX)]
    return compile_filter(SqlFilter(" AND ".join(likes))), {"p": text, "q": pattern}


def in_turns(condition: Condition, properties: MessageProperties, steps_max: int) -> tuple[bool, list[int]]:
    """What it says, and the steps of each turn that it took."""
    turns: list[int] = []
    while True:
        before = properties.work
        properties.work_max = before + steps_max
        try:
            is_wanted = condition.evaluate(properties)
        except RuleUnfinished:
            turns.append(properties.work - before)
            assert len(turns) <= CONDITIONS_MAX
            continue
        return is_wanted, [*turns, properties.work - before]


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("made", [many_likes, likes_of_the_message], ids=["of the rule", "of the message"])
def test_a_rule_of_hostile_likes_ends_a_turn_within_one_of_them(kind: str, made: Made) -> None:
    pattern, text = HOSTILE[kind]
    assert len(text.encode()) <= limits.PROPERTY_BYTES_MAX
    condition, user = made(pattern, text)
    at_once, whole = in_turns(condition, given(user), 1 << 40)
    assert len(whole) == 1
    assert whole[0] <= CONDITIONS_MAX * LIKE_STEPS_MAX
    for steps_max in (1, limits.FILTER_STEPS_PER_TURN_MAX):
        outcome, turns = in_turns(condition, given(user), steps_max)
        assert outcome == at_once
        assert max(turns) <= steps_max + LIKE_STEPS_MAX
    assert limits.FILTER_STEPS_PER_TURN_MAX + LIKE_STEPS_MAX < limits.STEPS_PER_TURN_MAX


def test_what_many_rules_ask_of_a_message_is_worked_out_once() -> None:
    pattern, text = HOSTILE["every other"]
    properties = given({"p": text, "q": pattern})
    condition = compile_filter(SqlFilter("p LIKE q"))
    assert not condition.evaluate(properties)
    first = properties.work
    assert first > 1_000
    for _ in range(100):
        properties.end_rule()
        assert not condition.evaluate(properties)
    assert properties.work <= first + 100
    assert not compile_filter(SqlFilter(f"P LIKE '{pattern[:900]}_x%'")).evaluate(properties)
    again = properties.work - first - 100
    assert again <= first, "its characters have their places already"
    for _ in range(100):
        properties.end_rule()
        compile_filter(SqlFilter(f"P LIKE '{pattern[:900]}_x%'")).evaluate(properties)
    assert properties.work <= first + again + 200


LONG = "Σ" * (TEXT_BYTES // 2)
OTHERS = {
    "conditions": ("a = 1" + " OR a = 1" * 31, 4),
    "a long text put together and looked for": ("l" + "+'x'" * 20 + " IN ('x')", 30),
    "a list of numbers": ("a IN (" + ",".join(["1"] * 400) + ")", 90),
    "a list of long texts": ("l IN (" + ",".join(["m"] * 400) + ")", 450),
    "comparisons of long texts": (" OR ".join(["l > m"] * 32), 90),
    "a long sum": ("+".join(["a"] * 400) + " = 1", 90),
    "a long text put together": ("l" + "+'x'" * 200 + " = 'x'", 200),
    "names looked up": ("a IN (" + ",".join(["p(l)"] * 150) + ")", 150 * 120),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_else_takes_long_is_counted_too(kind: str) -> None:
    expression, least = OTHERS[kind]
    properties = given({"a": 0, "l": LONG, "m": LONG[:-1] + "σ"})
    condition = compile_filter(SqlFilter(expression))
    condition.evaluate(properties)
    assert least <= properties.work <= least * 4
    if kind != "names looked up":
        assert properties.work <= REST_STEPS_MAX
    properties.end_rule()
    properties.work_max = properties.work + 100
    for _ in range(151):
        before = properties.work
        try:
            condition.evaluate(properties)
            break
        except RuleUnfinished:
            assert properties.work - before <= 100 + 300, "a name at least, and not many more"
            properties.work_max = properties.work + 100
    else:
        pytest.fail("it never ended")


def test_a_correlation_filter_counts_its_properties_and_a_short_filter_nothing_but_itself() -> None:
    names = {f"p{number}": number for number in range(100)}
    properties = given(dict(names))
    wanted = CorrelationFilter(properties={name: rule_value(value) for name, value in names.items()})
    assert compile_filter(wanted).evaluate(properties)
    assert properties.work == 25
    for expression in ("p1 = 1", "p1 = 1 AND p2 > 1", "p1 IN (1, 2)", "NOT EXISTS(x)", "p1 + 1 = 2"):
        assert compile_filter(SqlFilter(expression)).evaluate(properties)
    assert not compile_filter(SqlFilter("p1 LIKE 'x%'")).evaluate(properties)
    assert properties.work == 25
