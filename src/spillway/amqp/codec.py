"""Placeholder while the codec is being written: signatures only."""

from typing import ClassVar, Final

FRAME_ELEMENTS_MAX: Final = 65_536
DEPTH_MAX: Final = 32


class Composite:
    """A described list whose descriptor we know: a performative, a terminus, a delivery state."""

    code: ClassVar[int] = 0

    def fields(self) -> list[object]:
        """Every field in the order of the specification, in its AMQP type."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composite) and self.code == other.code and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(field) for field in self.fields()])})"


class Budget:
    def __init__(self, elements_max: int = FRAME_ELEMENTS_MAX, depth_max: int = DEPTH_MAX) -> None:
        self.elements_left = elements_max
        self.depth_left = depth_max
