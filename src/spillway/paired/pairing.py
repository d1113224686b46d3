"""Two namespaces, paired: which entities of the primary are away, the pings that watch them, the backlog beside it.

The deciding is done by the machine of `failover`; here are the tasks and timers around it.
"""

import asyncio
import uuid
from typing import TYPE_CHECKING, Final

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from spillway.paired import events
from spillway.paired.backlog import BacklogQueue, Rotation
from spillway.paired.ending import end
from spillway.paired.failover import Change, Machine, State
from spillway.paired.ledger import PING
from spillway.paired.outlet import Outlet, Parcel

if TYPE_CHECKING:
    from spillway.paired.factory import MessagingFactory
    from spillway.paired.options import SendAvailabilityPairedNamespaceOptions

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"  # contract F1
PING_TTL_MS: Final = 1_000
PING_TIMEOUT_MIN_S: Final = 5.0
_EVENT_OF: Final = {
    State.SUSPECT: events.SUSPECTED,
    State.FAILED_OVER: events.FAILED_OVER,
    State.FAILED: events.ENTITY_FAILED,
    State.HEALTHY: events.RECOVERED,
}


def make_ping() -> AmqpAnnotatedMessage:
    """Empty, gone in a second. With a session id, or an entity that requires sessions would refuse it."""
    ping = AmqpAnnotatedMessage(value_body=None)
    ping.header = AmqpMessageHeader(time_to_live=PING_TTL_MS)
    ping.properties = AmqpMessageProperties(
        content_type=PING_CONTENT_TYPE, message_id=str(uuid.uuid4()), group_id=str(uuid.uuid4())
    )
    return ping


class Watch:
    """One entity of the primary, shared by all senders of the factory."""

    def __init__(self, pairing: "Pairing", path: str) -> None:
        self.pairing = pairing
        self.machine = Machine(path, pairing.options.failover_interval.total_seconds())
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._outlet: Outlet | None = None  # for pings alone: a send that waits for an answer must not keep one back

    # -- what is told to it ---------------------------------------------------------------------------------------

    def on_success(self) -> None:
        if self.machine.state is not State.HEALTHY:
            self._take(self.machine.on_success(self._loop.time()))

    def on_failure(self, error: BaseException, epoch: int) -> None:
        self._take(self.machine.on_failure(error, epoch, self._loop.time()))

    def mark_healthy(self) -> None:
        self._take(self.machine.mark_healthy(self._loop.time()))

    async def changed(self, until_s: float) -> None:
        """Wait until the state is another one, or that time has come."""
        event = self._changed
        try:
            async with asyncio.timeout_at(until_s):
                await event.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Who waits for a change looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pinging is not None:
            await end(self._pinging)
        if self._outlet is not None:
            await self._outlet.close()

    # -- what follows from it -------------------------------------------------------------------------------------

    def _take(self, change: Change | None) -> None:
        if change is None or self.pairing.is_closed:  # what is closed begins nothing
            return
        self.pairing.events.tell(_EVENT_OF[change.after], change.path, error=change.cause, before=change.before.value)
        self.wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.machine.fail_over_at_s is not None:
            self._timer = self._loop.call_at(self.machine.fail_over_at_s, self._on_time)
        if self.machine.is_away and self._pinging is None:
            self._pinging = self._loop.create_task(self._ping_until_back())

    def _on_time(self) -> None:
        self._timer = None
        self._take(self.machine.on_time(max(self._loop.time(), self.machine.fail_over_at_s or 0.0)))

    async def _ping_until_back(self) -> None:
        """At once, then every interval, until one gets through (contract D10, F3, F4, F6)."""
        options = self.pairing.options
        try:
            while self.machine.is_away and not self.pairing.is_closed:
                await self._ping()
                if self.machine.is_away:
                    await self.changed(self._loop.time() + options.ping_primary_interval.total_seconds())
        finally:
            self._pinging = None
            if self.machine.is_away and not self.pairing.is_closed:  # it went away again in the moment it was back
                self._pinging = self._loop.create_task(self._ping_until_back())

    async def _ping(self) -> None:
        primary = self.pairing.primary
        if self._outlet is None:
            self._outlet = primary.new_outlet(self.machine.path, 1)
        interval_s = self.pairing.options.ping_primary_interval.total_seconds()
        timeout_s = min(primary.operation_timeout_s, max(PING_TIMEOUT_MIN_S, interval_s))
        try:
            await self._outlet.send(Parcel([make_ping()], False, is_keyed=False), self._loop.time() + timeout_s)
        except Exception as error:
            self.pairing.events.tell(events.PINGED, self.machine.path, error=error, answered=False)
            is_lasting = self.pairing.options.policy.is_lasting(error)
            self._take(self.machine.on_ping_failed(error, is_lasting, self._loop.time()))
        else:
            primary.ledger.count(self.machine.path, PING)
            self.pairing.events.tell(events.PINGED, self.machine.path, answered=True)
            self._take(self.machine.on_ping_answered(self._loop.time()))


class Pairing:
    """Made by `MessagingFactory.pair_namespace` when the backlog queues are there."""

    def __init__(
        self, primary: "MessagingFactory", options: "SendAvailabilityPairedNamespaceOptions", backlog_paths: list[str]
    ) -> None:
        self.primary = primary
        self.secondary = options.messaging_factory
        self.options = options
        self.events = primary.events
        self.rotation = Rotation(backlog_paths, options.backlog_cool_down.total_seconds(), options.chance)
        self.watches: dict[str, Watch] = {}
        self.is_closed = False

    def watch(self, path: str) -> Watch:
        key = path.strip("/").lower()
        watch = self.watches.get(key)
        if watch is None:
            watch = self.watches[key] = Watch(self, path)
        return watch

    def mark_path_healthy(self, path: str) -> None:
        self.watch(path).mark_healthy()

    def backlog_failed(self, queue: BacklogQueue, error: BaseException) -> None:
        """Out of rotation, for every sender of the factory (D11, D12)."""
        if self.rotation.take_out(queue, error, asyncio.get_running_loop().time()):
            self.events.tell(events.BACKLOG_QUEUE_REMOVED, queue.path, error=error)

    def backlog_took(self, queue: BacklogQueue, count: int, path: str) -> None:
        if self.rotation.put_back(queue):
            self.events.tell(events.BACKLOG_QUEUE_READMITTED, queue.path)
        self.events.tell(events.DIVERTED, path, count, queue=queue.path)

    def stop(self) -> None:
        """Nothing begins any more, and who is held hears of the end."""
        self.is_closed = True
        for watch in self.watches.values():
            watch.wake()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*(watch.close() for watch in self.watches.values()))
