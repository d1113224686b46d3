"""What a fault does to the operation that it hits.

The namespace asks here before it does what it was asked, if `is_on`. An answer of True means that the operation was
dealt with; False that it goes on as ever, perhaps with answers that come late.
"""

from typing import Final

from spillway.broker.commands import (
    Administer,
    Credit,
    InjectFault,
    RemoveFaults,
    RenewLocks,
    Request,
    Schedule,
    Send,
    SessionRequest,
    Settle,
    UpdateDisposition,
)
from spillway.broker.decided import Decided
from spillway.broker.directory import Directory
from spillway.broker.effects import (
    Deliver,
    Detached,
    Dropped,
    Effect,
    Failed,
    FaultsListed,
    Refused,
    Restarted,
    SendSettled,
    SettlementAnswered,
    Swallowed,
)
from spillway.broker.entity import Entity
from spillway.broker.faults import DELIVER, Faults, InjectedFault
from spillway.broker.lane import Lane, ReceiverLink
from spillway.broker.links import Links
from spillway.broker.message_sessions import session_lock_lost
from spillway.broker.queue import Queue
from spillway.broker.slow import Slow
from spillway.model.entity import entity_key
from spillway.model.errors import BrokerError, DetachForced, EntityNotFound
from spillway.model.faults import (
    ADMINISTRATION,
    ATTACH,
    DETACH,
    DROP,
    EVERYWHERE,
    LOCK_LOST,
    MANAGEMENT,
    QUOTA,
    RECEIVE,
    RESTART,
    SEND,
    SETTLE,
    TIMEOUT,
    FaultReport,
)

_RESTARTS: Final = "The broker restarts: connections are closed and locks are lost. Connect again."
_UNFIT: Final[tuple[str, ...]] = (LOCK_LOST, QUOTA)  # for requests that neither speak of a lock nor store anything
_UNFIT_FOR_LOCKS: Final[tuple[str, ...]] = (QUOTA,)
_UNFIT_FOR_STORING: Final[tuple[str, ...]] = (LOCK_LOST,)


class Faulting:
    def __init__(self, directory: Directory, links: Links) -> None:
        self.directory = directory
        self.faults: Faults = directory.faults
        self.links = links
        self.slow = Slow()
        self.is_on = False

    def _refresh(self) -> None:
        self.is_on = self.faults.are_felt() or self.slow.is_busy()

    # -- over links -------------------------------------------------------------------------------------------

    def on_send(self, entity: Entity, command: Send, decided: Decided) -> bool:
        injected = self.faults.find(entity.path, SEND)
        if injected is None or self._is_slowed(injected, command.link_id, decided):
            return False
        error = self._apply(injected, entity.path, command.link_id, decided)
        if error is not None and not command.is_settled:
            decided.emit(SendSettled(command.link_id, command.delivery_id, error))
        return True

    def on_settle(self, queue: Queue, link: ReceiverLink, command: Settle, decided: Decided) -> bool:
        injected = self.faults.find(queue.path, SETTLE)
        if injected is None or self._is_slowed(injected, command.link_id, decided):
            return False
        error = self._apply(injected, queue.path, command.link_id, decided)
        if injected.kind == LOCK_LOST and queue.sessions is not None:
            error = session_lock_lost(queue, link.lane.session_id or "")
        if error is not None and not command.is_settled:
            decided.emit(SettlementAnswered(command.link_id, command.delivery_id, command.settlement.kind, error))
        if injected.kind == LOCK_LOST:
            self._revoke_locks(queue, link.lane, [command.lock_token], decided)
        return True

    def on_credit(self, queue: Queue, link: ReceiverLink, command: Credit, decided: Decided) -> bool:
        """A receiver asks for messages. One that a fault has muted is handed none, however often it asks."""
        if link.is_muted:
            link.withheld_limit = command.limit
            link.withheld_drains = link.withheld_drains or command.drains
            return True
        if command.limit <= link.handed_count:
            return False
        injected = self.faults.find(queue.path, RECEIVE)
        if injected is None:
            return False
        if injected.kind == TIMEOUT:
            link.is_muted = True
            link.withheld_limit = command.limit
            link.withheld_drains = command.drains
            link.limit = link.handed_count
            link.drains = False
            injected.muted[link.link_id] = link
            return True
        error = self._apply(injected, queue.path, link.link_id, decided)
        if error is not None:
            self._end(link.link_id, error, decided)
        return True

    def on_attach(self, entity: Entity, link_id: int, decided: Decided) -> bool:
        injected = self.faults.find(entity.path, ATTACH)
        if injected is None or self._is_slowed(injected, link_id, decided):
            return False
        if injected.kind == DETACH:
            decided.emit(Refused(link_id, injected.error_for(entity.path)))
            return True
        error = self._apply(injected, entity.path, link_id, decided)
        if error is not None:
            decided.emit(Refused(link_id, error))
        return True

    def on_detach(self, link_id: int) -> None:
        """A link has gone: it need not be unmuted any more."""
        for injected in self.faults.by_number.values():
            injected.muted.pop(link_id, None)

    # -- requests ---------------------------------------------------------------------------------------------

    def on_request(self, entity: Entity, request: Request, decided: Decided) -> bool:
        unfit = _UNFIT
        other = ""  # what else it is, besides management
        if isinstance(request, Schedule):
            unfit, other = _UNFIT_FOR_STORING, SEND
        elif isinstance(request, UpdateDisposition):
            unfit, other = _UNFIT_FOR_LOCKS, SETTLE
        elif isinstance(request, (RenewLocks, SessionRequest)):
            unfit = _UNFIT_FOR_LOCKS
        if self._apply_to_request(MANAGEMENT, unfit, entity, request, decided):
            return True
        return other != "" and self._apply_to_request(other, unfit, entity, request, decided)

    def _apply_to_request(
        self, operation: str, unfit: tuple[str, ...], entity: Entity, request: Request, decided: Decided
    ) -> bool:
        number = request.request_id
        injected = self.faults.find(entity.path, operation, unfit)
        if injected is None or self._is_slowed(injected, number, decided):
            return False
        if injected.kind == TIMEOUT:
            decided.emit(Swallowed(number))  # or its place among the client's requests would be taken for ever
            return True
        error = self._apply(injected, entity.path, number, decided)
        if injected.kind == LOCK_LOST and isinstance(entity, Queue):
            error = self._revoke_asked(entity, request, decided) or error
        if error is not None:
            decided.emit(Failed(number, error))
        return True

    def on_administer(self, request: Administer, decided: Decided) -> bool:
        number = request.request_id
        injected = self.faults.find(request.path, ADMINISTRATION)
        if injected is None or self._is_slowed(injected, number, decided):
            return False
        if injected.kind == TIMEOUT:
            decided.emit(Swallowed(number))
            return True
        error = self._apply(injected, request.path, number, decided)
        if error is not None:
            decided.emit(Failed(number, error))
        return True

    # -- what hits -------------------------------------------------------------------------------------------

    def _is_slowed(self, injected: InjectedFault, to: int, decided: Decided) -> bool:
        if injected.delay_ms == 0:
            return False
        self.slow.delay(to, decided.now_ms + injected.delay_ms)
        return True

    def _apply(self, injected: InjectedFault, path: str, to: int, decided: Decided) -> BrokerError | None:
        """The error to refuse with; None if nothing is to be said any more."""
        if injected.kind == TIMEOUT:
            return None
        if injected.kind == DROP:
            decided.emit(Dropped(to))
            return None
        error = injected.error_for(path)
        if injected.kind == DETACH:
            self._end(to, error, decided)
            return None
        return error

    def _end(self, to: int, error: BrokerError, decided: Decided) -> None:
        self.on_detach(to)
        self.links.unlink(to, decided)
        decided.emit(Detached(to, error))

    def _revoke_locks(self, queue: Queue, lane: Lane, lock_tokens: list[bytes], decided: Decided) -> None:
        """Locks are really lost: what was locked is back in its place, uncounted (contract H16)."""
        if queue.sessions is not None:
            queue.sessions.revoke(lane, decided)
            return
        for token in lock_tokens:
            lock = lane.locks.remove(token)
            if lock is not None:
                queue.requeue(lock)
        queue.mark_lane_ready(lane, decided)

    def _revoke_asked(self, queue: Queue, request: Request, decided: Decided) -> BrokerError | None:
        """The locks that a request speaks of; an error if it was a session's."""
        tokens: list[bytes] = []
        session_id: str | None = None
        if isinstance(request, (RenewLocks, UpdateDisposition)):
            tokens = request.lock_tokens
            session_id = request.session_id
        elif isinstance(request, SessionRequest):
            session_id = request.session_id
        lane = queue.lane_of(session_id)
        if lane is not None:
            self._revoke_locks(queue, lane, tokens, decided)
        return None if queue.sessions is None else session_lock_lost(queue, session_id or "")

    # -- injecting and removing --------------------------------------------------------------------------------

    def inject(self, request: InjectFault, decided: Decided) -> BrokerError | None:
        try:
            injected = self.faults.inject(request.fault, decided.now_ms)
        except BrokerError as error:
            return error
        self.is_on = True
        if injected.kind == RESTART:
            self._restart(injected, decided)
        elif RECEIVE in injected.fault.operations:
            self._apply_to_waiting(injected, decided)
        self._refresh()
        decided.emit(FaultsListed(request.request_id, [self._report(injected)]))
        return None

    def _apply_to_waiting(self, injected: InjectedFault, decided: Decided) -> None:
        """Receivers that wait with credit have asked before; they are receiving now."""
        for link_id, queue in list(self.links.received_from.items()):
            link = self.links.receivers.by_number.get(link_id)
            if link is not None and link.limit > link.handed_count and injected.covers(entity_key(queue.path)):
                self.on_credit(queue, link, Credit(link_id, link.limit, link.drains), decided)

    def _restart(self, injected: InjectedFault, decided: Decided) -> None:
        """Connections (of a namespace) or links (of an entity) are ended, volatile locks are lost (contract H16)."""
        injected.hit += 1
        injected.tried += 1
        if injected.fault.path == EVERYWHERE:
            decided.emit(Restarted(_RESTARTS))
        else:
            for link_id, entity in [*self.links.senders.items(), *self.links.received_from.items()]:
                if injected.covers(entity_key(entity.path)):
                    self._end(link_id, DetachForced(_RESTARTS), decided)
        for queue in self.directory.queues.values():
            if queue.has_locks() and injected.covers(entity_key(queue.path)):
                queue.revoke_locks(decided)
                decided.mark_ready(queue)

    def remove(self, request: RemoveFaults, decided: Decided) -> BrokerError | None:
        numbers = [request.number] if request.number else list(self.faults.by_number)
        if request.number and request.number not in self.faults.by_number:
            return EntityNotFound(f"There is no fault {request.number}. List the faults to see their numbers.")
        reports: list[FaultReport] = []
        for injected in self.faults.remove(numbers):
            self._unmute(injected, decided)
            reports.append(self._report(injected))
        self._refresh()
        decided.emit(FaultsListed(request.request_id, reports))
        return None

    def list_all(self, request_id: int, decided: Decided) -> None:
        decided.emit(FaultsListed(request_id, [self._report(injected) for injected in self.faults.by_number.values()]))

    def _report(self, injected: InjectedFault) -> FaultReport:
        path = injected.fault.path
        is_there = path == EVERYWHERE or self.directory.find(path) is not None
        return FaultReport(
            injected.number, injected.fault, injected.state, injected.tried, injected.hit, injected.ends_ms, is_there
        )

    def _unmute(self, injected: InjectedFault, decided: Decided) -> None:
        for link_id, link in injected.muted.items():
            link.is_muted = False
            link.limit = link.withheld_limit
            link.drains = link.withheld_drains
            queue = self.links.received_from.get(link_id)
            if queue is not None:
                queue.mark_lane_ready(link.lane, decided)
        injected.muted = {}

    # -- time -------------------------------------------------------------------------------------------------

    def due_ms(self) -> int:
        """When a fault ends or something late is due; 0 if nothing is."""
        if not self.is_on:
            return 0
        end_ms = self.faults.next_end_ms
        late_ms = self.slow.due_ms()
        if end_ms == 0 or (late_ms != 0 and late_ms < end_ms):
            return late_ms
        return end_ms

    def end_due(self, decided: Decided) -> None:
        """Faults whose time is up end before anything is asked."""
        for injected in self.faults.expire(decided.now_ms):
            self._unmute(injected, decided)
        self._refresh()

    def delay_effects(self, decided: Decided) -> None:
        """Delays effects at the end of a turn: those due now go first, those that are late from now on are retained."""
        slow = self.slow
        said = slow.pop_due(decided.now_ms)
        for effect in decided.effects:
            if isinstance(effect, Deliver):
                injected = self.faults.find(effect.path, DELIVER)
                if injected is not None:
                    slow.delay(effect.to, decided.now_ms + injected.delay_ms)
            if not slow.is_late(effect, decided.now_ms):
                said.append(effect)
                continue
            early: Effect | None = slow.retain(effect)
            if early is not None:
                said.append(early)
        decided.effects = said
        self._refresh()
