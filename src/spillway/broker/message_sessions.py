"""Message sessions of an entity that requires them: one holder at a time, in order, with a state.

A session that somebody holds is a lane with one receiver. All others are only in the store, which knows which of them
have messages; a receiver that wants "the next" one is given the one that has had messages for longest. Locks on the
messages of a session live and die with the session's.
"""

from spillway.broker.commands import AttachReceiver, GetSessionState, ListSessions, Request
from spillway.broker.decided import Decided
from spillway.broker.effects import Attached, Detached, Failed, Refused, SessionNames, SessionState
from spillway.broker.lane import Lane, ReceiverLink
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue, Sessions
from spillway.broker.refill import Refill
from spillway.broker.window import ResidentBudget
from spillway.model.errors import BrokerError, OperationTimeout, SessionCannotBeLocked, SessionLockLost
from spillway.model.ledger import EMPTY_RECEIVE, SESSION
from spillway.model.message import StoredMessage
from spillway.model.records import LoadSession, LoadSessionNames, LoadSessions, Query, Rows


class MessageSession(Lane):
    def __init__(self, budget: ResidentBudget, session_id: str, locked_until_ms: int) -> None:
        super().__init__(budget, session_id)
        self.locked_until_ms = locked_until_ms
        self.is_state_known = False
        self.state: bytes | None = None


class Waiting:
    """A receiver that waits for the next session."""

    def __init__(self, attach: AttachReceiver, until_ms: int) -> None:
        self.attach = attach
        self.until_ms = until_ms


class MessageSessions(Sessions):
    def __init__(self, queue: Queue, budget: ResidentBudget, receivers: dict[int, ReceiverLink]) -> None:
        super().__init__()
        self.queue = queue
        self.budget = budget
        self.receivers = receivers  # of the namespace, by link number
        self.waiting: list[Waiting] = []
        self.is_looking = False

    # -- taking and giving up ---------------------------------------------------------------------------------

    def accept(self, attach: AttachReceiver, decided: Decided) -> None:
        """The named session at once or not at all; the next one when there is one."""
        wish = attach.session
        assert wish is not None, "a receiver of sessions says which one it wants"
        if wish.session_id is not None:
            if wish.session_id in self.locked:
                error = SessionCannotBeLocked(
                    f"The session '{wish.session_id}' of '{self.queue.path}' is held by another receiver."
                )
                decided.say(Refused(attach.link_id, error))
            else:
                self._lock(wish.session_id, attach, decided)
            return
        self.waiting.append(Waiting(attach, decided.now_ms + wish.timeout_ms))
        self._look(decided)

    def _lock(self, session_id: str, attach: AttachReceiver, decided: Decided) -> None:
        assert session_id not in self.locked, "a session has one holder"
        queue = self.queue
        session = MessageSession(self.budget, session_id, decided.now_ms + queue.settings.lock_duration_ms)
        session.window.begin_cold(queue.counters.last_sequence_number)
        session.refill_step = Refill(queue, session)
        link = ReceiverLink(attach.link_id, attach.deletes, session)
        session.receivers.add(link)
        self.locked[session_id] = session
        self.receivers[attach.link_id] = link
        queue.metered(decided).count(SESSION)
        decided.say(Attached(attach.link_id, session_id, session.locked_until_ms))

    def find(self, session_id: str) -> MessageSession | None:
        session = self.locked.get(session_id)
        assert session is None or isinstance(session, MessageSession)
        return session

    def give_up(self, lane: Lane, decided: Decided) -> None:
        """Its receiver has gone: free for others at once, what it held returns uncounted (contract H13)."""
        for lock in lane.locks.take_all():
            self.queue.give_back(lock)
        self._close(lane, decided)

    def forget_waiting(self, link_id: int) -> bool:
        """Its receiver has gone before it got one; whether there was such a one."""
        for waiting in self.waiting:
            if waiting.attach.link_id == link_id:
                self.waiting.remove(waiting)
                return True
        return False

    def _close(self, lane: Lane, decided: Decided) -> None:
        assert lane.session_id is not None, "only sessions are given up"
        lane.is_closed = True
        lane.window.clear()
        del self.locked[lane.session_id]
        self.dirty.pop(lane.session_id, None)
        if self.waiting:
            self._look(decided)

    # -- messages -----------------------------------------------------------------------------------------------

    def line_up(self, stored: StoredMessage, decided: Decided) -> None:
        session_id = stored.session_id
        assert session_id is not None, "a message without a session id was refused"
        lane = self.locked.get(session_id)
        if lane is not None:
            lane.window.append(stored)
            self.queue.touch_lane(lane, decided)
        elif self.waiting:
            self._lock(session_id, self.waiting.pop(0).attach, decided)

    def reappear(self, stored: StoredMessage, decided: Decided) -> None:
        session_id = stored.session_id
        assert session_id is not None, "a message without a session id was refused"
        lane = self.locked.get(session_id)
        if lane is not None:
            lane.window.insert(stored)
            self.queue.touch_lane(lane, decided)
        elif self.waiting:
            self._lock(session_id, self.waiting.pop(0).attach, decided)

    def serve(self, decided: Decided) -> None:
        dirty = self.dirty
        self.dirty = {}
        for lane in dirty.values():
            if not lane.is_closed:
                self.queue.serve_lane(lane, decided)

    # -- looking for the next -------------------------------------------------------------------------------------

    def _look(self, decided: Decided) -> None:
        if not self.is_looking:
            self.is_looking = True
            self.queue.loads.add(FindSessions(self), decided)

    def found(self, session_ids: list[str], decided: Decided) -> None:
        self.is_looking = False
        for session_id in session_ids:
            if not self.waiting:
                return
            if session_id not in self.locked:
                self._lock(session_id, self.waiting.pop(0).attach, decided)

    # -- time -----------------------------------------------------------------------------------------------------

    def locked_until_ms(self, lane: Lane) -> int:
        assert isinstance(lane, MessageSession)
        return lane.locked_until_ms

    def renew(self, session: MessageSession, now_ms: int) -> int:
        """Takes it to the end of the order: all of them last equally long."""
        assert session.session_id is not None
        session.locked_until_ms = now_ms + self.queue.settings.lock_duration_ms
        del self.locked[session.session_id]
        self.locked[session.session_id] = session
        return session.locked_until_ms

    def on_time(self, decided: Decided) -> None:
        ended: list[Lane] = []
        for lane in self.locked.values():
            if self.locked_until_ms(lane) > decided.now_ms:
                break
            ended.append(lane)
        for lane in ended:
            for lock in lane.locks.take_all():
                self.queue.lose_lock(lock, decided)
            self._lose(lane, decided)
        for waiting in [waiting for waiting in self.waiting if waiting.until_ms <= decided.now_ms]:
            self.waiting.remove(waiting)
            self.queue.metered(decided).count(EMPTY_RECEIVE)
            error = OperationTimeout(f"No session of '{self.queue.path}' with messages was free in time.")
            decided.say(Refused(waiting.attach.link_id, error))

    def _lose(self, lane: Lane, decided: Decided) -> None:
        """The receiver hears that its session is gone."""
        error = session_lock_lost(self.queue, lane.session_id or "")
        for link in lane.receivers.links:
            self.receivers.pop(link.link_id, None)
            self.queue.end_call(link, decided)
            decided.say(Detached(link.link_id, error))
        self._close(lane, decided)

    def drop(self, lane: Lane, decided: Decided) -> None:
        for lock in lane.locks.take_all():
            self.queue.give_back(lock)
        self._lose(lane, decided)

    def drop_all(self, decided: Decided) -> None:
        for lane in list(self.locked.values()):
            self.drop(lane, decided)

    def forget_receivers(self) -> list[int]:
        waiting = [waiting.attach.link_id for waiting in self.waiting]
        self.waiting.clear()
        for lane in self.locked.values():
            lane.receivers.links.clear()
        return waiting

    def due_ms(self) -> int:
        due = 0
        for lane in self.locked.values():
            due = self.locked_until_ms(lane)
            break
        for waiting in self.waiting:
            if due == 0 or waiting.until_ms < due:
                due = waiting.until_ms
        return due


class FindSessions(LoadStep):
    """Looks in the store for sessions with messages; enough of them that not all can be held already."""

    def __init__(self, sessions: MessageSessions) -> None:
        self.sessions = sessions

    def query(self, decided: Decided) -> Query | None:
        sessions = self.sessions
        if not sessions.waiting:
            sessions.is_looking = False
            return None
        return LoadSessions(sessions.queue.entity_id, len(sessions.locked) + len(sessions.waiting))

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        self.sessions.found([row.session_id for row in rows.sessions], decided)
        return False


class ReadStateStep(LoadStep):
    """Reads the state of a session that somebody holds, once."""

    def __init__(self, queue: Queue, session: MessageSession, request: GetSessionState) -> None:
        self.queue = queue
        self.session = session
        self.request = request

    def query(self, decided: Decided) -> Query | None:
        return LoadSession(self.queue.entity_id, self.request.session_id)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        if not self.session.is_state_known:  # else it was set while we asked
            self.session.state = rows.sessions[0].state if rows.sessions else None
            self.session.is_state_known = True
        say_state(self.queue, self.request, self.session.state, decided)
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.say(Failed(self.request.request_id, error))


class ListSessionsStep(LoadStep):
    def __init__(self, queue: Queue, request: ListSessions) -> None:
        self.queue = queue
        self.request = request

    def query(self, decided: Decided) -> Query | None:
        request = self.request
        return LoadSessionNames(self.queue.entity_id, request.since_ms, request.skip, request.top)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        self.queue.metered(decided).count(SESSION)
        decided.say(SessionNames(self.request.request_id, [row.session_id for row in rows.sessions]))
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.say(Failed(self.request.request_id, error))


def say_state(queue: Queue, request: Request, state: bytes | None, decided: Decided) -> None:
    queue.metered(decided).count(SESSION, 0 if state is None else len(state))
    decided.say(SessionState(request.request_id, state))


def session_lock_lost(queue: Queue, session_id: str) -> BrokerError:
    return SessionLockLost(
        f"The session lock has expired on the session '{session_id}' of '{queue.path}'. Accept the session again."
    )
