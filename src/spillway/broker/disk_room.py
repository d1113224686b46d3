"""What may still be written before the disk is short of space, and who is refused when it is (docs/disk.md).

The pump says how much is free. A turn may then add so much and no more: what a client asks to be stored stops at the
reserve; what happens by itself, and settling, goes on into a quarter of it; the rest is for deleting alone, which needs
a little space for the log before it gives any back.
"""

from typing import Final

from spillway.broker.commands import AddRule, CreateEntity, Request, SetSessionState, UpdateEntity
from spillway.model import limits
from spillway.model.records import ROW_BYTES
from spillway.model.settlement import COMPLETE, RELEASE, Settlement

ENOUGH: Final = 1 << 62
ENTITY_BYTES: Final = 16 * limits.KIB  # of an entity and its dead-letter queue without their rules, at most about

PLENTY: Final = 0  # levels
LOW: Final = 1  # below the reserve: clients add nothing
FULL: Final = 2  # only what deletes is done


def level_of(free_bytes: int) -> int:
    if free_bytes >= limits.DISK_RESERVE_BYTES:
        return PLENTY
    return LOW if free_bytes >= limits.DISK_FULL_BYTES else FULL


class DiskRoom:
    """What turns of one namespace may still add, in bytes of records. Each is written to the log and to the file."""

    def __init__(self) -> None:
        self.growth_left: int = ENOUGH  # for what clients add
        self.upkeep_left: int = ENOUGH  # for settling, and for what happens by itself

    def note(self, free_bytes: int) -> None:
        self.growth_left = _left(free_bytes, limits.DISK_RESERVE_BYTES)
        self.upkeep_left = _left(free_bytes, limits.DISK_FULL_BYTES)

    def spend(self, size_bytes: int) -> None:
        """Records of a turn that has ended take room; what is measured next has them counted."""
        self.growth_left = max(0, self.growth_left - size_bytes)
        self.upkeep_left = max(0, self.upkeep_left - size_bytes)

    @property
    def is_low(self) -> bool:
        return self.growth_left == 0

    @property
    def is_full(self) -> bool:
        return self.upkeep_left == 0


def _left(free_bytes: int, kept_bytes: int) -> int:
    return 0 if free_bytes < kept_bytes else 1 + (free_bytes - kept_bytes) // 2


def bytes_asked(request: Request) -> int:
    """What a request would add to the store for good, about; 0 if it adds nothing or makes room."""
    if isinstance(request, SetSessionState):
        return 0 if request.state is None else len(request.state)
    if isinstance(request, AddRule):
        return ROW_BYTES + len(request.rule.to_json())
    if isinstance(request, (CreateEntity, UpdateEntity)):
        return ENTITY_BYTES
    return 0


def makes_room(settlement: Settlement) -> bool:
    """Completing deletes, releasing writes nothing: neither is ever refused."""
    return settlement.kind == COMPLETE or settlement.kind == RELEASE
