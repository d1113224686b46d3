"""Whether one entity of the primary takes messages, as all senders of a factory see it: its machine, timer and pings.

The deciding is done by the machine of `failover`; here are the tasks and timers around it.
"""

import asyncio
import uuid
from typing import Final

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from spillway.model.failures import Blame
from spillway.paired import events
from spillway.paired.failover import Change, Machine, State
from spillway.paired.ledger import PING
from spillway.paired.messages import Outgoing, any_without_session
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.options import SendAvailabilityPairedNamespaceOptions
from spillway.paired.pool import SenderPool, SendFailed
from spillway.paired.requests import SendRequest
from spillway.paired.shutdown import end

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


class PrimaryWatch:
    """One entity of the primary, shared by all senders of the factory."""

    def __init__(self, primary: FactoryNamespace, options: SendAvailabilityPairedNamespaceOptions, path: str) -> None:
        self.primary = primary
        self.options = options
        self.machine = Machine(path, options.failover_interval.total_seconds())
        self.session_refusal: Exception | None = None  # it has refused a message that had no session id
        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._pool: SenderPool | None = None  # for pings alone: a send that waits for an answer must not keep one back

    # -- what is told to it ---------------------------------------------------------------------------------------

    def on_success(self) -> None:
        self.follow(self.machine.on_success(self._loop.time()))

    def on_refusal(self, error: Exception, messages: list[Outgoing]) -> None:
        """A message was refused for what it is. That the entity wants sessions is worth knowing in its next outage."""
        if "session" in str(error).lower() and any_without_session(messages):
            self.session_refusal = error

    def mark_healthy(self) -> None:
        self.follow(self.machine.mark_healthy(self._loop.time()))

    async def changed(self, until_s: float) -> None:
        """Wait until the state is another one, or that time has come."""
        event = self._changed
        try:
            async with asyncio.timeout_at(until_s):
                await event.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Make everyone who waits for a change look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """Stop watching: nothing begins any more, and calls that are held hear of the end."""
        self.is_closed = True
        self.wake()

    async def close(self) -> None:
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._pinging is not None:
            await end(self._pinging)
        if self._pool is not None:
            await self._pool.close()

    # -- what follows from it -------------------------------------------------------------------------------------

    def follow(self, change: Change | None) -> None:
        """The machine has decided: listeners are told, who waits looks again, timer and pings go with the state."""
        if change is None or self.is_closed:  # what is closed begins nothing
            return
        told = self.primary.events.tell
        told(_EVENT_OF[change.after], change.path, error=change.cause, before=change.before.value)
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
        self.follow(self.machine.on_time(max(self._loop.time(), self.machine.fail_over_at_s or 0.0)))

    async def _ping_until_back(self) -> None:
        """Ping at once, then every interval, until one gets through (contract D10, F3, F4, F6). Not at once after a
        relapse: the last ping was answered, and no message was taken."""
        try:
            if self.machine.relapses:
                await self._pause()
            while self.machine.is_away and not self.is_closed:
                await self._ping()
                if self.machine.is_away:
                    await self._pause()
        finally:
            self._pinging = None
            pool, self._pool = self._pool, None
            if pool is not None:
                await pool.close()
            if self.machine.is_away and not self.is_closed and self._pinging is None:
                # It went away again in the moment it was back.
                self._pinging = self._loop.create_task(self._ping_until_back())

    async def _pause(self) -> None:
        await self.changed(self._loop.time() + self.options.ping_primary_interval.total_seconds())

    async def _ping(self) -> None:
        path, tell = self.machine.path, self.primary.events.tell
        if self._pool is None:
            self._pool = self.primary.pools.reserved(path, 1)
        interval_s = self.options.ping_primary_interval.total_seconds()
        timeout_s = min(self.primary.operation_timeout_s, max(PING_TIMEOUT_MIN_S, interval_s))
        try:
            await self._pool.send(SendRequest([make_ping()], False, is_keyed=False), self._loop.time() + timeout_s)
        except SendFailed as failed:
            is_answered = (
                failed.failure.blame is Blame.MESSAGE and failed.failure.is_certain
            )  # it judges messages again
            tell(events.PINGED, path, error=failed.error, answered=is_answered)
            if is_answered:
                self.follow(self.machine.on_ping_answered(self._loop.time()))
            else:
                self.follow(self.machine.on_ping_failed(failed.error, failed.failure.is_lasting, self._loop.time()))
        else:
            self.primary.ledger.count(path, PING)
            tell(events.PINGED, path, answered=True)
            self.follow(self.machine.on_ping_answered(self._loop.time()))
