"""Backlog queues: what they are called, how they are made, and which of them are in rotation."""

import random
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus.management import QueueProperties

from spillway.model.backlogs import backlog_path as backlog_path
from spillway.model.backlogs import namespace_name as namespace_name

SIZE_MB: Final = 5120  # contract C3
DELIVERIES_MAX: Final = 2_147_483_647  # contract C4
LOCK: Final = "PT1M"  # contract C7
FOR_EVER: Final = "P10675199DT2H48M5.4775807S"  # TimeSpan.MaxValue: contract C5, C6


def backlog_properties() -> dict[str, Any]:
    """What a backlog queue is made with (contract C3 to C9); all else is the service's default (contract C10)."""
    return {
        "max_size_in_megabytes": SIZE_MB,
        "max_delivery_count": DELIVERIES_MAX,
        "default_message_time_to_live": FOR_EVER,
        "auto_delete_on_idle": FOR_EVER,
        "lock_duration": LOCK,
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }


def differences(found: QueueProperties) -> list[str]:
    """How a queue that was there already differs from ours: the owner's choice, worth a line (contract C14)."""
    differing = []
    if found.max_size_in_megabytes != SIZE_MB:
        differing.append(f"max_size_in_megabytes={found.max_size_in_megabytes}")
    if found.max_delivery_count != DELIVERIES_MAX:
        differing.append(f"max_delivery_count={found.max_delivery_count}")
    if found.requires_session:
        differing.append("requires_session=True")
    if found.requires_duplicate_detection:
        differing.append("requires_duplicate_detection=True")
    if not found.dead_lettering_on_message_expiration:
        differing.append("dead_lettering_on_message_expiration=False")
    return differing


@dataclass
class BacklogQueue:
    path: str
    out_until_s: float = 0.0  # out of rotation until then
    cause: BaseException | None = None  # why it was taken out


class Rotation:
    """The backlog queues of a factory. One that fails is out for every sender, for `cool_down_s` (contract D11, D12).

    Out means tried last, not never: where none is in rotation, or those that are have just failed, the others are tried
    one by one, the one that has been out for longest first. Cooling down spares a sender the wait for a queue that is
    likely to fail; it is no reason to fail a caller who still has time.
    """

    def __init__(self, paths: list[str], cool_down_s: float, chance: random.Random) -> None:
        assert len(set(paths)) == len(paths), "a queue is in the rotation once"
        self.queues = [BacklogQueue(path) for path in paths]
        self.cool_down_s = cool_down_s
        self.chance = chance

    def choose(self, now_s: float, tried: set[str], own: BacklogQueue | None = None) -> BacklogQueue | None:
        """`own` while in rotation; else any one that is (contract D9); else the next of the others. None: all tried."""
        if own is not None and own.out_until_s <= now_s and own.path not in tried:
            return own
        untried = [queue for queue in self.queues if queue.path not in tried]
        usable = [queue for queue in untried if queue.out_until_s <= now_s]
        if usable:
            return self.chance.choice(usable)
        return min(untried, key=lambda queue: queue.out_until_s, default=None)

    def at(self, path: str) -> BacklogQueue:
        (queue,) = [queue for queue in self.queues if queue.path == path]
        return queue

    def causes(self) -> str:
        """Why each of them is out, for people; a cause that is the same for several is said once."""
        together: dict[str, list[str]] = {}
        for queue in self.queues:
            if queue.cause is not None:
                together.setdefault(str(queue.cause), []).append(queue.path)
        return "; ".join(f"{', '.join(paths)}: {cause}" for cause, paths in together.items())

    def remove(self, queue: BacklogQueue, cause: BaseException, now_s: float) -> bool:
        """Whether it was in rotation until now."""
        was_in = queue.out_until_s <= now_s
        queue.out_until_s = now_s + self.cool_down_s
        queue.cause = cause
        return was_in

    def put_back(self, queue: BacklogQueue) -> bool:
        """The queue took a message. Whether it had been out of rotation before."""
        had_failed = queue.cause is not None
        queue.out_until_s = 0.0
        queue.cause = None
        return had_failed
