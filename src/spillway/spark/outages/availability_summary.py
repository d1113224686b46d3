"""What the availability job found: as its report, its file and the terminal show it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class AvailabilitySummary:
    out: str
    first: str = ""
    last: str = ""
    processes: int = 0
    events: int = 0
    namespaces: list[str] = field(default_factory=list)
    entities: list[dict[str, Any]] = field(default_factory=list)
    outages: list[dict[str, Any]] = field(default_factory=list)  # earliest first
    outages_count: int = 0
    entities_count: int = 0
    diverted: int = 0
    syphoned: int = 0
    repeated: int = 0  # brought home, but not taken out of the backlog then: they may have come twice
    dead_lettered: int = 0
    waiting: int = 0
    checks: list[dict[str, Any]] = field(default_factory=list)
    delivered: list[dict[str, Any]] = field(default_factory=list)
    set_aside: int = 0  # lines and files that could not be used
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0
