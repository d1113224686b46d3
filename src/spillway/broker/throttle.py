"""Server busy: what a namespace refuses when it is used beyond its limits (contract I5 to I7).

Operations are counted as Azure counts them: one for each message sent or handed out, one for each filter that a topic
tries on a message, ten for an administrator's request. Who asks for more than there are is refused for ten seconds,
and so is everybody else: whoever then waits ten seconds, as told, finds room. Deliveries are never refused; they
wait. Settlements are neither counted nor refused: they give back what others wait for.

Memory, store and disk are measured, not counted. Of memory and store only what makes them grow is refused: sends. Of
the disk, whatever a client would have written that does not delete: see `disk_room`.
"""

from typing import Final

from spillway.broker.commands import (
    AddRule,
    CancelScheduled,
    ListRules,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    RenewSession,
    Request,
    Schedule,
    UpdateDisposition,
)
from spillway.broker.decided import Decided, Servable
from spillway.broker.disk_room import DiskRoom, makes_room
from spillway.broker.lane import Lane
from spillway.model import limits
from spillway.model.errors import ServerBusy
from spillway.model.quotas import NO_LIMIT, Quotas
from spillway.model.settlement import Settlement

RESUME_MS: Final = 100  # deliveries that wait get so much of a second at a time, not one by one

OPERATIONS: Final = "operations-per-second"
ENTITY_OPERATIONS: Final = "entity-operations-per-second"
MEMORY: Final = "memory-mb"
STORE: Final = "store-mb"
DISK: Final = "disk"

_DISK_TEXT: Final = (
    "The disk of the broker is nearly full: messages can be received and completed, and entities deleted; nothing is "
    "stored. Try again in 10 seconds, when messages were received or space was freed."
)
_TEXT: Final = (
    "The request was terminated because {whose} is being throttled: {why} Error code : 50009. "
    "Please wait 10 seconds and try again."
)


def operations_of(request: Request) -> int:
    """What a request over `$management` counts. Nothing: it settles, keeps a lock or takes a message back."""
    if isinstance(request, (RenewLocks, UpdateDisposition, RenewSession, CancelScheduled)):
        return 0
    if isinstance(request, Schedule):
        return 0  # a send like any other: counted where those are
    if isinstance(request, ReceiveDeferred):
        return len(request.sequence_numbers)
    if isinstance(request, (AddRule, RemoveRule, ListRules)):
        return limits.MANAGEMENT_OPERATIONS
    return 1


class Bucket:
    """A bucket of so many operations a second; unused ones stay in it for ten seconds.

    As long as it is refused, it fills: with room for ten seconds the average under any load is what was set.
    Deliveries stop at half of it, so that they never leave a sender without.
    """

    def __init__(self, per_second: int, whose: str, setting: str) -> None:
        self.per_second = per_second
        self.room = per_second * limits.BUSY_MS  # in thousandths of an operation
        self.level = self.room
        self.filled_ms = 0
        self.busy_until_ms = 0
        self.setting = setting
        self.text = _TEXT.format(
            whose=whose, why=f"it has used up the {per_second} operations a second it may have (limit {setting})."
        )

    def fill(self, now_ms: int) -> None:
        self.level = min(self.room, self.level + (now_ms - self.filled_ms) * self.per_second)
        self.filled_ms = now_ms

    def is_busy(self, now_ms: int) -> bool:
        """Whether a request must be refused; a bucket without one whole operation is busy for ten seconds."""
        if now_ms < self.busy_until_ms:
            return True
        self.fill(now_ms)
        if self.level >= 1_000:
            return False
        self.busy_until_ms = now_ms + limits.BUSY_MS
        return True

    def charge(self, operations: int) -> None:
        """May go below nothing: a batch is not cut. Never so far that ten seconds do not mend it."""
        self.level = max(self.level - operations * 1_000, -self.room // 2)

    def deliverable(self, now_ms: int) -> int:
        """How many messages may be handed out now."""
        self.fill(now_ms)
        return max(0, (self.level - self.room // 2) // 1_000)

    def deliverable_ms(self, now_ms: int) -> int:
        """When it is worth while to hand out more."""
        wanted = self.room // 2 + max(1_000, self.per_second * RESUME_MS) - self.level
        return now_ms + max(1, -(-wanted // self.per_second))


class Share:
    """What one entity takes its operations from: its own bucket, the namespace's, or both."""

    def __init__(self, buckets: list[Bucket], throttle: "Throttle") -> None:
        self.buckets = buckets
        self.throttle = throttle

    def refuse(self, operations: int, now_ms: int) -> ServerBusy | None:
        """Take so many from each bucket, or say which of them is empty. What counts nothing is never refused."""
        if operations == 0:
            return None
        for bucket in self.buckets:
            if bucket.is_busy(now_ms):
                return self.throttle.refusal(bucket.setting, bucket.text)
        self.charge(operations)
        return None

    def charge(self, operations: int) -> None:
        for bucket in self.buckets:
            bucket.charge(operations)

    def deliverable(self, now_ms: int) -> int:
        count = limits.DELIVERIES_PER_TURN_MAX
        for bucket in self.buckets:
            count = min(count, bucket.deliverable(now_ms))
        return count

    def mark_throttled(self, lane: Lane, owner: Servable, now_ms: int) -> None:
        """Deliveries of a lane wait for operations; the namespace serves it again then."""
        when = 0
        for bucket in self.buckets:
            when = max(when, bucket.deliverable_ms(now_ms))
        self.throttle.add_throttled(lane, owner, when)


class Gauge:
    """A measured amount that must stay below its limit."""

    def __init__(self, megabytes: int, setting: str, whose: str, why: str) -> None:
        self.bytes_max = megabytes * limits.MIB
        self.bytes_used = 0
        self.busy_until_ms = 0
        self.setting = setting
        self.text = _TEXT.format(whose=whose, why=why)

    def is_over(self) -> bool:
        return self.bytes_max != NO_LIMIT and self.bytes_used >= self.bytes_max

    def note(self, bytes_used: int, now_ms: int) -> None:
        was_over = self.is_over()
        self.bytes_used = bytes_used
        if self.is_over() and not was_over:
            self.busy_until_ms = max(self.busy_until_ms, now_ms + limits.BUSY_MS)

    def is_busy(self, now_ms: int) -> bool:
        return self.is_over() or now_ms < self.busy_until_ms


class Throttle:
    """The buckets and gauges of one namespace, and the lanes that they hold up."""

    def __init__(self, namespace: str, quotas: Quotas) -> None:
        self.quotas = quotas
        whose = f"the namespace '{namespace}'"
        self.common: Bucket | None = None
        if quotas.operations_per_second != NO_LIMIT:
            self.common = Bucket(quotas.operations_per_second, whose, OPERATIONS)
        memory = f"the broker uses the {quotas.memory_mb} MB of memory it may have (limit {MEMORY})."
        self.memory = Gauge(quotas.memory_mb, MEMORY, whose, memory + " Messages can be received and settled.")
        store = f"it holds the {quotas.store_mb} MB of messages it may hold (limit {STORE})."
        self.store = Gauge(quotas.store_mb, STORE, whose, store + " Receive some.")
        self.gauges = [self.memory, self.store]
        self.disk = DiskRoom()
        # Whether anything measured is, or was a moment ago, beyond its limit: the one thing that a send looks at.
        self.is_pressed = False
        self.throttled: dict[Lane, Servable] = {}
        self.resume_ms = 0  # when to serve them again
        self.refused: dict[str, int] = {OPERATIONS: 0, ENTITY_OPERATIONS: 0, MEMORY: 0, STORE: 0, DISK: 0}

    def refusal(self, setting: str, text: str) -> ServerBusy:
        self.refused[setting] += 1
        return ServerBusy(text)

    # -- operations -------------------------------------------------------------------------------------------

    def share_for(self, path: str, partitions: int) -> Share | None:
        """None: its operations are not counted. A partitioned entity has a share for each of its stores."""
        buckets: list[Bucket] = []
        per_second = self.quotas.entity_operations_per_second
        if per_second != NO_LIMIT:
            buckets.append(Bucket(per_second * partitions, f"the entity '{path}'", ENTITY_OPERATIONS))
        if self.common is not None:
            buckets.append(self.common)
        return Share(buckets, self) if buckets else None

    def refuse_management(self, now_ms: int) -> ServerBusy | None:
        """An administrator's request, about whatever entity."""
        common = self.common
        if common is None:
            return None
        if common.is_busy(now_ms):
            return self.refusal(common.setting, common.text)
        common.charge(limits.MANAGEMENT_OPERATIONS)
        return None

    def add_throttled(self, lane: Lane, owner: Servable, when_ms: int) -> None:
        if not self.throttled or when_ms < self.resume_ms:
            self.resume_ms = when_ms
        self.throttled[lane] = owner

    def pop_throttled(self) -> dict[Lane, Servable]:
        throttled = self.throttled
        self.throttled = {}
        return throttled

    # -- what is measured -------------------------------------------------------------------------------------

    def note_memory(self, bytes_used: int, now_ms: int) -> None:
        self.memory.note(bytes_used, now_ms)
        self.is_pressed = self.is_pressed or self.memory.is_over()

    def note_store(self, bytes_used: int, now_ms: int) -> None:
        self.store.note(bytes_used, now_ms)
        self.is_pressed = self.is_pressed or self.store.is_over()

    def refuse_growth(self, now_ms: int) -> ServerBusy | None:
        """Asked only while `is_pressed`, which it takes back when all is well."""
        for gauge in self.gauges:
            if gauge.is_busy(now_ms):
                return self.refusal(gauge.setting, gauge.text)
        self.is_pressed = False
        return None

    def refuse_writing(self, size_bytes: int, decided: Decided) -> ServerBusy | None:
        """What a client wants stored, so many bytes more than this turn has already."""
        if decided.turn.size_bytes + size_bytes < self.disk.growth_left:
            return None
        return self.refusal(DISK, _DISK_TEXT)

    def refuse_settling(self, settlement: Settlement, size_bytes: int, decided: Decided) -> ServerBusy | None:
        """Abandoning, deferring and dead-lettering write messages of so many bytes anew; properties come on top."""
        if makes_room(settlement):
            return None
        if settlement.properties:
            return self.refuse_writing(size_bytes, decided)
        return None if decided.may_write(size_bytes) else self.refusal(DISK, _DISK_TEXT)

    # -- what an operator sees --------------------------------------------------------------------------------

    def refused_count(self) -> int:
        return sum(self.refused.values())
