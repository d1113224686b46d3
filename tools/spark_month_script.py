"""What happens in the month of tools/spark_month.py: drawn from a seed, so that a month can be had again.

killed        the broker dies by `kill -9` and comes back, after seconds or, by its clock, up to an hour
frozen        the broker stands still and goes on
restarted     the broker is stopped in order and started again
long          it is away for longer than the streams' patience: they end, and are started again
throttled     a part of all operations is refused as server busy
remade        the browsed queue is deleted and created again
slow-batch    a batch of the receiving stream works for longer than the lock
worker        `kill -9` of a Python worker
keeper        `kill -9` of the process that renews locks
driver        `kill -9` of the driver's Python; started again from the checkpoints
executor      `kill -9` of the Java machine, which is the executor where Spark is embedded; started again
"""

import math
import random
from dataclasses import dataclass
from typing import Final

KILLED: Final = "killed"
FROZEN: Final = "frozen"
RESTARTED: Final = "restarted"
LONG: Final = "long"
THROTTLED: Final = "throttled"
REMADE: Final = "remade"
SLOW_BATCH: Final = "slow-batch"
WORKER: Final = "worker"
KEEPER: Final = "keeper"
DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
# How often in thirty days.
OFTEN: Final = {
    KILLED: 6,
    FROZEN: 3,
    RESTARTED: 3,
    LONG: 1,
    THROTTLED: 4,
    REMADE: 2,
    SLOW_BATCH: 2,
    WORKER: 4,
    KEEPER: 2,
    DRIVER: 2,
    EXECUTOR: 1,
}
KINDS: Final = tuple(OFTEN)

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
SIDED: Final = (KILLED, FROZEN, RESTARTED)  # of which the secondary has its part

LOCK_S: Final = 10
PATIENCE_S: Final = 60.0  # a broker that is started again takes seconds, and half a minute on a very busy machine
HOUR_S: Final = 3_600.0
AWAY_S: Final = 8.0  # of an outage, in real time, at most; the broker's clock makes up for the rest
LONG_S: Final = PATIENCE_S + 15.0
SLOW_S: Final = LOCK_S + 6.0
WORKERS_END_S: Final = 75.0  # Spark ends Python workers after a minute without work


@dataclass(frozen=True)
class Event:
    """`seconds` in real time; `passes_s` on the broker's clock, where that is more."""

    day: int
    what: str
    seconds: float = 0.0
    passes_s: float = 0.0
    side: str = PRIMARY


def script_of(seed: int, days: int) -> list[Event]:
    """Every kind at least once, spread over the days; the same for the same seed."""
    chance = random.Random(seed)
    kinds = [kind for kind, often in OFTEN.items() for _ in range(max(1, round(often * days / 30)))]
    drawn = [_event(chance, kind, kinds[:at].count(kind)) for at, kind in enumerate(kinds)]
    chance.shuffle(drawn)
    dealt = [Event(1 + at % days, each.what, each.seconds, each.passes_s, each.side) for at, each in enumerate(drawn)]
    return sorted(dealt, key=lambda event: event.day)


def short_script() -> list[Event]:
    """Two days: every kind of trouble that two minutes have room for."""
    return [
        Event(1, KILLED, 2.0, HOUR_S),
        Event(1, WORKER),
        Event(1, REMADE),
        Event(2, EXECUTOR),
        Event(2, SLOW_BATCH, LOCK_S + 1.0),
        Event(2, THROTTLED, 1.0),
    ]


def _event(chance: random.Random, kind: str, before: int) -> Event:
    """`before`: how many of its kind there are already. The first of some is the hardest."""
    side = SECONDARY if kind in SIDED and before % 3 == 2 else PRIMARY
    if kind == KILLED:
        passes_s = HOUR_S if before == 0 else round(math.exp(chance.uniform(math.log(2.0), math.log(HOUR_S))), 1)
        return Event(0, kind, min(AWAY_S, passes_s), passes_s, side)
    if kind in (FROZEN, THROTTLED):
        return Event(0, kind, round(chance.uniform(2.0, AWAY_S), 1), side=side)
    if kind == LONG:
        return Event(0, kind, LONG_S)
    if kind == SLOW_BATCH:
        return Event(0, kind, WORKERS_END_S if before == 0 else SLOW_S)
    return Event(0, kind, side=side)
