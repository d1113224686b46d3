"""Backlog queues: what they are called, how they are made, and which of them are in rotation."""

import random
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus.management import QueueProperties

from spillway.model.backlogs import backlog_path as backlog_path
from spillway.model.backlogs import namespace_name as namespace_name

SIZE_MB: Final = 5120  # contract C3
DELIVERIES_MAX: Final = 2_147_483_647  # C4
LOCK: Final = "PT1M"  # C7
FOR_EVER: Final = "P10675199DT2H48M5.4775807S"  # TimeSpan.MaxValue: C5, C6


def backlog_properties() -> dict[str, Any]:
    """What a backlog queue is made with (C3 to C9); everything else is the service's default (C10)."""
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
    """How a queue that was there already differs from what we would make: the owner's choice, worth a line (C14)."""
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


class BacklogUnavailable(Exception):
    """No backlog queue takes messages. Never a false success: whoever sends hears it."""

    def __init__(self, queues: list[BacklogQueue]) -> None:
        each = "; ".join(f"{queue.path}: {queue.cause}" for queue in queues) or "there are none"
        super().__init__(f"No backlog queue takes messages. {each}")
        self.causes = {queue.path: queue.cause for queue in queues}


class Rotation:
    """The backlog queues of a factory. One that fails is out for every sender, for `cool_down_s` (D11, D12)."""

    def __init__(self, paths: list[str], cool_down_s: float, chance: random.Random) -> None:
        self.queues = [BacklogQueue(path) for path in paths]
        self.cool_down_s = cool_down_s
        self.chance = chance

    def choose(self, now_s: float, excluding: set[str]) -> BacklogQueue:
        """Any one that is in rotation (D9), or `BacklogUnavailable` with the cause of each."""
        usable = [queue for queue in self.queues if queue.out_until_s <= now_s and queue.path not in excluding]
        if not usable:
            raise BacklogUnavailable(self.queues)
        return self.chance.choice(usable)

    def is_in(self, queue: BacklogQueue, now_s: float) -> bool:
        return queue.out_until_s <= now_s

    def take_out(self, queue: BacklogQueue, cause: BaseException, now_s: float) -> bool:
        """Whether it was in rotation until now."""
        was_in = queue.out_until_s <= now_s
        queue.out_until_s = now_s + self.cool_down_s
        queue.cause = cause
        return was_in

    def put_back(self, queue: BacklogQueue) -> bool:
        """It took a message. Whether it had been out before."""
        had_failed = queue.cause is not None
        queue.out_until_s = 0.0
        queue.cause = None
        return had_failed
