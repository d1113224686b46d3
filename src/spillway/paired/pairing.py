"""Two namespaces, paired: which entities of the primary are away, and the backlog beside it."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spillway.paired import events
from spillway.paired.backlog import BacklogQueue, Rotation
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.options import SendAvailabilityPairedNamespaceOptions
from spillway.paired.watch import PrimaryWatch

if TYPE_CHECKING:  # who only sends needs none of it
    from spillway.syphon.standing import StandingSyphon


class Pairing:
    """Made by `MessagingFactory.pair_namespace` when the backlog queues are there."""

    def __init__(
        self,
        primary: FactoryNamespace,
        options: SendAvailabilityPairedNamespaceOptions,
        backlog_paths: list[str],
        missed_backlog_paths: Sequence[str] = (),
    ) -> None:
        assert backlog_paths, "without a backlog queue nothing is paired"
        assert not {*backlog_paths} & {*missed_backlog_paths}, "a queue was found or it was missed"
        self.primary = primary
        self.secondary = options.messaging_factory
        self.options = options
        self.missed_backlog_paths = list(missed_backlog_paths)  # neither found nor made: other programs may use them
        self.rotation = Rotation(backlog_paths, options.backlog_cool_down.total_seconds(), options.chance)
        self.watches: dict[str, PrimaryWatch] = {}
        self.is_closed = False

    @property
    def backlog_queue_count(self) -> int:
        return len(self.rotation.queues)

    def watch(self, path: str) -> PrimaryWatch:
        key = path.strip("/").lower()
        watch = self.watches.get(key)
        if watch is None:
            watch = self.watches[key] = PrimaryWatch(self.primary, self.options, path)
        return watch

    def mark_path_healthy(self, path: str) -> None:
        self.watch(path).mark_healthy()

    def backlog_failed(self, queue: BacklogQueue, error: BaseException) -> None:
        """Out of rotation, for every sender of the factory (contract D11, D12)."""
        if self.rotation.remove(queue, error, asyncio.get_running_loop().time()):
            self.primary.events.tell(events.BACKLOG_QUEUE_REMOVED, queue.path, error=error)

    def backlog_took(self, queue: BacklogQueue, count: int, path: str) -> None:
        if self.rotation.put_back(queue):
            self.primary.events.tell(events.BACKLOG_QUEUE_READMITTED, queue.path)
        self.primary.events.tell(events.DIVERTED, path, count, queue=queue.path)

    def stop(self) -> None:
        """Stop all watches: nothing begins any more, and calls that are held hear of the end."""
        self.is_closed = True
        for watch in self.watches.values():
            watch.stop()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*(watch.close() for watch in self.watches.values()))


class PairingSlot:
    """The pairing of a factory, if it has one, and its syphon: its senders may have been made before."""

    def __init__(self) -> None:
        self.pairing: Pairing | None = None
        self.syphon: StandingSyphon | None = None
