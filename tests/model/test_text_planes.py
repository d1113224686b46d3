"""The places of characters in a text, as bits, are those that a walk through it finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.model.text_planes import ANSWERS_MAX, PLACES_MAX, TEXT_CHARS_KEPT_MAX, TextMemory, TextPlanes

ALPHABETS = ["ab", "a\x00\x7f", "aé\xff", "aя一\uffff", "a\U0001f600\U0010ffff", "é\ud800\udfff", "\U00010000"]
alphabets = st.sampled_from([*ALPHABETS, "".join(ALPHABETS)])


def places(text: str, char: str) -> int:
    return sum(1 << index for index in range(len(text)) if text[index] == char)


@given(alphabets.flatmap(lambda alphabet: st.text(alphabet, min_size=1, max_size=40)), st.characters())
@settings(max_examples=600, deadline=None)
def test_each_character_has_its_places(text: str, other: str) -> None:
    planes = TextPlanes(text)
    for _ in range(2):  # found out, and remembered
        for char in "".join(ALPHABETS) + other:
            assert planes.places_of(char) == places(text, char)


def test_a_text_may_be_as_long_as_a_message_which_is_more_digits_than_python_reads_in_tens() -> None:
    text = "ab\U0001f600" * 80_000
    assert TextPlanes(text).places_of("b").bit_count() == 80_000
    assert TextPlanes(text).places_of("\U0001f600") == TextPlanes(text).places_of("b") << 1


def test_the_places_of_so_many_characters_are_kept() -> None:
    text = "".join(chr(0x100 + number) for number in range(300))
    planes = TextPlanes(text)
    for _ in range(2):
        for char in text:
            assert planes.places_of(char) == places(text, char)
    assert len(planes.places) == PLACES_MAX


def test_a_text_is_taken_apart_once_until_there_are_too_many() -> None:
    memory = TextMemory()
    first = "a" * 30_000 + "0"
    planes = memory.planes_of(first)
    assert memory.planes_of("a" * 30_000 + "0") is planes
    for number in range(1, 20):
        memory.planes_of("a" * 30_000 + str(number))
        assert memory.chars == sum(len(text) for text in memory.planes) <= TEXT_CHARS_KEPT_MAX
    assert memory.planes_of(first) is not planes
    assert memory.planes_of(first).places_of("0") == 1 << 30_000


def test_so_many_answers_are_kept() -> None:
    memory = TextMemory()
    for number in range(ANSWERS_MAX * 3):
        memory.store_answer("a", str(number), "", True)
        assert memory.answers[("a", str(number), "")]
        assert len(memory.answers) <= ANSWERS_MAX
