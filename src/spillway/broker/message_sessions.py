"""Message sessions of an entity that requires them: one holder at a time, in order, with a state.

A session that somebody holds is a lane with one receiver. All others are only in the store, which knows which of them
have messages; a receiver that wants "the next" one is given the one that has had messages for longest. Locks on the
messages of a session live and die with the session's.

A receiver that deletes what it gets has no lock to lose on any message: when its session's lock runs out it stays until
somebody else wants the session.

The states of a session, and where it is then:

    free ──accepted by name, found by a look, or a message comes while somebody waits──▶ held
    (in the store)                                                                     (in `locked` and in `ending`)
      ▲  ▲                                                                               │   │
      │  └── its receiver goes, or its lock ends and all locks of its messages are lost ─┘   │ its lock ends, its
      │                                                                                      │ receiver only deletes,
      └── somebody wants it ── idle (in `locked`, not in `ending`) ◀─────────────────────────┘ and nobody waits

- `ending` is a part of `locked`, and its order is the order in which locks end: all last equally long, and a renewed
  one goes to the end. So nothing is scanned, and the first of them tells when to look.
- Between the end of a session's lock and the loss of the last lock on its messages, which may take several turns, it is
  held by nobody and free for nobody (`is_over`). The store knows of no locks: given to another at once, that one would
  be handed messages which the locks of the one before still cover.

**Finding the next one.** To keep every session that has messages in memory would make memory grow with depth. To ask
the store for the first that is ready would pass over all that are held, each time: those have messages, too, and stand
in front. So a look goes on behind the last session that was given out (`found_upto`). That is right as long as
everything before it is held; hence whatever makes an earlier session free, or gives it messages with old numbers, sets
`found_upto` back (`_restart_search`). Forgotten once, such a session would not be found again before the next start.

A look takes a turn or more, and its answer is as old as the question:

- What was set back meanwhile must not be moved on by that answer: `begun_anew_count` tells, and the look is repeated.
- A session that was closed meanwhile may be in the answer although it has been emptied since: it is passed over
  (`closed_meanwhile`). If it still has messages, closing it has set `found_upto` back, and the repeated look finds it.
- A session that was accepted by name meanwhile is in `locked`, and passed over for that.
"""

from spillway.broker.commands import AttachReceiver, GetSessionState, ListSessions, Request
from spillway.broker.decided import Decided
from spillway.broker.effects import Attached, Detached, Failed, Refused, SessionNames, SessionState
from spillway.broker.lane import Lane, ReceiverLink, ReceiverLinks
from spillway.broker.loads import LoadStep
from spillway.broker.locks import LockShare
from spillway.broker.queue import Queue, QueueSessions
from spillway.broker.refill import Refill
from spillway.broker.session_refills import SessionRefills
from spillway.broker.window import ResidentBudget
from spillway.model import limits
from spillway.model.errors import BrokerError, InternalError, OperationTimeout, SessionCannotBeLocked, SessionLockLost
from spillway.model.ledger import EMPTY_RECEIVE, SESSION
from spillway.model.message import DEFERRED, NEVER, StoredMessage
from spillway.model.records import LoadSession, LoadSessionNames, LoadSessions, Query, Rows, SessionRow


class MessageSession(Lane):
    """A session that somebody holds. Its state is not here: it may have 256 KB, and a client may hold thousands."""

    def __init__(self, budget: ResidentBudget, session_id: str, locked_until_ms: int, share: LockShare) -> None:
        super().__init__(budget, session_id, share)
        self.locked_until_ms = locked_until_ms


class WaitingReceiver:
    """A receiver that waits for the next session."""

    def __init__(self, attach: AttachReceiver, until_ms: int) -> None:
        self.attach = attach
        self.until_ms = until_ms


class MessageSessions(QueueSessions):
    def __init__(self, queue: Queue, budget: ResidentBudget, links: ReceiverLinks) -> None:
        super().__init__()
        self.queue = queue
        self.budget = budget
        self.links = links  # of the namespace
        self.waiting: dict[int, WaitingReceiver] = {}  # by link number, the first to come in front
        # None of them is given up before this; 0: nobody waits. A bound, and not the least of their times: who leaves
        # before does not change it, and at worst a turn finds nothing to do.
        self.waiting_until_ms = 0
        self.refills = SessionRefills(queue)
        self.is_searching = False
        # Every session that became ready up to this was given to somebody: no need to look at those again and again.
        self.found_upto = 0
        self.begun_anew_count = 0  # how often it was set back
        self.closed_meanwhile: set[str] = set()  # while a look was under way, whose answer may be out of date for them

    # -- taking and giving up ---------------------------------------------------------------------------------

    def accept(self, attach: AttachReceiver, decided: Decided) -> None:
        """The named session at once or not at all; the next one when there is one."""
        wish = attach.session
        assert wish is not None, "a receiver of sessions says which one it wants"
        if wish.session_id is not None:
            self._revoke_if_idle(wish.session_id, decided)
            if wish.session_id in self.locked:
                error = SessionCannotBeLocked(
                    f"The session '{wish.session_id}' of '{self.queue.path}' is held by another receiver."
                )
                decided.emit(Refused(attach.link_id, error))
            else:
                self._lock(wish.session_id, attach, decided)
            return
        until_ms = decided.now_ms + wish.timeout_ms
        self.waiting[attach.link_id] = WaitingReceiver(attach, until_ms)
        if self.waiting_until_ms == 0 or until_ms < self.waiting_until_ms:
            self.waiting_until_ms = until_ms
        self._find_next(decided)

    def _first_waiting(self) -> AttachReceiver:
        for link_id, waiting in self.waiting.items():
            del self.waiting[link_id]
            return waiting.attach
        raise AssertionError("nobody waits")

    def _lock(self, session_id: str, attach: AttachReceiver, decided: Decided) -> None:
        assert session_id not in self.locked, "a session has one holder"
        queue = self.queue
        until_ms = decided.now_ms + queue.settings.lock_duration_ms
        session = MessageSession(self.budget, session_id, until_ms, queue.locked)
        # Also if the message that made it ready is at hand: whether others stand before it only the store knows.
        session.window.begin_cold(queue.counters.last_sequence_number)
        session.refill_step = Refill(queue, session)
        link = ReceiverLink(attach.link_id, attach.deletes, session)
        session.receivers.add(link)
        self.locked[session_id] = session
        self.ending[session_id] = session
        self.links.add(link)
        queue.metered(decided).count(SESSION)
        decided.emit(Attached(attach.link_id, session_id, session.locked_until_ms))

    def _revoke_if_idle(self, session_id: str, decided: Decided) -> None:
        """A session whose lock ran out stays with its receiver only as long as nobody else wants it."""
        lane = self.locked.get(session_id)
        if lane is not None and session_id not in self.ending:
            self._revoke(lane, False, decided)

    def find(self, session_id: str) -> MessageSession | None:
        session = self.locked.get(session_id)
        assert session is None or isinstance(session, MessageSession)
        return session

    def release(self, lane: Lane, decided: Decided) -> None:
        """A session's receiver has gone: others may have it at once, what it held returns uncounted (contract H13)."""
        has_returned = self._release_all(lane)
        self._close(lane, has_returned, decided)

    def _release_all(self, lane: Lane) -> bool:
        """Locks of a session end uncounted. Nothing returns to its window, which goes too: whether something could."""
        has_returned = False
        for lock in lane.locks.pop_all():
            if lock.state != DEFERRED:
                has_returned = True
                if lock.expires_ms != NEVER:
                    self.queue.note_expiry(lock.expires_ms)
        return has_returned

    def unregister_waiting(self, link_id: int) -> bool:
        """A receiver has gone before it got a session; whether it waited for one."""
        return self.waiting.pop(link_id, None) is not None

    def _close(self, lane: Lane, has_returned: bool, decided: Decided) -> None:
        assert lane.session_id is not None, "only sessions are given up"
        lane.is_closed = True
        if has_returned or lane.window.may_have_more():
            self._restart_search()  # it is to be found again
        if self.is_searching:
            self.closed_meanwhile.add(lane.session_id)
        lane.window.clear()
        del self.locked[lane.session_id]
        self.ending.pop(lane.session_id, None)
        self.dirty.pop(lane.session_id, None)
        if self.waiting:
            self._find_next(decided)

    # -- messages -----------------------------------------------------------------------------------------------

    def enqueue(self, stored: StoredMessage, decided: Decided) -> None:
        session_id = stored.session_id
        assert session_id is not None, "a message without a session id was refused"
        if self.waiting:
            self._revoke_if_idle(session_id, decided)
        lane = self.locked.get(session_id)
        if lane is not None:
            lane.window.append(stored)
            self.queue.mark_lane_ready(lane, decided)
        elif self.waiting:
            self._lock(session_id, self._first_waiting(), decided)

    def reappear(self, stored: StoredMessage, decided: Decided) -> None:
        session_id = stored.session_id
        assert session_id is not None, "a message without a session id was refused"
        lane = self.locked.get(session_id)
        if lane is not None:
            lane.window.insert(stored)
            self.queue.mark_lane_ready(lane, decided)
        elif self.waiting:
            self._lock(session_id, self._first_waiting(), decided)
        else:
            self._restart_search()  # its number is an old one

    def refill(self, lane: Lane, decided: Decided) -> None:
        refill = lane.refill_step
        assert isinstance(refill, Refill), "a session has its own"
        self.refills.add(refill, decided)

    def serve(self, decided: Decided) -> None:
        dirty = self.dirty
        self.dirty = {}
        for lane in dirty.values():
            if not lane.is_closed and not self.is_over(lane, decided.now_ms):
                self.queue.serve_lane(lane, decided)

    # -- looking for the next -------------------------------------------------------------------------------------

    def _find_next(self, decided: Decided) -> None:
        if not self.is_searching:
            self.is_searching = True
            self.queue.loads.add(FindSessions(self), decided)

    def _restart_search(self) -> None:
        self.found_upto = 0
        self.begun_anew_count += 1

    def found(self, sessions: list[SessionRow], is_passed: bool, decided: Decided) -> bool:
        """Give them to those who wait. Whether to look on: there are more, or (`is_passed`) the look began anew."""
        for row in sessions:
            if not self.waiting:
                break  # those behind it are still free: `found_upto` stays before them
            if not is_passed:
                self.found_upto = row.ready_since
            if row.session_id in self.closed_meanwhile:
                continue
            self._revoke_if_idle(row.session_id, decided)
            if row.session_id not in self.locked:
                self._lock(row.session_id, self._first_waiting(), decided)
        self.closed_meanwhile.clear()
        self.is_searching = len(self.waiting) > 0 and (is_passed or len(sessions) == limits.SESSIONS_PER_LOAD)
        return self.is_searching

    # -- time -----------------------------------------------------------------------------------------------------

    def locked_until_ms(self, lane: Lane) -> int:
        assert isinstance(lane, MessageSession)
        return lane.locked_until_ms

    def is_over(self, lane: Lane, now_ms: int) -> bool:
        return lane.session_id in self.ending and self.locked_until_ms(lane) <= now_ms

    def renew(self, session: MessageSession, now_ms: int) -> int:
        """Takes it to the end of the order: all of them last equally long."""
        assert session.session_id is not None
        session.locked_until_ms = now_ms + self.queue.settings.lock_duration_ms
        self.ending.pop(session.session_id, None)
        self.ending[session.session_id] = session
        return session.locked_until_ms

    def on_time(self, decided: Decided) -> None:
        ended: list[Lane] = []
        for lane in self.ending.values():
            if self.locked_until_ms(lane) > decided.now_ms or len(ended) * limits.LOCK_STEPS > decided.chores_left:
                break
            ended.append(lane)
        for lane in ended:
            assert lane.session_id is not None, "a session has its id"
            if not self.waiting and not lane.locks.by_token and lane.receivers.only_delete():
                del self.ending[lane.session_id]
                self._restart_search()  # whoever wants a session may have this one
                continue
            if decided.chores_left <= 0:
                break
            self.queue.expire_locks(lane.locks.pop_some(decided.chores_left // limits.LOCK_STEPS + 1), decided)
            if not lane.locks.by_token:  # else it is nobody's until all of them are lost
                decided.chores_left -= limits.LOCK_STEPS
                self._revoke(lane, False, decided)
        if 0 < self.waiting_until_ms <= decided.now_ms:
            self._time_out_waiting(decided)

    def _time_out_waiting(self, decided: Decided) -> None:
        error = OperationTimeout(f"No session of '{self.queue.path}' with messages was free in time.")
        self.waiting_until_ms = 0
        for link_id, waiting in list(self.waiting.items()):
            if waiting.until_ms <= decided.now_ms:
                del self.waiting[link_id]
                self.queue.metered(decided).count(EMPTY_RECEIVE)
                decided.emit(Refused(link_id, error))
            elif self.waiting_until_ms == 0 or waiting.until_ms < self.waiting_until_ms:
                self.waiting_until_ms = waiting.until_ms

    def _revoke(self, lane: Lane, has_returned: bool, decided: Decided) -> None:
        """The receiver hears that its session is gone."""
        error = session_lock_lost(self.queue, lane.session_id or "")
        for link in lane.receivers.links:
            self.links.remove(link.link_id)
            self.queue.end_call(link, decided)
            decided.emit(Detached(link.link_id, error))
        self._close(lane, has_returned, decided)

    def revoke(self, lane: Lane, decided: Decided) -> None:
        has_returned = self._release_all(lane)
        self._revoke(lane, has_returned, decided)

    def revoke_all(self, decided: Decided) -> None:
        for lane in list(self.locked.values()):
            self.revoke(lane, decided)

    def unregister_receivers(self) -> list[int]:
        waiting = list(self.waiting)
        self.waiting.clear()
        for lane in self.locked.values():
            lane.receivers.links.clear()
        return waiting

    def due_ms(self) -> int:
        due = 0
        for lane in self.ending.values():
            due = self.locked_until_ms(lane)
            break
        if not self.waiting:
            self.waiting_until_ms = 0
        if self.waiting_until_ms != 0 and (due == 0 or self.waiting_until_ms < due):
            due = self.waiting_until_ms
        return due


class FindSessions(LoadStep):
    """Looks in the store for sessions with messages, a page at a time, until all who wait have one or there is none."""

    def __init__(self, sessions: MessageSessions) -> None:
        self.sessions = sessions
        self.begun_anew_count = 0

    def query(self, decided: Decided) -> Query | None:
        sessions = self.sessions
        if not sessions.waiting:
            sessions.is_searching = False
            return None
        self.begun_anew_count = sessions.begun_anew_count
        sessions.closed_meanwhile.clear()
        return LoadSessions(sessions.queue.entity_id, limits.SESSIONS_PER_LOAD, sessions.found_upto)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        is_passed = self.begun_anew_count != self.sessions.begun_anew_count
        return self.sessions.found(rows.sessions, is_passed, decided)


class ReadStateStep(LoadStep):
    """Reads the state of a session that somebody holds, as it was when it was asked for."""

    def __init__(self, queue: Queue, request: GetSessionState) -> None:
        self.queue = queue
        self.request = request

    def query(self, decided: Decided) -> Query | None:
        return LoadSession(self.queue.entity_id, self.request.session_id)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        if rows.sessions and not rows.sessions[0].is_state_known:
            self.abort(state_damaged(self.queue, self.request.session_id), decided)
            return False
        emit_state(self.queue, self.request, rows.sessions[0].state if rows.sessions else None, decided)
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))


class ListSessionsStep(LoadStep):
    def __init__(self, queue: Queue, request: ListSessions) -> None:
        self.queue = queue
        self.request = request

    def query(self, decided: Decided) -> Query | None:
        request = self.request
        return LoadSessionNames(self.queue.entity_id, request.since_ms, request.skip, request.top)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        self.queue.metered(decided).count(SESSION)
        decided.emit(SessionNames(self.request.request_id, [row.session_id for row in rows.sessions]))
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))


def emit_state(queue: Queue, request: Request, state: bytes | None, decided: Decided) -> None:
    queue.metered(decided).count(SESSION, 0 if state is None else len(state))
    decided.emit(SessionState(request.request_id, state))


def state_damaged(queue: Queue, session_id: str) -> BrokerError:
    return InternalError(
        f"The state of the session '{session_id}' of '{queue.path}' is damaged in the store and set apart. "
        "Its messages are not: set the state anew, or clear it."
    )


def session_lock_lost(queue: Queue, session_id: str) -> BrokerError:
    return SessionLockLost(
        f"The session lock has expired on the session '{session_id}' of '{queue.path}'. Accept the session again."
    )
