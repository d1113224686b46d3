"""The plan of a random play: who sends what when, and what goes wrong with which side. Plain data, as JSON in a file.

A plan is drawn from a seed (`draw`), edited by hand where somebody wants to see less of it, and played (`play`). Times
are seconds from the moment at which all callers begin.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
EVERYTHING: Final = "*"  # as the path of an ailment: the whole namespace

# What goes wrong with a side.
KILL: Final = "kill"  # kill -9, and started again
FREEZE: Final = "freeze"  # it stops answering, connections stay open
CUT: Final = "cut"  # it closes all connections at once, as a service does with idle ones
UNREACHABLE: Final = "unreachable"  # whatever is asked of it, the connection breaks
BUSY: Final = "busy"
REFUSE: Final = "refuse"  # with a condition
SILENT: Final = "silent"  # sends to an entity are never answered
SLOW: Final = "slow"
DISABLE: Final = "disable"
FILL: Final = "fill"  # really full, and drained later
DELETE: Final = "delete"  # and made anew
AILMENTS: Final = (KILL, FREEZE, CUT, UNREACHABLE, BUSY, REFUSE, SILENT, SLOW, DISABLE, FILL, DELETE)

# How a caller sends.
ONE: Final = "one"
TOGETHER: Final = "together"  # all at the same time
SEQUENCE: Final = "sequence"  # one after the other
BATCH: Final = "batch"  # in one call
SCHEDULE: Final = "schedule"
LATER_S: Final = 1.0  # when what is scheduled is due
WAYS: Final = (ONE, TOGETHER, SEQUENCE, BATCH, SCHEDULE)

ASYNCIO: Final = "asyncio"
SYNC: Final = "sync"


@dataclass(frozen=True)
class PlannedEntity:
    """A queue or topic of the primary."""

    name: str
    is_topic: bool = False
    sessions: bool = False
    dedup: bool = False
    size_mb: int = 1024

    @property
    def place(self) -> str:
        """Where what was sent to it is found."""
        return f"{self.name}/Subscriptions/all" if self.is_topic else self.name


@dataclass(frozen=True)
class Program:
    """A process that sends, with a pairing of its own."""

    name: str
    front: str
    interval_s: float
    pending: str
    timeout_s: float
    senders: int  # for each entity


@dataclass(frozen=True)
class Ailment:
    """Something that befalls a side, and ends. `paths` are entities, or `EVERYTHING`."""

    at_s: float
    lasts_s: float
    side: str
    what: str
    paths: tuple[str, ...] = (EVERYTHING,)
    condition: str = ""
    delay_ms: int = 0


@dataclass(frozen=True)
class PlannedSend:
    """One caller that sends `count` messages of a kind."""

    at_s: float
    program: str
    sender: int
    entity: str
    kind: str
    how: str = ONE
    count: int = 1


@dataclass(frozen=True)
class PlayPlan:
    seed: int
    backlog_queues: int
    cool_down_s: float
    closing: str  # what the brokers are like when the programs are told to close
    entities: tuple[PlannedEntity, ...]
    programs: tuple[Program, ...]
    ailments: tuple[Ailment, ...]
    sends: tuple[PlannedSend, ...]
    format: int = field(default=FORMAT)

    def to_text(self) -> str:
        """JSON with a line for each thing: what is taken out by hand is a line."""
        plain = asdict(self)
        lines = []
        for name, value in plain.items():
            if isinstance(value, (list, tuple)):
                rows = ",\n    ".join(json.dumps(row) for row in value)
                lines.append(f'  "{name}": [\n    {rows}\n  ]')
            else:
                lines.append(f'  "{name}": {json.dumps(value)}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


class PlanError(Exception):
    """A file is no plan."""


def read_plan(path: Path) -> PlayPlan:
    """`PlanError` if it cannot be played."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return plan_from(plain)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PlanError(f"{path} is no plan of a random play: {type(error).__name__}: {error}") from error


def plan_from(plain: dict[str, Any]) -> PlayPlan:
    plan = PlayPlan(
        seed=int(plain["seed"]),
        backlog_queues=int(plain["backlog_queues"]),
        cool_down_s=float(plain["cool_down_s"]),
        closing=str(plain["closing"]),
        entities=tuple(PlannedEntity(**row) for row in plain["entities"]),
        programs=tuple(Program(**row) for row in plain["programs"]),
        ailments=tuple(Ailment(**{**row, "paths": tuple(row["paths"])}) for row in plain["ailments"]),
        sends=tuple(PlannedSend(**row) for row in plain["sends"]),
        format=int(plain["format"]),
    )
    problem = plan_problem(plan)
    if problem is not None:
        raise ValueError(problem)
    return plan


def plan_problem(plan: PlayPlan) -> str | None:
    """Why it cannot be played."""
    names = {entity.name for entity in plan.entities}
    programs = {program.name: program for program in plan.programs}
    if plan.format != FORMAT:
        return f"format {plan.format} is not {FORMAT}"
    for ailment in plan.ailments:
        if ailment.what not in AILMENTS or ailment.side not in (PRIMARY, SECONDARY):
            return f"nobody knows the ailment {ailment.what} of {ailment.side}"
    for send in plan.sends:
        if send.entity not in names or send.program not in programs:
            return f"{send.program} cannot send to {send.entity}: one of them is not in the plan"
        if send.how not in WAYS or not 0 <= send.sender < programs[send.program].senders:
            return f"{send.program} has no way {send.how} or no sender {send.sender}"
    for side in (PRIMARY, SECONDARY):
        lane = sorted((each for each in plan.ailments if each.side == side), key=lambda each: each.at_s)
        for one, other in zip(lane, lane[1:], strict=False):
            if one.at_s + one.lasts_s > other.at_s:
                return f"{one.what} and {other.what} of the {side} overlap"
    return None
