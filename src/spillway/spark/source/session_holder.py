"""Message sessions whose messages are in the hands of rows: their links stay open until these are settled.

A session's lock goes with its link. Whether its messages are settled is asked of one session of a group at short
intervals, because rows are settled together, and of all others when that one and the last have gone, or that one a look
before; and of each before its lock is renewed. That is a request for each session.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from spillway.client import ClientError, Management, MessageNotFound, Receiver
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.patience import is_transient
from spillway.spark.source.renewal_pace import PART, RenewalPace, interval_until

# How often it is looked whether the messages of a group are settled, so that the next batch can have its sessions.
LOOK_S: Final = 2.0
REQUESTS_AT_A_TIME: Final = 16


class HeldSession:
    """A session with its link, and the numbers of the first and the last of the `count` messages that came over it."""

    def __init__(self, receiver: Receiver, numbers: tuple[int, int], count: int, locked_until_ms: int) -> None:
        self.receiver = receiver
        self.count = count
        self.name = receiver.session_id or ""
        self.first, self.last = numbers
        self.interval_s = interval_until(locked_until_ms)
        self.renewed_s = 0.0  # when; set by whoever holds it, by its clock


class Holding:
    """Sessions that one task has received, until they are settled, time is up, or they are released."""

    def __init__(
        self,
        pool: ConnectionPool,
        access: Access,
        entity: str,
        renew_s: float,
        pace: RenewalPace,
        is_orphaned: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._access = access
        self._entity = entity
        self._renew_s = renew_s
        self._pace = pace
        self._is_orphaned = is_orphaned  # nobody is left who would settle
        self._sessions: dict[str, HeldSession] = {}
        self._until_s = 0.0
        self._is_complete = False  # no more are added
        self._is_being_settled = False  # at the last look, the first session had gone and the last had not
        self.released = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._sessions)

    async def add(self, session: HeldSession) -> None:
        """Hold it from now on: for `renewSeconds`, and for as long as its lock lasts by itself."""
        if self.released.is_set():
            await session.receiver.close()
            return
        now_s = self._pace.now_s()
        session.renewed_s = now_s
        self._until_s = max(self._until_s, now_s + max(self._renew_s, session.interval_s * PART))
        self._sessions[session.name] = session

    async def close_unseen(self, unseen: Mapping[Receiver, int]) -> None:
        """Close those of which nobody has seen a message: so many over each of these were given back."""
        held = list(self._sessions.values())
        await self._close([session for session in held if unseen.get(session.receiver, 0) >= session.count])

    def complete(self) -> None:
        self._is_complete = True

    async def run(self) -> None:
        """Until there is nothing to hold; then every link is closed."""
        try:
            while self._sessions or not self._is_complete:
                interval_s = min((session.interval_s for session in self._sessions.values()), default=LOOK_S)
                if not await self._pace.wait(self.released, min(LOOK_S, interval_s)):
                    break
                if self._is_orphaned() or (self._sessions and self._pace.now_s() >= self._until_s):
                    break
                await self._check_and_renew()
        finally:
            self.released.set()
            sessions, self._sessions = list(self._sessions.values()), {}
            await _close(sessions)
            assert not self._sessions, "what comes after the end is closed, not held"

    async def _check_and_renew(self) -> None:
        lost = [session for session in self._sessions.values() if session.receiver.error is not None]
        await self._close(lost)
        if not self._sessions:
            return
        try:
            management = self._pool.management(await self._pool.connection(self._access), self._entity)
            if await self._are_settled(management):
                await self._each(management, list(self._sessions.values()), is_renewing=False)
            now_s = self._pace.now_s()
            due = [session for session in self._sessions.values() if now_s - session.renewed_s >= session.interval_s]
            await self._each(management, due, is_renewing=self._renew_s > 0)
        except (ClientError, OSError) as error:
            if isinstance(error, ClientError) and not is_transient(error):
                self.released.set()  # the entity is gone, or the right: nothing can be held

    async def _are_settled(self, management: Management) -> bool:
        """Whether it is worth asking of each. In the midst of settling it is not: soon all of them have gone."""
        sessions = list(self._sessions.values())
        is_begun = await self._is_settled(management, sessions[0])
        is_done = is_begun and (self._is_being_settled or await self._is_settled(management, sessions[-1]))
        self._is_being_settled = is_begun and not is_done
        return is_done

    async def _each(self, management: Management, sessions: list[HeldSession], is_renewing: bool) -> None:
        """Close those that are settled, and renew the others if asked to."""
        waiting = iter(sessions)

        async def work() -> None:
            for session in waiting:
                if await self._is_settled(management, session):
                    await self._close([session])
                elif is_renewing:
                    await self._renew(management, session)

        await asyncio.gather(*[work() for _ in range(min(REQUESTS_AT_A_TIME, len(sessions)))])

    async def _renew(self, management: Management, session: HeldSession) -> None:
        try:
            await management.renew_session(session.name)
        except ClientError as error:
            if not is_transient(error):
                await self._close([session])  # its lock is lost
                return
            raise
        session.renewed_s = self._pace.now_s()

    async def _is_settled(self, management: Management, session: HeldSession) -> bool:
        try:
            left = await management.peek(session.first, 1, session_id=session.name, omit_body=True)
        except MessageNotFound:
            return True
        return not left or (left[0].sequence_number or 0) > session.last

    async def _close(self, sessions: Iterable[HeldSession]) -> None:
        for session in sessions:
            self._sessions.pop(session.name, None)
            await session.receiver.close()


async def _close(sessions: list[HeldSession]) -> None:
    await asyncio.gather(*[session.receiver.close() for session in sessions], return_exceptions=True)
