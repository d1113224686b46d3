"""The stream behind the syphon: a batch of it moves messages, and its rows are counts.

The driver's half looks how deep the backlog queues are and shares a batch out to tasks. A task, on an executor,
receives, sends and completes (`syphon/move.py`); no message passes through the driver or the Java machine. A share says
how many messages of which queue, not which ones: a task that is tried again gets others, and what its dead predecessor
had locked comes back by itself.
"""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spillway.client import ClientError
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import backlogs_of, connection_pool
from spillway.spark.platform.operations import PollPace
from spillway.syphon.crash import variables
from spillway.syphon.depths import Depth, SecondaryError
from spillway.syphon.move import IDLE_S, BacklogShare, Moved, MoveOptions, move
from spillway.syphon.outcomes import KEPT, OutcomeCount, reason_of
from spillway.syphon.restore import Ttl

FORMAT: Final = "spillway-syphon"
# Spark hides the values of options whose names say that they are secret.
OPTION: Final = "secretPlan"
SCHEMA: Final = (
    "attempt string, partition int, host string, pid int, backlog string, destination string, outcome string, "
    "reason string, messages bigint, size_bytes bigint, received bigint, seconds double, numbers array<bigint>"
)


@dataclass(frozen=True)
class SyphonPlan:
    """All that driver and tasks must know."""

    primary: Access
    secondary: Access
    name: str
    backlogs: tuple[str, ...]
    batch_messages: int = 50_000
    partitions: int = 2
    idle_s: float = IDLE_S
    patience_s: float = 0.0
    ttl: Ttl = "restart"
    report_dir: str = ""  # where tasks write down what they did, for the case that they die
    environment: Mapping[str, str] = field(default_factory=dict)  # of the tasks: crash points
    is_watch: bool = False  # goes on for ever: a namespace that is away is waited for
    again_s: float = 10.0  # messages that stay where they are, kept or in somebody's lock, are asked for again then

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "environment": dict(self.environment)})

    @classmethod
    def from_json(cls, text: str) -> "SyphonPlan":
        values = json.loads(text)
        values["primary"] = Access(**values["primary"])
        values["secondary"] = Access(**values["secondary"])
        values["backlogs"] = tuple(values["backlogs"])
        return cls(**values)


class SyphonPartition(InputPartition):
    """The shares of one task, as plain pairs of path and number."""

    def __init__(self, index: int, shares: Sequence[tuple[str, int]]) -> None:
        self.index = index
        self.shares = [(path, count) for path, count in shares]


class SyphonSource(DataSource):
    """`format("spillway-syphon")`; the job registers it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> "SyphonReader":
        return SyphonReader(SyphonPlan.from_json(self.options[OPTION]))


class SyphonReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets count batches, and carry how the last one is shared out: planned again, it is shared out alike."""

    def __init__(self, plan: SyphonPlan) -> None:
        self.plan = plan
        self.left: int | None = None  # of a run that takes what is there now
        self.looked: tuple[int, float] = (-1, 0.0)
        self.pace = PollPace()  # every look is an operation for each queue, and paid for

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0, "shares": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.left = self._total(self._depths())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where it stands if there is nothing to do; else one batch further."""
        if self.left is not None and self.left <= 0:
            return start
        if self.left is None and not self.pace.is_due:
            return start
        try:
            depths = self._depths()
        except SecondaryError:
            if not self.plan.is_watch:
                raise
            return start  # the secondary is away: the next look is in a second
        total = self._total(depths)
        self.pace.on_looked(total == 0)
        if total == 0 or not self._is_worth_it(total):
            return start
        if self.left is not None:
            self.left -= min(total, self.plan.batch_messages)
        return {"batch": start["batch"] + 1, "shares": share_out(depths, self.plan)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start["batch"] >= end["batch"]:
            return []
        return [SyphonPartition(index, shares) for index, shares in enumerate(end["shares"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, SyphonPartition), "partitions come from this reader"
        return run_task(self.plan, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is left to do: a task has settled what it moved."""

    def _depths(self) -> list[Depth]:
        plan = self.plan
        backlogs = backlogs_of(plan.secondary, plan.name, len(plan.backlogs))
        return connection_pool().run(backlogs.depths(plan.backlogs))

    def _total(self, depths: Sequence[Depth]) -> int:
        """A queue of unknown depth may hold a whole batch."""
        return sum(self.plan.batch_messages if depth.active is None else depth.active for depth in depths)

    def _is_worth_it(self, total: int) -> bool:
        """Not one batch after the other for messages that stay where they are."""
        seen, at_s = self.looked
        if self.left is None and total == seen and time.monotonic() - at_s < self.plan.again_s:
            return False
        self.looked = (total, time.monotonic())
        return True


def share_out(depths: Sequence[Depth], plan: SyphonPlan) -> list[list[list[Any]]]:
    """For each task which queues and how many messages of each. A deep queue is shared by several tasks.

    A batch that covers all there is may take more than it saw, so that it ends with empty queues and not with a number.
    """
    batch = plan.batch_messages
    known = {depth.path: batch if depth.active is None else depth.active for depth in depths if depth.active != 0}
    total = sum(known.values())
    whole = min(batch, total)
    wanted = {path: max(1, count * whole // total) for path, count in known.items()}
    deepest = max(known, key=lambda path: known[path])
    wanted[deepest] += max(0, whole - sum(wanted.values()))  # what rounding left over
    room = -(-sum(wanted.values()) // plan.partitions)
    tasks: list[list[list[Any]]] = [[]]
    free = room
    for path, count in wanted.items():
        while count > 0:
            if free == 0:
                tasks.append([])
                free = room
            taken = min(count, free)
            tasks[-1].append([path, max(1, batch // plan.partitions) if total <= batch else taken])
            count -= taken
            free -= taken
    assert len(tasks) <= plan.partitions, "rounding up a share makes no more tasks than there are partitions"
    assert all(tasks), "no task is begun for nothing"
    return tasks


# -- on an executor ---------------------------------------------------------------------------------------------------


def run_task(plan: SyphonPlan, partition: SyphonPartition) -> Iterator[tuple[Any, ...]]:
    """Move, then say what was done. What was done is also written down as it happens, if there is a place for it."""
    attempt = uuid.uuid4().hex
    shares = [BacklogShare(path, count) for path, count in partition.shares]
    options = MoveOptions(plan.idle_s, plan.patience_s, None, plan.ttl)
    with variables(plan.environment), TaskReport(plan.report_dir, attempt, partition.index) as report:
        try:
            moved = connection_pool().run(_move(plan, shares, options, report))
        except ClientError as error:
            if not plan.is_watch:
                raise
            moved = Moved(error=error)
    if moved.error is not None and not plan.is_watch:
        raise RuntimeError(f"the backlog is not emptied: {moved.error}") from moved.error
    about = (attempt, partition.index, socket.gethostname(), os.getpid())
    # While one watches, a namespace that is away is no reason for the query to die: the next batch finds it back.
    counts = list(moved.outcomes.counts())
    if moved.error is not None or not counts:
        counts.append(OutcomeCount("", "", "", reason_of(moved.error) if moved.error is not None else "", 0, 0))
    for count in counts:
        yield (
            *about,
            count.backlog,
            count.destination,
            count.outcome,
            count.reason,
            count.messages,
            count.size_bytes,
            moved.received,
            moved.seconds,
            moved.kept.get((count.backlog, count.destination, count.reason), []) if count.outcome == KEPT else [],
        )


async def _move(plan: SyphonPlan, shares: Sequence[BacklogShare], options: MoveOptions, report: "TaskReport") -> Moved:
    pool = connection_pool()
    primary = await pool.connection(plan.primary, "syphon")
    secondary = await pool.connection(plan.secondary, "syphon")
    return await move(primary, secondary, shares, options, report.write)


class TaskReport:
    """A file of lines, one for each count. A task that dies leaves it as far as it got."""

    def __init__(self, directory: str, attempt: str, partition: int) -> None:
        self.path = Path(directory) / f"{attempt}.jsonl" if directory else None
        self.about = {"attempt": attempt, "partition": partition, "host": socket.gethostname(), "pid": os.getpid()}
        self._file = -1

    def __enter__(self) -> "TaskReport":
        assert self._file < 0, "a report is opened once at a time"
        if self.path is not None:
            # Where executors have no directory in common with the driver, there is no report but the rows.
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
                self._line(self.about)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def write(self, count: OutcomeCount) -> None:
        if self._file >= 0:
            self._line(asdict(count))

    def _line(self, values: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(values).encode() + b"\n")
