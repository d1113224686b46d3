"""Faults on purpose: an operation on an entity that is refused with a chosen error until the fault is taken away."""

from typing import Final

from spillway.model.entity import entity_key
from spillway.model.errors import BrokerError

SEND: Final = "send"
SETTLE: Final = "settle"
ATTACH: Final = "attach"
MANAGEMENT: Final = "management"
OPERATIONS: Final = (SEND, SETTLE, ATTACH, MANAGEMENT)


class Faults:
    def __init__(self) -> None:
        self.by_place: dict[str, BrokerError] = {}

    def plant(self, path: str, operation: str, error: BrokerError | None) -> None:
        place = operation + " " + entity_key(path)
        if error is None:
            self.by_place.pop(place, None)
        else:
            self.by_place[place] = error

    def find(self, path: str, operation: str) -> BrokerError | None:
        if not self.by_place:
            return None
        return self.by_place.get(operation + " " + entity_key(path))
