"""What the cost job found: sums as its report, its file and the terminal show them."""

from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

CENT: Final = Decimal("0.01")


@dataclass(frozen=True)
class Sum:
    """Lines taken together. Money as text: exact, and JSON has no decimals."""

    name: str
    operations: int
    units: int
    size_bytes: int
    cost: str
    list_cost: str


@dataclass
class CostSummary:
    out: str
    currency: str = ""
    total: str = "0.00"  # rounded once, to the cent
    total_exact: str = "0"
    first_day: str = ""
    last_day: str = ""
    lines: int = 0
    pairing: str = "0"
    by_namespace: list[Sum] = field(default_factory=list)
    by_line: list[Sum] = field(default_factory=list)
    by_day: list[dict[str, Any]] = field(default_factory=list)  # day, line, units, cost
    by_entity: list[Sum] = field(default_factory=list)
    prices: dict[str, str] = field(default_factory=dict)  # the list of each namespace
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def shown_cents(amounts: list[Decimal]) -> list[Decimal]:
    """Rounded to cents so that they add up to the rounded sum: the largest remainders are rounded up."""
    total = sum(amounts, Decimal(0)).quantize(CENT, ROUND_HALF_UP)
    floors = [amount.quantize(CENT, "ROUND_FLOOR") for amount in amounts]
    missing = int((total - sum(floors, Decimal(0))) / CENT)
    order = sorted(range(len(amounts)), key=lambda at: (floors[at] - amounts[at], at))
    for at in order[:missing]:
        floors[at] += CENT
    return floors
