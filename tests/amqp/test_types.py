"""The typed values compare like the plain ones and keep their type."""

from spillway.amqp.types import Array, Described, Symbol, UInt, symbols


def test_typed_values_equal_plain_ones() -> None:
    assert Symbol("a") == "a"
    assert UInt(5) == 5
    assert {Symbol("a"): 1}["a"] == 1  # type: ignore[index]


def test_arrays_of_different_types_differ_even_with_equal_elements() -> None:
    assert Array(0xA3, ["x"]) != Array(0xA1, ["x"])
    assert Array(0x70, [1], Symbol("d")) != Array(0x70, [1])
    assert Array(0x70, [1]) == Array(0x70, [1])
    assert symbols(["x"]) == Array(0xA3, [Symbol("x")])


def test_described_values_are_equal_by_descriptor_and_value() -> None:
    assert Described(Symbol("a"), 1) == Described(Symbol("a"), 1)
    assert Described(Symbol("a"), 1) != Described(Symbol("b"), 1)
    assert repr(Described(Symbol("a"), 1)) == "Described('a', 1)"
    assert repr(Array(0xA3, ["x"])) == "Array(0xa3, ['x'], None)"
