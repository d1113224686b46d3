"""What an outage would come to: messages diverted, room in the backlog, time to bring them home, and what it costs.

Arithmetic alone: no broker, no Spark. Every number is the worst case that the settings allow (docs/cost.md).
"""

from dataclasses import asdict, dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any, Final

from spillway.model.ledger import units_of
from spillway.spark.billing.charges import (
    IDLE_RECEIVE,
    PING,
    RECEIVE_FROM_BACKLOG,
    RECEIVE_FROM_PRIMARY,
    SEND_TO_BACKLOG,
    SEND_TO_PRIMARY,
    share,
)
from spillway.spark.billing.prices import PriceList, money

QUEUE_BYTES: Final = 5120 * 1024 * 1024  # of a backlog queue: 5 GB
POLL_S: Final = 900  # the syphon's long poll: four an hour and queue
PRIMARY_LINES: Final = (SEND_TO_PRIMARY, RECEIVE_FROM_PRIMARY, PING)
SECONDARY_LINES: Final = (SEND_TO_BACKLOG, RECEIVE_FROM_BACKLOG, IDLE_RECEIVE)
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True)
class Question:
    rate: Fraction  # messages a second, all senders together
    size_bytes: int
    outage_s: int
    backlog_queues: int = 10
    drain_rate: Fraction = Fraction(10_000)  # messages a second that the syphon brings home
    failover_s: int = 60
    ping_s: int = 60
    entities: int = 1  # that are sent to, and pinged each for itself
    senders: int = 1  # processes with a factory of their own: each pings
    syphons: int = 1
    idle_days: int = 30
    month_operations: int | None = None  # of each namespace before the outage; None: the included ones are used up

    def __post_init__(self) -> None:
        """ValueError names the option and what is allowed."""
        for name, least, most in (
            ("size_bytes", 0, 100 * 1024 * 1024),
            ("outage_s", 0, 3660 * DAY_S),
            ("backlog_queues", 1, 10_000),
            ("failover_s", 0, HOUR_S),
            ("ping_s", 1, HOUR_S // 2),
            ("entities", 1, 1_000_000),
            ("senders", 1, 1_000_000),
            ("syphons", 0, 10_000),
            ("idle_days", 0, 3660),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"--{OPTIONS.get(name, name)} must be from {least:,} to {most:,}, not {value:,}")
        for name, rate, lowest in (("rate", self.rate, 0), ("drain-rate", self.drain_rate, Fraction(1, 1000))):
            if not lowest <= rate <= 10_000_000:
                raise ValueError(f"--{name} must be from {'0' if not lowest else '0.001'} to 10,000,000 a second")
        if self.month_operations is not None and not 0 <= self.month_operations <= 10**15:
            raise ValueError("--month-operations must be from 0 to 1,000,000,000,000,000")


OPTIONS: Final = {
    "size_bytes": "size",
    "outage_s": "outage",
    "backlog_queues": "backlog-queues",
    "failover_s": "failover-interval",
    "ping_s": "ping-interval",
    "idle_days": "idle-days",
}


@dataclass(frozen=True)
class CostLine:
    line: str
    operations: int
    units: int
    cost: str  # exact


@dataclass
class WhatIfAnswer:
    currency: str
    diverted: int
    diverted_bytes: int
    queue_bytes: int  # in each backlog queue, if they fill alike
    queue_bytes_max: int
    fits: bool
    refused: int  # messages for which no queue has room
    full_after_s: int | None  # of diverting, until no queue has room; None: never
    drain_s: int
    pings: int
    idle_receives: int  # in the idle days
    lines: list[CostLine] = field(default_factory=list)
    cost: str = "0"  # of all lines, exact
    cost_of_outage: str = "0"  # without the idle receives
    cost_anyway: str = "0"  # what the same messages would have cost without an outage

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def answer(question: Question, prices: PriceList) -> WhatIfAnswer:
    wanted = diverted_of(question)
    room = room_of(question)
    diverted = min(wanted, room)
    per_queue = -(-diverted // question.backlog_queues)
    pings = pings_of(question)
    idle = question.syphons * question.backlog_queues * (DAY_S // POLL_S) * question.idle_days
    found = WhatIfAnswer(
        currency=prices.currency,
        diverted=diverted,
        diverted_bytes=diverted * question.size_bytes,
        queue_bytes=per_queue * question.size_bytes,
        queue_bytes_max=QUEUE_BYTES,
        fits=wanted <= room,
        refused=wanted - diverted,
        full_after_s=full_after(question),
        drain_s=ceil(Fraction(diverted) / question.drain_rate),
        pings=pings,
        idle_receives=idle,
    )
    add_costs(found, question, prices)
    return found


def diverted_of(question: Question) -> int:
    """From the failover to the first ping that gets through, which may come a whole interval after the end."""
    if question.outage_s <= question.failover_s:
        return 0
    return ceil(question.rate * (question.outage_s - question.failover_s + question.ping_s))


def room_of(question: Question) -> int:
    if not question.size_bytes:
        return 2**63
    return question.backlog_queues * (QUEUE_BYTES // question.size_bytes)


def full_after(question: Question) -> int | None:
    if not question.rate or not question.size_bytes:
        return None
    return int(Fraction(room_of(question)) / question.rate)


def pings_of(question: Question) -> int:
    """The first at once, then one an interval until one gets through: of every sender, to every entity."""
    if question.outage_s <= question.failover_s:
        return 0
    rounds = 1 + -(-(question.outage_s - question.failover_s) // question.ping_s)
    return rounds * question.entities * question.senders


def add_costs(found: WhatIfAnswer, question: Question, prices: PriceList) -> None:
    """Each namespace's operations on top of what its month had come to; shared by its lines in proportion."""
    units = found.diverted * units_of(question.size_bytes)
    moved = (found.diverted, units)
    counted = {
        SEND_TO_BACKLOG: moved,
        RECEIVE_FROM_BACKLOG: moved,
        SEND_TO_PRIMARY: moved,
        RECEIVE_FROM_PRIMARY: moved,
        IDLE_RECEIVE: (found.idle_receives, found.idle_receives),
        PING: (found.pings, found.pings),
    }
    assert sorted(counted) == sorted((*SECONDARY_LINES, *PRIMARY_LINES)), "every line is paid at one namespace"
    costs: dict[str, int] = {}
    for lines in (SECONDARY_LINES, PRIMARY_LINES):
        weights = [counted[line][1] for line in lines]
        total = on_top(prices, question, sum(weights))
        costs |= dict(zip(lines, share(total, weights, sum(weights)), strict=True))
    egress = found.diverted_bytes * prices.egress_per_byte_pico
    for line in (RECEIVE_FROM_BACKLOG, RECEIVE_FROM_PRIMARY):
        costs[line] += egress
    found.lines = [CostLine(line, *counted[line], exact(costs[line])) for line in counted]
    found.cost = exact(sum(costs.values()))
    found.cost_of_outage = exact(sum(costs.values()) - costs[IDLE_RECEIVE])
    found.cost_anyway = exact(on_top(prices, question, 2 * units) + egress)


def on_top(prices: PriceList, question: Question, units: int) -> int:
    so_far = prices.included_operations if question.month_operations is None else question.month_operations
    return prices.operations_pico(so_far + units) - prices.operations_pico(so_far)


def exact(pico: int) -> str:
    text = f"{money(pico):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_size(text: str) -> int:
    """`1024`, `1KB`, `256 KB`, `1MB`: of 1,024 each. ValueError."""
    bare = text.strip().upper().replace(" ", "")
    factor = 1
    for suffix, size in (("KB", 1024), ("MB", 1024 * 1024), ("B", 1)):
        if bare.endswith(suffix):
            bare, factor = bare.removesuffix(suffix), size
            break
    if not bare.isascii() or not bare.isdigit() or len(bare) > 12:
        raise ValueError(f"--size must be a size like 1024, 1KB or 1MB, not '{text}'")
    return int(bare) * factor


def parse_rate(name: str, text: str) -> Fraction:
    """`500`, `0.5`. ValueError."""
    try:
        value = Decimal(text.replace(",", "").replace("_", ""))
    except ArithmeticError:
        value = Decimal("NaN")
    if not value.is_finite() or value < 0:
        raise ValueError(f"--{name} must be messages a second, like 500 or 0.5, not '{text}'")
    return Fraction(value)
