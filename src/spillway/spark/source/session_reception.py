"""Receiving message sessions: many at a time on one loop, each over a link of its own that also holds its lock.

One worker has a session from its first message to its last, so that their order is kept. A session's lock goes with its
link: in peek-lock mode links stay open until what came over them is settled (`session_holder`), and how many a batch
may have is bounded. A service allows 5,000 receivers of an entity, and the next batch begins while the last lets go.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from spillway.client import (
    ClientError,
    Connection,
    LinkClosed,
    OperationTimeout,
    ReceivedMessage,
    Receiver,
    SessionCannotBeLocked,
)
from spillway.model.texts import count_text
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.operations import Operations
from spillway.spark.platform.patience import Patience, is_transient, patiently
from spillway.spark.platform.session import say_on_stderr
from spillway.spark.source.declaration import PEEK_LOCK
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer, lock_renewer_of
from spillway.spark.source.options import ReadOptions
from spillway.spark.source.session_holder import HeldSession, Holding
from spillway.spark.source.side_by_side import SideBySide

# That a task receives. What waits for the service's disk goes there together: with 32 at a time, sessions of two
# messages took broker and client twice the work of 128; with 256 they take the same.
SESSIONS_AT_A_TIME: Final = 128
SESSIONS_HELD_MAX: Final = 2_000  # by a batch, of an entity
SESSION_WAIT_S: Final = 2.0  # for a session to be accepted
FIRST_RECEIVE: Final = 16  # most sessions have few messages; then four times as many
RECEIVE_MAX: Final = 2_000
RECEIVE_BYTES: Final = 1024 * 1024  # of one session: others are received at the same time
# After a first message: an entity that has more hands it out at once.
MORE_WAIT_S: Final = 0.2


class SessionsWanted:
    """What a task is to receive: up to `count_max` messages (0: all), of up to `sessions_max` of these sessions."""

    def __init__(
        self, entity: str, names: Sequence[str], count_max: int, sessions_max: int, is_of_stream: bool = False
    ) -> None:
        self.entity = entity
        self.names = names
        self.count_max = count_max
        self.sessions_max = sessions_max
        self.is_of_stream = is_of_stream  # another batch follows, and takes what this one leaves
        self.bytes_max: int | None = None  # then it is enough, but for what is under way


class AcceptedSession:
    """A session that is being received."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        self.name = name
        self.receiver = receiver
        self.first: ReceivedMessage | None = None
        self.last: ReceivedMessage | None = None  # so far
        self.count = 0
        self.ask = FIRST_RECEIVE

    def took(self, messages: list[ReceivedMessage]) -> None:
        self.first = self.first or messages[0]
        self.last = messages[-1]
        self.count += len(messages)
        size = max(1, sum(len(message.raw) for message in messages) // len(messages))
        self.ask = max(1, min(RECEIVE_MAX, self.ask * 4, RECEIVE_BYTES // size))

    def discard(self) -> None:
        """Nobody has seen a message of it."""
        self.first = self.last = None

    def held(self) -> HeldSession | None:
        """What there is to hold; None if nothing came. Only here messages are read, which takes its time."""
        if self.first is None or self.last is None:
            return None
        numbers = (self.first.sequence_number or 0, self.last.sequence_number or 0)
        return HeldSession(self.receiver, numbers, self.count, self.last.locked_until_ms or 0)


class SessionReception:
    """One task's receiving. Everything happens on the pool's loop."""

    def __init__(
        self,
        pool: ConnectionPool,
        options: ReadOptions,
        wanted: SessionsWanted,
        batch: LockBatch | None,
        operations: Operations,
        renewer: LockRenewer | None = None,
    ) -> None:
        self._pool = pool
        self._renewer = renewer
        self._options = options
        self._wanted = wanted
        self._waiting = deque(wanted.names)
        self._left = wanted.count_max or None
        self._bytes_left = wanted.bytes_max
        self._operations = operations
        self._patience = Patience(options.access, wanted.entity)
        self._is_locking = options.mode == PEEK_LOCK
        self._batch = batch
        self._holding: Holding | None = None
        self._connection: Connection | None = None
        self._side = self._workers()
        self._interrupted: list[AcceptedSession] = []  # when another worker had an error: they are gone on with
        self._under_way = 0
        self._asked_for = 0  # messages, of sessions that have not answered yet
        self._answer = asyncio.Event()
        self._waits_s = options.max_wait_s
        self._has_some = False
        self._held_elsewhere: list[str] = []

    def _workers(self) -> SideBySide:
        # A batch of a stream is wanted whole. Of a batch read it is not known: the query may have a limit. Who receives
        # and deletes has said with maxMessages how many may go.
        is_bounded = not self._is_locking and self._options.max_messages
        is_growing = not (self._wanted.is_of_stream or is_bounded)
        return SideBySide(self._work, min(SESSIONS_AT_A_TIME, len(self._wanted.names)), is_growing)

    async def next(self) -> list[ReceivedMessage]:
        """The next messages; none when there are no more, or enough."""
        if self._is_locking and self._holding is None:
            place = (self._options.access, self._wanted.entity)
            renewer = self._renewer or lock_renewer_of(self._pool)
            self._holding = renewer.holding(*place, self._options.renew_s, self._batch)
        messages = await patiently(self._patience, self._try_next)
        self._has_some = self._has_some or bool(messages)
        return messages

    def abandon(self) -> None:
        """Nobody waits for the next messages: an outage is not waited for either."""
        self._patience.abandon()

    def said(self) -> str:
        """What a reader of the log has to know; empty if there is nothing."""
        entity, elsewhere = self._wanted.entity, self._held_elsewhere
        if elsewhere:
            return (
                f"{count_text(len(elsewhere), 'session')} of '{entity}' passed over, among them '{elsewhere[0]}': "
                "another receiver holds them"
            )
        if self._waiting and not self._has_room and not self._wanted.is_of_stream:
            return (
                f"{count_text(len(self._waiting), 'session')} of '{entity}' left: a read that locks holds at most "
                f"{SESSIONS_HELD_MAX:,} sessions at a time. Settle, and read again"
            )
        return ""

    async def _try_next(self) -> list[ReceivedMessage]:
        try:
            return await self._side.next()
        except ClientError as error:
            await self._side.stop()
            self._side = self._workers()
            # The locks of what it has run out while it waits, so that a batch of a stream ends with what it has.
            if self._has_some and self._wanted.is_of_stream and is_transient(error):
                return []
            raise

    # -- one of the workers ----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (self._interrupted or self._waiting) and self._has_room and not self._is_enough:
            if self._interrupted:
                await self._receive(self._interrupted.pop())
                continue
            self._under_way += 1
            try:
                await self._receive_next()
            finally:
                self._under_way -= 1

    async def _receive_next(self) -> None:
        """The next session that waits. Its first messages are asked for together with it."""
        if not (count := await self._reserve(FIRST_RECEIVE)):
            return
        if not self._waiting:
            self._answered(count, 0)
            return
        name = self._waiting.popleft()
        try:
            await self._operations.begin()
            if self._connection is None or self._connection.error is not None:
                self._connection = await self._pool.connection(self._options.access)
            receiver = await self._connection.ask_session(
                self._wanted.entity, name, count, mode=self._options.mode, max_wait=SESSION_WAIT_S
            )
        except BaseException:
            self._waiting.appendleft(name)
            self._answered(count, 0)
            raise
        await self._receive(AcceptedSession(name, receiver), count)

    @property
    def _is_enough(self) -> bool:
        return self._left == 0 or (self._bytes_left is not None and self._bytes_left <= 0)

    @property
    def _has_room(self) -> bool:
        """Whether another session may be held."""
        held = self._holding.count if self._holding is not None else 0
        return not self._is_locking or held + self._under_way < self._wanted.sessions_max

    async def _receive(self, session: AcceptedSession, count: int = 0) -> None:
        """Until it has no more, or the task has enough. `count` messages are asked for already."""
        try:
            is_first = count > 0
            while (count := count or await self._reserve(session.ask)) and await self._receive_some(
                session, count, is_first
            ):
                count, is_first = 0, False
        except BaseException as error:
            if not session.receiver.was_attached and isinstance(error, (SessionCannotBeLocked, OperationTimeout)):
                self._held_elsewhere.append(session.name)  # the messages are for whoever holds it
                return
            if isinstance(error, ClientError) or session.receiver.error is not None:
                self._lose(session)
            else:
                self._interrupted.append(session)
            raise
        await self._release(session)

    async def _receive_some(self, session: AcceptedSession, count: int, is_begun: bool) -> bool:
        """Whether there may be more. One that `is_begun` was counted as an operation when it was asked for."""
        messages: list[ReceivedMessage] = []
        wait_s = self._waits_s if session.first is None else 0.0  # asked once more, it says whether there are more
        try:
            if not is_begun:
                await self._operations.begin()
            messages = await session.receiver.receive(count, wait_s)
        finally:
            self._answered(count, len(messages))
        self._operations.add(max(0, len(messages) - 1))  # a message each, or one for none
        if not messages:
            return False
        is_all = len(messages) < count and session.receiver.is_drained
        self._waits_s = min(MORE_WAIT_S, self._options.max_wait_s)
        if self._bytes_left is not None:
            self._bytes_left -= sum(len(message.raw) for message in messages)
        try:
            await self._side.put(messages)
        except BaseException:
            if self._is_locking:
                self._come_again(len(messages))
                for message in messages:
                    session.receiver.release(message)
            else:
                self._side.put_now(messages)  # they are deleted
            raise
        session.took(messages)
        # While there was no room for them the link may have gone, and the locks with it: asking once more says so.
        return not is_all or (self._is_locking and session.receiver.error is not None)

    async def _reserve(self, wanted: int) -> int:
        """How many to ask for. They are not for others until they turn out not to be there: that is waited for."""
        while self._left == 0 and self._asked_for:
            self._answer.clear()
            await self._answer.wait()
        if self._is_enough:
            return 0
        count = self._operations.most_at_a_time(wanted)
        if self._left is not None:
            sharers = max(1, min(SESSIONS_AT_A_TIME, len(self._waiting) + self._under_way))
            count = min(count, self._left, max(1, self._left // sharers))
            self._left -= count
            self._asked_for += count
        return count

    def _answered(self, asked_for: int, came: int) -> None:
        if self._left is not None:
            self._left += asked_for - came
            self._asked_for -= asked_for
            self._answer.set()

    def _come_again(self, count: int) -> None:
        """So many that were received are not handed out, and can be received once more."""
        if self._left is not None:
            self._left += count

    def _lose(self, session: AcceptedSession) -> None:
        """Its link has gone, and the locks with it: it is received anew, and what nobody has seen of it dropped."""
        self._side.put_now(session.receiver.rescue())
        session.receiver.end(LinkClosed("given up after an error"))
        names = {session.name}
        if self._is_locking:
            dropped = self._side.discard(_is_lost)
            self._come_again(len(dropped))
            names |= {_receiver_of(message).session_id or "" for message in dropped}
        self._waiting.extendleft(sorted(names.difference(self._waiting)))

    async def _release(self, session: AcceptedSession) -> None:
        """Of a session with locked messages not before they are settled."""
        held = None if self._holding is None else session.held()
        if held is None or self._holding is None:
            self._side.put_now(await session.receiver.close())
        else:
            await self._holding.add(held)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def requeue(self, unseen: list[ReceivedMessage]) -> None:
        """Nobody has seen these: they can be received by others at once."""
        await self._side.stop()
        released: Counter[Receiver] = Counter()
        for message in (*unseen, *self._side.drain()):
            receiver = _receiver_of(message)
            if receiver.error is None and not message.is_settled:
                receiver.release(message)
                released[receiver] += 1
        for session in self._interrupted:
            if released[session.receiver] >= session.count:
                session.discard()
        if self._holding is not None:
            await self._holding.close_unseen(released)

    async def end(self) -> None:
        """No more is received. Sessions with messages that somebody may settle are held on."""
        await self._side.stop()
        interrupted, self._interrupted = self._interrupted, []
        let_go = await asyncio.gather(*[self._release(session) for session in interrupted], return_exceptions=True)
        for error in let_go:
            if isinstance(error, BaseException) and not isinstance(error, ClientError):  # else it is over anyway
                raise error
        if self._holding is not None:
            self._holding.complete()


def _receiver_of(message: ReceivedMessage) -> Receiver:
    receiver = None if message.link is None else message.link.user
    assert isinstance(receiver, Receiver), "it came over a link"
    return receiver


def _is_lost(message: ReceivedMessage) -> bool:
    return _receiver_of(message).error is not None


_said: dict[str, str] = {}  # of each entity what was said last


def say_passed_over(entity: str, text: str) -> None:
    """Once, and again when it has changed: a stream that goes on meets the same sessions in every batch."""
    if text and _said.get(entity) != text:
        say_on_stderr(text)
    _said[entity] = text
