"""Requests: administration, faults on purpose, the operations of `$management`. Answered at once, or by a load."""

from spillway.broker.by_number import BatchDeleteStep, BrowseStep, CancelStep, ReceiveDeferredStep
from spillway.broker.commands import (
    AddRule,
    Administer,
    BatchDelete,
    CancelScheduled,
    CreateEntity,
    DeleteEntity,
    Describe,
    GetSessionState,
    InjectFault,
    ListEntities,
    ListFaults,
    ListRules,
    ListSessions,
    Meter,
    Peek,
    ReadLedger,
    ReceiveDeferred,
    RemoveFaults,
    RemoveRule,
    RenewLocks,
    RenewSession,
    Request,
    Schedule,
    SessionRequest,
    SetSessionState,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.containment import Containment
from spillway.broker.decided import Decided
from spillway.broker.describing import describe, list_entities
from spillway.broker.directory import Directory
from spillway.broker.disk_room import bytes_asked
from spillway.broker.effects import Descriptions, Done, Failed, Renewed, Rules
from spillway.broker.entity import Entity
from spillway.broker.faulting import Faulting
from spillway.broker.ledger import Ledger
from spillway.broker.ledger_reading import ReadLedgerStep
from spillway.broker.lifecycle import Lifecycle
from spillway.broker.loads import Loads
from spillway.broker.message_sessions import ListSessionsStep, MessageSessions, ReadStateStep, session_lock_lost
from spillway.broker.queue import Queue, locked_out
from spillway.broker.sending import Sending
from spillway.broker.settling import Settling
from spillway.broker.status import refuse_request
from spillway.broker.throttle import operations_of
from spillway.broker.topic import Subscription
from spillway.model import limits
from spillway.model.entity import SUBSCRIPTION, entity_key
from spillway.model.errors import BrokerError, NotAllowed
from spillway.model.ledger import MANAGEMENT, RENEW, SESSION
from spillway.model.records import SessionStatePut


class Requests:
    def __init__(
        self,
        directory: Directory,
        faulting: Faulting,
        ledger: Ledger,
        sending: Sending,
        settling: Settling,
        lifecycle: Lifecycle,
        containment: Containment,
    ) -> None:
        self.directory = directory
        self.faulting = faulting
        self.ledger = ledger
        self.throttle = directory.throttle
        self.sending = sending
        self.settling = settling
        self.lifecycle = lifecycle
        self.containment = containment
        self.peek_lanes: list[Loads] = []
        for _ in range(limits.PEEKS_AT_ONCE):
            self.peek_lanes.append(Loads(directory.load_numbers, directory.loads))

    def answer(self, request: Request, decided: Decided) -> None:
        entity = self.directory.find(request.path)
        error: BrokerError | None = None
        is_answered = False
        more_bytes = bytes_asked(request)
        if more_bytes > 0:
            error = self.throttle.refuse_writing(more_bytes, decided)
            if error is not None:
                decided.emit(Failed(request.request_id, error))
                return
        if isinstance(request, CreateEntity):
            error = self.directory.create(request.kind, request.path, request.settings, decided)
        elif isinstance(request, Administer):
            is_answered = self.faulting.is_on and self.faulting.on_administer(request, decided)
            error = None if is_answered else self.throttle.refuse_management(decided.now_ms)
        elif isinstance(request, (InjectFault, RemoveFaults, ListFaults)):
            error = self._fault(request, decided)
            is_answered = True
        elif isinstance(request, Meter):
            if entity is None:
                self.ledger.count_loose(request.otherwise, request.kind)
            else:
                entity.metered(decided).count(request.kind)
        elif isinstance(request, ReadLedger):
            self.ledger.write_all(decided.turn)
            decided.saves_ledger = True
            Loads(self.directory.load_numbers, self.directory.loads).add(ReadLedgerStep(request), decided)
            is_answered = True
        elif isinstance(request, ListEntities) and (request.kind != SUBSCRIPTION or entity is not None):
            listed = list_entities(
                self.directory, request.request_id, request.kind, request.path, request.skip, request.top
            )
            decided.emit(listed)
            is_answered = True
        elif entity is None:
            apart = self.directory.apart.get(entity_key(request.path))
            if apart is not None and isinstance(request, DeleteEntity) and apart.is_headed_by(request.path):
                self.containment.delete_apart(apart, decided)
            else:
                error = self.directory.not_found(request.path)
        elif isinstance(request, Describe):
            decided.emit(Descriptions(request.request_id, [describe(entity)], False))
            is_answered = True
        elif isinstance(request, UpdateEntity):
            error = self.lifecycle.update(entity, request.settings, decided)
        elif isinstance(request, DeleteEntity):
            error = self.lifecycle.delete(entity, decided)
        else:
            may_fail = self.faulting.is_on and not request.is_administrative
            if not may_fail or not self.faulting.on_request(entity, request, decided):
                error = refuse_request(entity, request)
                if error is None and entity.share is not None and not request.is_administrative:
                    error = entity.share.refuse(operations_of(request), decided.now_ms)
                if error is None:
                    error = self._manage(entity, request, decided)
            is_answered = True
        if error is not None:
            decided.emit(Failed(request.request_id, error))
        elif not is_answered:
            decided.emit(Done(request.request_id))

    def _fault(self, request: Request, decided: Decided) -> BrokerError | None:
        if isinstance(request, InjectFault):
            return self.faulting.inject(request, decided)
        if isinstance(request, RemoveFaults):
            return self.faulting.remove(request, decided)
        self.faulting.list_all(request.request_id, decided)
        return None

    def _manage(self, entity: Entity, request: Request, decided: Decided) -> BrokerError | None:
        """The operations of `$management`: what any entity can do, then what queues and subscriptions can."""
        decided.mark_ready(entity)
        if not request.is_administrative:
            entity.note_use(decided)
        if isinstance(request, Schedule):
            return self.sending.schedule(entity, request, decided)
        if isinstance(request, CancelScheduled):
            entity.loads.add(CancelStep(entity, request), decided)
            return None
        if not isinstance(entity, Queue):
            return NotAllowed(f"'{entity.path}' is a topic: this is for queues and subscriptions.")
        if isinstance(request, (RenewLocks, UpdateDisposition, Peek, ReceiveDeferred)) and entity.sessions is None:
            request.session_id = None  # where there are no sessions it is a property like any other
        if isinstance(request, RenewLocks):
            return self.settling.renew(entity, request, decided)
        if isinstance(request, UpdateDisposition):
            return self.settling.update_disposition(entity, request, decided)
        if isinstance(request, (SessionRequest, ListSessions)):
            return self._manage_session(entity, request, decided)
        if isinstance(request, Peek):
            self._peek_lane().add(
                BrowseStep(entity, request), decided
            )  # changes nothing, so it waits for no other step
        elif isinstance(request, ReceiveDeferred):
            if not request.deletes and not entity.locked.has_room():
                return locked_out(entity)
            entity.loads.add(ReceiveDeferredStep(entity, request), decided)
        elif isinstance(request, BatchDelete):
            entity.loads.add(BatchDeleteStep(entity, request), decided)
        else:
            return self._manage_rules(entity, request, decided)
        return None

    def _peek_lane(self) -> Loads:
        """A few are browsed at once, whoever asks: what is read for them is in memory until it is answered."""
        shortest = self.peek_lanes[0]
        for lane in self.peek_lanes:
            if lane.length() < shortest.length():
                shortest = lane
        return shortest

    def _manage_rules(self, queue: Queue, request: Request, decided: Decided) -> BrokerError | None:
        if not isinstance(queue, Subscription):
            return NotAllowed(f"'{queue.path}' is no subscription: only subscriptions have rules.")
        error: BrokerError | None = None
        if isinstance(request, ListRules):
            if request.name is None:
                listed = queue.rules.page(request.skip, request.top)
            else:
                named = queue.rules.find(request.name)
                listed = [] if named is None else [named]
            decided.emit(Rules(request.request_id, listed))
            if not request.is_administrative:
                queue.metered(decided).count(MANAGEMENT)
            return None
        if isinstance(request, AddRule):
            error = self.directory.add_rule(queue, request.rule, decided)
            queue.note_use(decided)
        else:
            assert isinstance(request, RemoveRule), "a request of no known kind"
            error = self.directory.remove_rule(queue, request.name, decided)
        if error is None:
            decided.emit(Done(request.request_id))
            if not request.is_administrative:
                queue.metered(decided).count(MANAGEMENT)
        return error

    def _manage_session(self, queue: Queue, request: Request, decided: Decided) -> BrokerError | None:
        sessions = queue.sessions
        if not isinstance(sessions, MessageSessions):
            return NotAllowed(f"'{queue.path}' does not have sessions.")
        if isinstance(request, ListSessions):
            Loads(self.directory.load_numbers, self.directory.loads).add(ListSessionsStep(queue, request), decided)
            return None
        assert isinstance(request, SessionRequest), "a request of no known kind"
        session = sessions.find(request.session_id)
        if session is None or sessions.is_over(session, decided.now_ms):
            return session_lock_lost(queue, request.session_id)
        if isinstance(request, RenewSession):
            decided.emit(Renewed(request.request_id, [sessions.renew(session, decided.now_ms)]))
            queue.metered(decided).count(RENEW)
        elif isinstance(request, SetSessionState):
            queue.metered(decided).count(SESSION, 0 if request.state is None else len(request.state))
            decided.remember([SessionStatePut(queue.entity_id, request.session_id, request.state, decided.now_ms)])
            decided.emit(Done(request.request_id))
        else:
            assert isinstance(request, GetSessionState), "a request of no known kind"
            queue.loads.add(ReadStateStep(queue, request), decided)
        return None
