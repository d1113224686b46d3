"""A pass over the dead letters of one entity: they are received under lock, and those that were chosen are acted upon.

A service hands out what comes next, not what is asked for. So whatever was not chosen is locked too, until the pass
ends, and then given back; it is neither changed nor counted as delivered. Locks are renewed meanwhile.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spillway.client import ClientError, Connection, Management, ReceivedMessage, Receiver
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.patience import Patience, pause
from spillway.spark.triage.planned import Key, Planned, dead_letters_of, key_of
from spillway.syphon.crash import COMPLETED, RECEIVED, crash_at
from spillway.syphon.lane import LOCK_S_MAX, LOCK_S_MIN, LOCK_S_USUAL, renew_locks

RECEIVE_MAX: Final = 250
CHUNK: Final = 100  # messages that are acted upon together
HELD_MAX: Final = 50_000  # messages of others that are kept locked, to see those behind them
WAIT_S: Final = 1.0
WAIT_MAX_S: Final = 15.0  # between two looks at what somebody has locked
PEEKED_AT_ONCE: Final = 500


class ChosenLetter(NamedTuple):
    """A dead letter in our lock, and what was planned for it."""

    message: ReceivedMessage
    planned: Planned


class Acted(NamedTuple):
    """What became of a chunk: those that may go from the dead letters, and why others stay."""

    done: list[ChosenLetter]
    kept: list[tuple[ChosenLetter, str]]


Act = Callable[[Sequence[ChosenLetter]], Awaitable[Acted]]


@dataclass
class Outcome:
    """What became of the dead letters of one entity."""

    entity: str
    done: list[Key] = field(default_factory=list)
    kept: dict[Key, str] = field(default_factory=dict)  # with the reason
    gone: list[Key] = field(default_factory=list)  # they were not there any more
    left: list[Key] = field(default_factory=list)  # in somebody's lock, or not reached


@dataclass(frozen=True)
class PassOptions:
    """`patience_s`: how long to wait for messages that somebody has locked, a run that was killed, for example."""

    access: Access
    patience_s: float = 65.0
    chunk: int = CHUNK
    held_max: int = HELD_MAX
    stopped: threading.Event = field(default_factory=threading.Event)


class LockedPass:
    """The chosen dead letters of one entity; begun again after an outage, until none of them is open."""

    def __init__(self, pool: ConnectionPool, options: PassOptions, entity: str, planned: Sequence[Planned], act: Act):
        self._pool = pool
        self._options = options
        self._path = dead_letters_of(entity)
        self._act = act
        self._open = {each.key: each for each in planned}
        self._count = len(self._open)
        self._held: dict[int, ReceivedMessage] = {}  # in our lock and not settled, by delivery id
        self._lock_s = LOCK_S_MIN
        self.outcome = Outcome(entity)

    async def run(self) -> Outcome:
        """`NamespaceError` where waiting does not help, or was long enough."""
        patience = Patience(self._options.access, self._path, "Listen")
        while True:
            try:
                connection = await self._pool.connection(self._options.access, "dead letters")
                await self._pass(connection, patience)
                break
            except ClientError as error:
                await pause(patience.after(error))
        found = self.outcome
        found.left = list(self._open)
        told = len(found.done) + len(found.kept) + len(found.gone) + len(found.left)
        assert told == self._count, "every dead letter that was planned has one outcome"
        return found

    async def _pass(self, connection: Connection, patience: Patience) -> None:
        receiver = await connection.receiver(self._path)
        management = connection.management(self._path, link_name=receiver.name)
        renewing = asyncio.create_task(self._renew(management))
        try:
            await self._serve(receiver, management, patience)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            for message in self._held.values():
                if not message.is_settled:
                    receiver.release(message)
            self._held.clear()
            await receiver.close()
            await management.close()

    async def _serve(self, receiver: Receiver, management: Management, patience: Patience) -> None:
        left_s, wait_s = self._options.patience_s, WAIT_S
        while self._open and not self._options.stopped.is_set() and len(self._held) < self._options.held_max:
            messages = await receiver.receive(RECEIVE_MAX, wait_s)
            patience.on_answered()
            if messages:
                left_s, wait_s = self._options.patience_s, WAIT_S
                await self._accept(receiver, messages)
                continue
            # What comes ends the wait; only looking whether it is still there is done less and less often.
            await self._discard_gone(management)
            if left_s <= 0:
                return
            wait_s = min(left_s, WAIT_MAX_S, wait_s * 2)
            left_s -= wait_s

    async def _accept(self, receiver: Receiver, messages: list[ReceivedMessage]) -> None:
        crash_at(RECEIVED)
        self._note_lock(messages[0])
        chosen: list[ChosenLetter] = []
        for message in messages:
            key = self._key(message)
            self._held[message.delivery_id] = message
            if key in self._open:
                chosen.append(ChosenLetter(message, self._open[key]))
            else:
                message.raw = b""  # it is only given back
        for at in range(0, len(chosen), self._options.chunk):
            if self._options.stopped.is_set():
                return
            await self._settle(receiver, chosen[at : at + self._options.chunk])

    async def _settle(self, receiver: Receiver, chosen: Sequence[ChosenLetter]) -> None:
        acted = await self._act(chosen)
        for each, reason in acted.kept:
            del self._open[each.planned.key]
            self.outcome.kept[each.planned.key] = reason
            each.message.raw = b""
        failed = await receiver.complete_all([each.message for each in acted.done])
        crash_at(COMPLETED)
        for each in acted.done:
            del self._held[each.message.delivery_id]
            # One whose lock was lost comes again, and is known by then.
            if each.message.delivery_id not in failed:
                del self._open[each.planned.key]
                self.outcome.done.append(each.planned.key)

    def _key(self, message: ReceivedMessage) -> Key:
        return key_of(self.outcome.entity, message.sequence_number or 0, message.enqueued_time_ms or 0)

    # -- what does not come -------------------------------------------------------------------------------------------

    async def _discard_gone(self, management: Management) -> None:
        """Nothing comes any more. What is still there is in somebody's lock; all else is somebody's already."""
        there: set[Key] = set()
        at, last = min(key.number for key in self._open), max(key.number for key in self._open)
        while at <= last:
            messages = await management.peek(at, PEEKED_AT_ONCE, omit_body=True)
            if not messages:
                break
            there.update(map(self._key, messages))
            at = (messages[-1].sequence_number or at) + 1
        for key in [key for key in self._open if key not in there]:
            del self._open[key]
            self.outcome.gone.append(key)

    # -- locks ------------------------------------------------------------------------------------------------------

    def _note_lock(self, message: ReceivedMessage) -> None:
        """How long locks are, from one that has just come; the shortest there is where clocks do not agree."""
        span_s = (message.locked_until_ms or 0) / 1000 - time.time()
        is_likely = LOCK_S_MIN / 2 <= span_s <= LOCK_S_MAX
        self._lock_s = min(LOCK_S_USUAL, span_s) if is_likely else LOCK_S_MIN

    async def _renew(self, management: Management) -> None:
        renewed_s = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._lock_s / 4))
            if time.monotonic() - renewed_s >= self._lock_s / 3:
                renewed_s = time.monotonic()
                with contextlib.suppress(ClientError):  # the next time, if there is one
                    await renew_locks(management, list(self._held.values()))
