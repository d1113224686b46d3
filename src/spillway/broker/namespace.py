"""A namespace: a deterministic state machine over its entities.

`apply` takes commands and the time and returns what to remember and what to say. It does no IO and reads no clock; the
same catalogue, seed, commands and times give the same decisions, so a run can be replayed and crashed anywhere.
"""

import heapq

from spillway.broker.by_number import BatchDeleteStep, BrowseStep, CancelStep, ReceiveDeferredStep
from spillway.broker.commands import (
    NOT_ASKED,
    AddRule,
    Administer,
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    Describe,
    Detach,
    DiskMeasured,
    GetSessionState,
    ListEntities,
    ListFaults,
    ListRules,
    ListSessions,
    Loaded,
    MemoryMeasured,
    Meter,
    Peek,
    PlantFault,
    ReadLedger,
    ReceiveDeferred,
    RemoveFaults,
    RemoveRule,
    RenewLocks,
    RenewSession,
    Request,
    SaveLedger,
    Schedule,
    Send,
    SessionRequest,
    SetSessionState,
    Settle,
    Undelivered,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.decided import Decided, Touchable
from spillway.broker.describing import describe, list_entities
from spillway.broker.directory import Directory
from spillway.broker.disk_room import bytes_asked
from spillway.broker.duplicates import Waiting
from spillway.broker.effects import (
    Attached,
    Descriptions,
    Detached,
    Done,
    Failed,
    Refused,
    Renewed,
    Report,
    Rules,
    Scheduled,
    SendSettled,
    Settled,
)
from spillway.broker.entity import Entity, earlier
from spillway.broker.faulting import Faulting
from spillway.broker.forwarding import refuse_forwarded
from spillway.broker.idle import is_over
from spillway.broker.incidents import (
    Apart,
    Incident,
    Incidents,
    ReadAgain,
    Restorer,
    apart_of,
    families_of,
    undo,
)
from spillway.broker.lane import Lane, ReceiverLink
from spillway.broker.ledger import Ledger, count_sends
from spillway.broker.ledger_reading import ReadLedgerStep
from spillway.broker.loads import Loads
from spillway.broker.locks import Lock, LockTokens
from spillway.broker.message_sessions import (
    ListSessionsStep,
    MessageSessions,
    ReadStateStep,
    session_lock_lost,
)
from spillway.broker.queue import Queue, locked_out
from spillway.broker.status import refuse_receiver, refuse_request, refuse_sender
from spillway.broker.sweeps import SweepDue, SweepExpired
from spillway.broker.throttle import operations_of
from spillway.broker.topic import PropertyAccess, Subscription, Topic
from spillway.model import limits
from spillway.model.access import AccessBook
from spillway.model.entity import FOR_EVER_MS, SUBSCRIPTION, EntitySettings, entity_key
from spillway.model.errors import (
    ArgumentError,
    BrokerError,
    InternalError,
    MessageLockLost,
    NotAllowed,
    QuotaExceeded,
    entity_disabled,
    entity_not_found,
)
from spillway.model.ledger import EMPTY_RECEIVE, MANAGEMENT, RENEW, SCHEDULE, SESSION, unpack_tally
from spillway.model.message import NEVER, Message
from spillway.model.quotas import NO_LIMIT, Quotas
from spillway.model.records import Catalogue, EntityRemoved, EntityRow, Record, SessionStatePut
from spillway.model.settlement import COMPLETE, RELEASE, Settlement


class Namespace(Restorer):
    """`token_seed`: eight bytes that differ from life to life, so that old lock tokens mean nothing."""

    def __init__(
        self,
        name: str,
        catalogue: Catalogue,
        token_seed: bytes,
        access: PropertyAccess | None = None,
        quotas: Quotas | None = None,
        book: AccessBook | None = None,
    ) -> None:
        self.name = name
        self.quotas = quotas or Quotas()
        self.directory = Directory(
            name,
            LockTokens(token_seed),
            access or PropertyAccess(),
            self.quotas,
            AccessBook() if book is None else book,
        )
        self.throttle = self.directory.throttle
        self.store_bytes = 0  # what all entities hold, if there is a limit to it
        self.directory.last_entity_id = catalogue.last_entity_id
        self.senders: dict[int, Entity] = {}  # by link number
        self.ended: dict[int, BrokerError] = {}  # by link number: senders that were ended and have not gone yet
        self.receivers = self.directory.receivers
        self.received_from: dict[int, Queue] = {}
        self.timers: list[tuple[int, int]] = []  # a heap of (when, entity id); stale ones are skipped
        self.incidents = Incidents(name, self.directory.apart)
        self.peek_lanes: list[Loads] = []
        for _ in range(limits.PEEKS_AT_ONCE):
            self.peek_lanes.append(Loads(self.directory.load_numbers, self.directory.loads))
        self.answering: Loads | None = None  # whose answer from the store is being worked on
        self.last_step = 0  # the number of the last piece of work, see `Decided.begin`
        self.faulting = Faulting(self.directory, self.senders, self.received_from, self._unlink)
        self.ledger = Ledger(catalogue.ledger_minute)
        self.started_ms = 0  # of this life; 0 until the first turn
        self.unfinished: list[Touchable] = []
        self.chores: list[Touchable] = []  # have more to do by themselves, as far as the store keeps up
        self.is_store_behind = False  # what was done of that last is not on disk yet; the pump says so
        self.applied_ms = 0
        self.release = Settlement(RELEASE)
        for row in catalogue.entities:
            try:
                entity = self._recover(row, catalogue.clock_ms)
                if row.tally:
                    entity.tally = unpack_tally(entity.path, entity.entity_id, row.tally)
                    self.ledger.recover(entity.tally)
                if isinstance(entity, Queue) and entity.forwarder is not None and entity.counters.active > 0:
                    self.unfinished.append(entity)  # messages that were to be passed on
            except Exception as error:  # one row never keeps the others from being served
                self._set_row_apart(row, error, catalogue.clock_ms)

    def _recover(self, row: EntityRow, now_ms: int) -> Entity:
        if row.problem:
            raise InternalError(row.problem)
        entity = self.directory.recover(row)
        self._set_timer(entity)
        self._note_store(entity, entity.counters.size_bytes, now_ms)
        return entity

    # -- the whole of it --------------------------------------------------------------------------------------

    def apply(self, commands: list[Command], now_ms: int) -> Decided:
        decided = Decided(now_ms, self.ledger, self.throttle.disk, self.last_step)
        decided.begin()
        self.applied_ms = now_ms
        if self.is_store_behind:
            decided.chores_begun = decided.chores_left = 0
        try:
            self._begin_turn(decided)
        except Exception as error:
            self._contain(error, "the beginning of a turn", None, None, decided)
        self._fire_timers(decided)  # what has ended by now ends before anything is asked of it
        for command in commands:
            decided.step += 1  # `begin`, once a command
            decided.groups_begun = len(decided.turn.groups)
            decided.effects_begun = len(decided.effects)
            if decided.changing:
                decided.changing = []
            try:
                self._dispatch(command, decided)
            except Exception as error:  # a fault of ours: this command is refused, see `incidents`
                self._contain(error, type(command).__name__, command, None, decided)
        self._serve_touched(decided)
        decided.begin()
        try:
            if self.faulting.is_on:
                self.faulting.hold_back(decided)
            self.unfinished = decided.unfinished
            self.chores = decided.chores
            self.ledger.end_turn(decided.turn, decided.saves_ledger and decided.may_write(0), decided.saves_ledger)
        except Exception as error:
            self._contain(error, "the end of a turn", None, None, decided)
        self.throttle.disk.spend(decided.turn.size_bytes)
        self.last_step = decided.step
        return decided

    def _begin_turn(self, decided: Decided) -> None:
        now_ms = decided.now_ms
        if now_ms >= self.ledger.minute_ends_ms and (self.ledger.minute == 0 or decided.may_write(0)):
            self.ledger.begin_minute(decided.turn)
        if self.started_ms == 0:
            self.started_ms = now_ms
        for queue in self.unfinished:
            decided.touch(queue)
        for entity in self.chores:
            decided.touch(entity)
        if self.incidents.unsaid:
            self.incidents.say_unsaid(decided)
        if 0 < self.incidents.due_ms <= now_ms:
            for apart in self.incidents.take_due(now_ms):
                Loads(self.directory.load_numbers, self.directory.loads).add(ReadAgain(self, apart), decided)
        if self.faulting.is_on:
            self.faulting.end_due(decided)
        if self.throttle.parked and self.throttle.resume_ms <= now_ms:
            self._resume_parked(decided)

    def next_due_ms(self) -> int:
        """When `apply` must be called even without commands; 0 if no time is set."""
        if self.unfinished or self.incidents.unsaid:
            return 1  # at once
        if self.chores and not self.is_store_behind:
            return 1
        other_ms = earlier(self.ledger.seal_due_ms, self.incidents.due_ms)
        if self.throttle.parked:
            other_ms = earlier(other_ms, self.throttle.resume_ms)
        if self.faulting.is_on:
            other_ms = earlier(other_ms, self.faulting.due_ms())
        while self.timers:
            when, entity_id = self.timers[0]
            entity = self.directory.by_id.get(entity_id)
            if entity is not None and entity.timer_ms == when:
                if self.is_store_behind and when <= self.applied_ms:
                    return other_ms  # it goes on when the store has caught up
                return earlier(when, other_ms)
            heapq.heappop(self.timers)
        return other_ms

    def has_counted(self) -> bool:
        """Whether the ledger has something to write down: `SaveLedger` within a second."""
        return self.ledger.has_counted()

    @property
    def held_bytes(self) -> int:
        """Of sends that wait for an answer of the store before they can be decided."""
        return self.directory.id_budget.held_bytes

    def exists(self, path: str) -> bool:
        return self.directory.find(path) is not None or entity_key(path) in self.directory.apart

    def _dispatch(self, command: Command, decided: Decided) -> None:
        if isinstance(command, Send):
            self._send(command, decided)
        elif isinstance(command, Settle):
            self._settle(command, decided)
        elif isinstance(command, Credit):
            self._credit(command, decided)
        elif isinstance(command, Loaded):
            self._loaded(command, decided)
        elif isinstance(command, Request):
            self._request(command, decided)
        elif isinstance(command, AttachSender):
            self._attach_sender(command, decided)
        elif isinstance(command, AttachReceiver):
            self._attach_receiver(command, decided)
        elif isinstance(command, Detach):
            self._unlink(command.link_id, decided)
            if command.error is not None:
                decided.say(Detached(command.link_id, command.error))
        elif isinstance(command, Undelivered):
            self._undelivered(command, decided)
        elif isinstance(command, MemoryMeasured):
            self.throttle.note_memory(command.bytes_used, decided.now_ms)
        elif isinstance(command, SaveLedger):
            decided.saves_ledger = True
        else:
            assert isinstance(command, DiskMeasured), "a command of no known kind"
            self.throttle.disk.note(command.free_bytes)

    def _serve_touched(self, decided: Decided) -> None:
        at = 0
        while at < len(decided.touched):  # serving may touch a dead-letter queue
            entity = decided.touched[at]
            assert isinstance(entity, Entity)
            at += 1
            if entity.is_apart:
                continue
            decided.begin()
            try:
                entity.serve(decided)
            except Exception as error:
                self._contain(error, "serving", None, entity, decided)
            entity.is_served = True
        for entity in decided.touched:
            assert isinstance(entity, Entity)
            entity.is_touched = False
            entity.is_served = False
            if entity.is_apart:
                continue
            if entity.is_changed:
                entity.is_changed = False
                decided.turn.counters[entity.entity_id] = entity.counters.copy()
                self._note_store(entity, entity.counters.size_bytes, decided.now_ms)
            self._set_timer(entity)

    def _note_store(self, entity: Entity, size_bytes: int, now_ms: int) -> None:
        """What it holds now counts against the limit of the namespace, if there is one."""
        if self.quotas.store_mb != NO_LIMIT:
            self.store_bytes += size_bytes - entity.noted_bytes
            entity.noted_bytes = size_bytes
            self.throttle.note_store(self.store_bytes, now_ms)

    def _resume_parked(self, decided: Decided) -> None:
        """Deliveries that waited for operations."""
        for lane, owner in self.throttle.take_parked().items():
            if not lane.is_closed:
                assert isinstance(owner, Queue), "deliveries come from queues"
                owner.touch_lane(lane, decided)

    def _set_timer(self, entity: Entity) -> None:
        due_ms = entity.due_ms()
        if due_ms != 0 and (entity.timer_ms == 0 or due_ms < entity.timer_ms):
            entity.timer_ms = due_ms
            heapq.heappush(self.timers, (due_ms, entity.entity_id))

    def _fire_timers(self, decided: Decided) -> None:
        now_ms = decided.now_ms
        while self.timers and self.timers[0][0] <= now_ms:
            when, entity_id = heapq.heappop(self.timers)
            entity = self.directory.by_id.get(entity_id)
            if entity is None or entity.timer_ms != when:
                continue
            entity.timer_ms = 0
            decided.begin()
            try:
                self._on_time(entity, decided)
            except Exception as error:
                self._contain(error, "what was due", None, entity, decided)

    def _on_time(self, entity: Entity, decided: Decided) -> None:
        now_ms = decided.now_ms
        decided.touch(entity)
        if entity.settings.auto_delete_ms != FOR_EVER_MS and is_over(entity, self.started_ms, now_ms):
            decided.say(Report(f"'{entity.path}' was idle for its AutoDeleteOnIdle and is deleted.", False))
            self._delete(entity, decided)
            return
        entity.on_time(decided)
        if entity.duplicates is not None:
            entity.duplicates.on_time(decided)
        if NEVER < entity.next_due_ms <= now_ms and not entity.is_sweeping_due:
            entity.is_sweeping_due = True
            entity.loads.add(SweepDue(entity), decided)
        if isinstance(entity, Queue) and NEVER < entity.next_expiry_ms <= now_ms:
            if not entity.is_sweeping_expired:
                entity.is_sweeping_expired = True
                entity.loads.add(SweepExpired(entity), decided)

    # -- links ------------------------------------------------------------------------------------------------

    def _send(self, command: Send, decided: Decided) -> None:
        entity = self.senders.get(command.link_id)
        if entity is None:
            self._refuse_late(command, decided)
            return
        if self.faulting.is_on and self.faulting.on_send(entity, command, decided):
            return
        duplicates = entity.duplicates
        if duplicates is None or duplicates.knows(command.messages, decided.now_ms):
            self.take_send(entity, command, decided)
        else:
            duplicates.line_up(WaitingSend(self, entity, command), decided)

    def _refuse_late(self, command: Send, decided: Decided) -> None:
        """The link was ended while the send was on its way. JavaScript does not take that for an answer."""
        error = self.ended.get(command.link_id)
        if error is not None and not command.is_settled:
            decided.say(SendSettled(command.link_id, command.delivery_id, error))

    def take_send(self, entity: Entity, command: Send, decided: Decided) -> None:
        error = self._refuse_send(entity, command.messages, decided)
        before = entity.counters.last_sequence_number
        if error is None:
            self._admit(entity, command.messages, decided)
            count_sends(entity.metered(decided), command.messages)
        if command.is_settled:
            return
        answer = SendSettled(command.link_id, command.delivery_id, error)
        if isinstance(entity, Topic):
            entity.owe(answer, before, decided)
        else:
            decided.say(answer)

    def _refuse_send(self, entity: Entity, messages: list[Message], decided: Decided) -> BrokerError | None:
        now_ms = decided.now_ms
        error: BrokerError | None = None
        if decided.turn.size_bytes >= self.throttle.disk.growth_left:
            return self.throttle.refuse_writing(0, decided)
        if self.throttle.is_pressed:
            error = self.throttle.refuse_growth(now_ms)
        if error is None:
            error = entity.refuse_new(messages, now_ms)
        if error is None and entity.share is not None:
            return entity.share.refuse(len(messages) * entity.operations_per_message(), now_ms)
        return error

    def _admit(self, entity: Entity, messages: list[Message], decided: Decided) -> list[int]:
        """One group. A ping is answered and never stored (contract F2)."""
        group: list[Record] = []
        numbers: list[int] = []
        for message in messages:
            if not message.is_ping:
                numbers.append(entity.admit(message, group, decided))
        decided.remember(group)
        decided.touch(entity)
        entity.use(decided.now_ms)
        return numbers

    def _settle(self, command: Settle, decided: Decided) -> None:
        link = self.receivers.get(command.link_id)
        if link is None:
            return
        queue = self.received_from[command.link_id]
        if self.faulting.is_on and self.faulting.on_settle(queue, link, command, decided):
            return
        error = self._settle_token(queue, link.lane, command.lock_token, command.settlement, decided)
        if not command.is_settled:
            decided.say(Settled(command.link_id, command.delivery_id, command.settlement.kind, error))

    def _settle_token(
        self, queue: Queue, lane: Lane, token: bytes, settlement: Settlement, decided: Decided
    ) -> BrokerError | None:
        error = queue.refuse_settlement(settlement)
        if error is not None:
            return error
        lock = queue.find_lock(lane, token, decided.now_ms)
        if lock is None:
            return _lock_lost(queue)
        if settlement.kind != COMPLETE:  # which is the usual one, and never refused
            if settlement.properties:
                error = queue.refuse_changes(lock, settlement)
            if error is None:
                error = self.throttle.refuse_settling(settlement, lock.size_bytes, decided)
            if error is not None:
                return error
        self._settle_lock(queue, lane, lock, settlement, decided)
        return None

    def _settle_lock(self, queue: Queue, lane: Lane, lock: Lock, settlement: Settlement, decided: Decided) -> None:
        lane.locks.remove(lock.token)
        queue.settle(lock, settlement, decided)
        queue.metered(decided).settle()
        queue.touch_lane(lane, decided)

    def _credit(self, command: Credit, decided: Decided) -> None:
        link = self.receivers.get(command.link_id)
        if link is None:
            return
        queue = self.received_from[command.link_id]
        if self.faulting.is_on and self.faulting.on_credit(queue, link, command, decided):
            return
        link.limit = command.limit
        if command.drains:
            link.drains = True
        elif command.asks != NOT_ASKED:
            link.drains = False  # it has asked again before it was answered: what it got was enough
        if command.asks != NOT_ASKED:
            queue.ask(link, command.asks, decided)
        queue.touch_lane(link.lane, decided)
        queue.note_use(decided)

    def _attach_sender(self, command: AttachSender, decided: Decided) -> None:
        entity = self.directory.find(command.path)
        error: BrokerError | None = None
        if entity is None:
            error = self.directory.not_found(command.path)
        elif isinstance(entity, Queue) and entity.parent is not None:
            error = NotAllowed(f"'{entity.path}' is a dead-letter queue: it is received from, never sent to.")
        elif isinstance(entity, Subscription):
            error = NotAllowed(f"'{entity.path}' is a subscription: send to its topic, '{entity.topic.path}'.")
        elif self.faulting.is_on and self.faulting.on_attach(entity, command.link_id, decided):
            return
        else:
            error = refuse_sender(entity)
            if error is None and entity.share is not None:
                error = entity.share.refuse(1, decided.now_ms)
        if error is not None or entity is None:
            decided.say(Refused(command.link_id, error or self.directory.not_found(command.path)))
            return
        self.senders[command.link_id] = entity
        entity.sender_link_ids[command.link_id] = True
        decided.say(Attached(command.link_id))

    def _attach_receiver(self, command: AttachReceiver, decided: Decided) -> None:
        entity = self.directory.find(command.path)
        error: BrokerError | None
        if entity is None:
            error = self.directory.not_found(command.path)
        elif not isinstance(entity, Queue):
            error = NotAllowed(f"'{entity.path}' is a topic: receive from one of its subscriptions.")
        elif self.faulting.is_on and self.faulting.on_attach(entity, command.link_id, decided):
            return
        else:
            error = refuse_receiver(entity) or refuse_forwarded(entity.path, entity.settings, entity.parent is not None)
            if error is None and entity.share is not None:
                error = entity.share.refuse(1, decided.now_ms)
            if error is None and entity.usage.receiver_count >= self.quotas.receivers_per_entity:
                error = QuotaExceeded(
                    f"'{entity.path}' has {entity.usage.receiver_count} receivers, the most it may have "
                    "(limit receivers-per-entity; the subscriptions of a topic are counted together)."
                )
            if error is None:
                self._add_receiver(entity, command, decided)
                return
        decided.say(Refused(command.link_id, error))

    def _add_receiver(self, queue: Queue, command: AttachReceiver, decided: Decided) -> None:
        if (queue.sessions is None) != (command.session is None):
            decided.say(Refused(command.link_id, NotAllowed(_wrong_kind_of_receiver(queue))))
            return
        self.received_from[command.link_id] = queue
        queue.usage.receiver_count += 1
        queue.note_use(decided)
        if isinstance(queue.sessions, MessageSessions):
            queue.sessions.accept(command, decided)
            decided.touch(queue)
            return
        link = ReceiverLink(command.link_id, command.deletes, queue.lane)
        self.receivers[command.link_id] = link
        queue.lane.receivers.add(link)
        decided.say(Attached(command.link_id))

    def _unlink(self, link_id: int, decided: Decided) -> None:
        """The link is gone, whoever ended it."""
        if self.faulting.is_on:
            self.faulting.on_detach(link_id)
        if self.ended:
            self.ended.pop(link_id, None)
        entity = self.senders.pop(link_id, None)
        if entity is not None:
            entity.sender_link_ids.pop(link_id, None)
            return
        queue = self.received_from.pop(link_id, None)
        if queue is None:
            return
        queue.usage.receiver_count -= 1
        queue.note_use(decided)
        link = self.receivers.pop(link_id, None)
        if link is not None:
            queue.end_call(link, decided)
        if isinstance(queue.sessions, MessageSessions):
            if link is None:
                if queue.sessions.forget_waiting(link_id):
                    queue.metered(decided).count(EMPTY_RECEIVE)
            else:
                queue.sessions.give_up(link.lane, decided)
                decided.touch(queue)
        elif link is not None:
            queue.lane.receivers.remove(link)

    def _undelivered(self, command: Undelivered, decided: Decided) -> None:
        queue = self.directory.queues.get(entity_key(command.path))
        if queue is None:
            return
        for lane in [queue.lane] if queue.sessions is None else list(queue.sessions.locked.values()):
            lock = lane.locks.remove(command.lock_token)
            if lock is not None:
                queue.settle(lock, self.release, decided)
                queue.touch_lane(lane, decided)

    # -- requests ---------------------------------------------------------------------------------------------

    def _request(self, request: Request, decided: Decided) -> None:
        entity = self.directory.find(request.path)
        error: BrokerError | None = None
        is_answered = False
        more_bytes = bytes_asked(request)
        if more_bytes > 0:
            error = self.throttle.refuse_writing(more_bytes, decided)
            if error is not None:
                decided.say(Failed(request.request_id, error))
                return
        if isinstance(request, CreateEntity):
            error = self.directory.create(request.kind, request.path, request.settings, decided)
        elif isinstance(request, Administer):
            is_answered = self.faulting.is_on and self.faulting.on_administer(request, decided)
            error = None if is_answered else self.throttle.refuse_management(decided.now_ms)
        elif isinstance(request, (PlantFault, RemoveFaults, ListFaults)):
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
            decided.say(listed)
            is_answered = True
        elif entity is None:
            apart = self.directory.apart.get(entity_key(request.path))
            if apart is not None and isinstance(request, DeleteEntity) and apart.is_headed_by(request.path):
                self._delete_apart(apart, decided)
            else:
                error = self.directory.not_found(request.path)
        elif isinstance(request, Describe):
            decided.say(Descriptions(request.request_id, [describe(entity)], False))
            is_answered = True
        elif isinstance(request, UpdateEntity):
            error = self._update(entity, request.settings, decided)
        elif isinstance(request, DeleteEntity):
            error = self._delete(entity, decided)
        else:
            is_struck = self.faulting.is_on and not request.is_administrative
            if not is_struck or not self.faulting.on_request(entity, request, decided):
                error = refuse_request(entity, request)
                if error is None and entity.share is not None and not request.is_administrative:
                    error = entity.share.refuse(operations_of(request), decided.now_ms)
                if error is None:
                    error = self._manage(entity, request, decided)
            is_answered = True
        if error is not None:
            decided.say(Failed(request.request_id, error))
        elif not is_answered:
            decided.say(Done(request.request_id))

    def _fault(self, request: Request, decided: Decided) -> BrokerError | None:
        if isinstance(request, PlantFault):
            return self.faulting.plant(request, decided)
        if isinstance(request, RemoveFaults):
            return self.faulting.remove(request, decided)
        self.faulting.list_all(request.request_id, decided)
        return None

    def _manage(self, entity: Entity, request: Request, decided: Decided) -> BrokerError | None:
        """The operations of `$management`: what any entity can do, then what queues and subscriptions can."""
        decided.touch(entity)
        if not request.is_administrative:
            entity.note_use(decided)
        if isinstance(request, Schedule):
            duplicates = entity.duplicates
            if duplicates is None or duplicates.knows(request.messages, decided.now_ms):
                return self.take_schedule(entity, request, decided)
            duplicates.line_up(WaitingSchedule(self, entity, request), decided)
            return None
        if isinstance(request, CancelScheduled):
            entity.loads.add(CancelStep(entity, request), decided)
            return None
        if not isinstance(entity, Queue):
            return NotAllowed(f"'{entity.path}' is a topic: this is for queues and subscriptions.")
        if isinstance(request, (RenewLocks, UpdateDisposition, Peek, ReceiveDeferred)) and entity.sessions is None:
            request.session_id = None  # where there are no sessions it is a property like any other
        if isinstance(request, RenewLocks):
            return self._renew(entity, request, decided)
        if isinstance(request, UpdateDisposition):
            return self._update_disposition(entity, request, decided)
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

    def take_schedule(self, entity: Entity, request: Schedule, decided: Decided) -> BrokerError | None:
        error = self._refuse_send(entity, request.messages, decided)
        if error is None:
            decided.say(Scheduled(request.request_id, self._admit(entity, request.messages, decided)))
            for message in request.messages:
                entity.metered(decided).count(SCHEDULE, len(message.raw))
        return error

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
            decided.say(Rules(request.request_id, listed))
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
            decided.say(Done(request.request_id))
            if not request.is_administrative:
                queue.metered(decided).count(MANAGEMENT)
        return error

    def _lane_for(self, queue: Queue, session_id: str | None) -> Lane | None:
        """Where the locks are that a request speaks of. None: that session is held by nobody."""
        return queue.lane if queue.sessions is None else queue.lane_of(session_id)

    def _renew(self, queue: Queue, request: RenewLocks, decided: Decided) -> BrokerError | None:
        lane = self._lane_for(queue, request.session_id)
        locks: list[Lock] = []
        for token in request.lock_tokens:
            lock = None if lane is None else queue.find_lock(lane, token, decided.now_ms)
            if lock is None:
                return _lock_lost(queue)
            locks.append(lock)
        until_ms = decided.now_ms + queue.settings.lock_duration_ms
        for lock in locks:
            assert lane is not None, "a lock that was found is in a lane"
            lane.locks.renew(lock, until_ms)
        queue.metered(decided).count_many(RENEW, len(locks), len(locks), 0)
        decided.say(Renewed(request.request_id, [until_ms] * len(locks)))
        return None

    def _update_disposition(self, queue: Queue, request: UpdateDisposition, decided: Decided) -> BrokerError | None:
        error = queue.refuse_settlement(request.settlement)
        if error is not None:
            return error
        lane = self._lane_for(queue, request.session_id)
        if lane is None:
            return session_lock_lost(queue, request.session_id or "")
        changed_bytes = request.settlement.changed_bytes() * len(request.lock_tokens)
        if changed_bytes > limits.BY_NUMBER_BYTES_MAX:
            return ArgumentError(
                f"The properties to modify have more than {limits.BY_NUMBER_BYTES_MAX} bytes together on "
                f"{len(request.lock_tokens)} messages: settle fewer at a time."
            )
        size_bytes = changed_bytes
        locks: dict[bytes, Lock] = {}
        for token in request.lock_tokens:
            lock = queue.find_lock(lane, token, decided.now_ms)
            if lock is None:
                return _lock_lost(queue)
            if changed_bytes:
                error = queue.refuse_changes(lock, request.settlement)
                if error is not None:
                    return error
            size_bytes += lock.size_bytes
            locks[token] = lock
        error = self.throttle.refuse_settling(request.settlement, size_bytes, decided)
        if error is not None:
            return error
        for lock in locks.values():
            self._settle_lock(queue, lane, lock, request.settlement, decided)
        decided.say(Done(request.request_id))
        return None

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
            decided.say(Renewed(request.request_id, [sessions.renew(session, decided.now_ms)]))
            queue.metered(decided).count(RENEW)
        elif isinstance(request, SetSessionState):
            queue.metered(decided).count(SESSION, 0 if request.state is None else len(request.state))
            decided.remember([SessionStatePut(queue.entity_id, request.session_id, request.state, decided.now_ms)])
            decided.say(Done(request.request_id))
        else:
            assert isinstance(request, GetSessionState), "a request of no known kind"
            queue.loads.add(ReadStateStep(queue, request), decided)
        return None

    def _loaded(self, command: Loaded, decided: Decided) -> None:
        loads = self.directory.loads.pop(command.load_id, None)
        if loads is None:
            return  # its entity was deleted meanwhile
        self.answering = loads
        loads.on_loaded(command.rows, decided)
        self.answering = None
        queue = loads.owner
        if queue is not None:
            decided.touch(queue)

    # -- entities ---------------------------------------------------------------------------------------------

    def _update(self, entity: Entity, settings: EntitySettings, decided: Decided) -> BrokerError | None:
        error = self.directory.refuse_update(entity, settings)
        if error is not None:
            return error
        for changed in self.directory.with_dead_letters(entity):
            if not settings.may_receive():
                error = entity_disabled(changed.path, settings.status)
            else:
                error = refuse_forwarded(changed.path, settings, changed is not entity)
            if error is not None:
                self._end_receivers(changed, error, decided)
        self.directory.update(entity, settings, decided)
        return None

    def _end_receivers(self, entity: Entity, error: BrokerError, decided: Decided) -> None:
        """Those that wait for a session are refused, the others detached."""
        if not isinstance(entity, Queue):
            return
        waiting = [] if entity.sessions is None else entity.sessions.forget_receivers()
        for link_id in [link_id for link_id, queue in self.received_from.items() if queue is entity]:
            del self.received_from[link_id]
            entity.usage.receiver_count -= 1
            link = self.receivers.pop(link_id, None)
            if link is not None:
                entity.end_call(link, decided)
            decided.say(Refused(link_id, error) if link_id in waiting else Detached(link_id, error))
        entity.lane.receivers.links.clear()

    def _delete(self, entity: Entity, decided: Decided) -> BrokerError | None:
        whole = self.directory.whole(entity)
        if whole is None:
            return NotAllowed(f"'{entity.path}' goes when the entity it belongs to is deleted.")
        group: list[Record] = []
        for gone in whole:
            self._forget(gone, decided)
            group.append(EntityRemoved(gone.entity_id))
        decided.remember(group)
        return None

    def _forget(self, entity: Entity, decided: Decided) -> None:
        """For good: what was counted of it stays, under its name."""
        self._take_out(entity, entity_not_found(self.name, entity.path), decided)
        self.directory.book.put(entity_key(entity.path), [])
        if entity.tally is not None:
            self.ledger.forget(entity.tally, decided.turn)

    def _take_out(self, entity: Entity, error: BrokerError, decided: Decided) -> None:
        """Its links are detached, whoever waits for its rows hears why, and it is not found any more."""
        for link_id in list(entity.sender_link_ids):
            del self.senders[link_id]
            self.ended[link_id] = error
            decided.say(Detached(link_id, error))
        self._end_receivers(entity, error, decided)
        if isinstance(entity, Queue):
            entity.close()
        elif isinstance(entity, Topic):
            for answer in entity.take_owed():
                assert isinstance(answer, SendSettled), "sends are what is answered later"
                decided.say(SendSettled(answer.to, answer.delivery_id, error))
        entity.loads.abort(error, decided)
        self.directory.forget(entity)
        self._note_store(entity, 0, decided.now_ms)
        entity.is_changed = False
        decided.turn.counters.pop(entity.entity_id, None)

    # -- faults of ours, see incidents ------------------------------------------------------------------------

    def _contain(
        self, error: Exception, what: str, command: Command | None, entity: Entity | None, decided: Decided
    ) -> None:
        """This piece of work is undone and refused; what it had touched is read from the store again."""
        touched: list[Touchable] = list(decided.changing)
        if entity is not None:
            what = f"{what} of '{entity.path}'"
            touched.append(entity)
        incident = self.incidents.begin(error, what)
        refusal = incident.error()
        unasked = undo(decided, self.directory.loads)
        if self.answering is not None:
            unasked.append(self.answering)
            self.answering = None
        for loads in unasked:
            if loads.owner is not None:
                touched.append(loads.owner)
            else:
                loads.abort_first(refusal, decided)
        if command is not None:
            touched += self._asked_of(command)
            self._refuse_command(command, refusal, decided)
        for head in families_of(touched):
            self._set_apart(head, incident, decided)
        self.incidents.report(incident.text, decided)

    def _asked_of(self, command: Command) -> list[Entity]:
        """Whom a command is for. Links that it was about to make are not there."""
        found: Entity | None = None
        if isinstance(command, Send):
            found = self.senders.get(command.link_id)
        elif isinstance(command, (Settle, Credit)):
            found = self.received_from.get(command.link_id)
        elif isinstance(command, (Request, Undelivered)):
            found = self.directory.find(command.path)
        elif isinstance(command, (AttachSender, AttachReceiver)):
            found = self.directory.find(command.path)
            if found is not None:
                found.sender_link_ids.pop(command.link_id, None)
            self.senders.pop(command.link_id, None)
            self.received_from.pop(command.link_id, None)
            self.receivers.pop(command.link_id, None)
        elif isinstance(command, Detach):
            found = self.senders.pop(command.link_id, None) or self.received_from.pop(command.link_id, None)
            self.receivers.pop(command.link_id, None)
        return [] if found is None else [found]

    def _refuse_command(self, command: Command, error: BrokerError, decided: Decided) -> None:
        if isinstance(command, Send):
            if not command.is_settled:
                decided.say(SendSettled(command.link_id, command.delivery_id, error))
        elif isinstance(command, Settle):
            if not command.is_settled:
                decided.say(Settled(command.link_id, command.delivery_id, command.settlement.kind, error))
        elif isinstance(command, Request):
            decided.say(Failed(command.request_id, error))
        elif isinstance(command, (AttachSender, AttachReceiver)):
            decided.say(Refused(command.link_id, error))
        elif isinstance(command, Detach) and command.error is not None:
            decided.say(Detached(command.link_id, command.error))

    def _set_apart(self, head: Entity, incident: Incident, decided: Decided) -> None:
        """Out of service with all that belongs to it, until the store has told what it really holds."""
        if head.is_apart:
            return
        apart = Apart(head.path, incident.error_for(head.path), decided.now_ms)
        apart.reason = incident.text
        for entity in self.directory.whole(head) or [head]:
            entity.is_apart = True
            apart.add(entity.entity_id, entity.path)
            if entity.tally is not None:
                apart.tallies[entity.entity_id] = entity.tally
            try:
                self._take_out(entity, apart.error, decided)
            except Exception as error:  # its state is not sound: it goes all the same
                apart.reason += f"; {type(error).__name__}: {error}"
                self.directory.strike_out(entity)
            decided.turn.counters[entity.entity_id] = entity.counters.copy()
            decided.turn.recounts.append(entity.entity_id)
        self.incidents.put(apart, decided.now_ms)

    def _set_row_apart(self, row: EntityRow, error: Exception, now_ms: int) -> None:
        """One that could not be made of its row at the start; what belongs to it shares its lot."""
        put = row.put
        made = self.directory.by_id.get(put.entity_id)
        if made is not None:
            made.is_apart = True
            self.directory.strike_out(made)
        apart = self.incidents.family_of(put.parent_id)
        if apart is None:
            incident = self.incidents.begin(error, f"reading '{put.path}' from the store")
            apart = apart_of(put, incident, now_ms)
            self.incidents.unsaid.append(incident.text)
        apart.add(put.entity_id, put.path)
        self.incidents.put(apart, now_ms)

    def restore(self, apart: Apart, rows: list[EntityRow], decided: Decided) -> None:
        """Back in service, as the store has it; or apart for longer."""
        if self.directory.apart.get(entity_key(apart.path)) is not apart:
            return  # deleted meanwhile
        self.incidents.remove(apart)
        made: list[Entity] = []
        try:
            for row in rows:
                entity = self._recover(row, decided.now_ms)
                made.append(entity)
                entity.tally = apart.tallies.get(entity.entity_id)
        except Exception as error:
            incident = self.incidents.begin(error, f"reading '{apart.path}' from the store")
            apart.reason = incident.text
            for entity_id in apart.paths:
                half = self.directory.by_id.get(entity_id)
                if half is not None:
                    half.is_apart = True
                    self.directory.strike_out(half)
            self.incidents.put(apart, decided.now_ms)
            self.incidents.report(incident.text, decided)
            return
        for entity in made:
            decided.touch(entity)
        self.incidents.report(f"'{apart.path}' was read from the store again and is in service", decided)

    def _delete_apart(self, apart: Apart, decided: Decided) -> None:
        group: list[Record] = []
        for entity_id, path in apart.paths.items():
            group.append(EntityRemoved(entity_id))
            self.directory.book.put(entity_key(path), [])
            tally = apart.tallies.get(entity_id)
            if tally is not None:
                self.ledger.forget(tally, decided.turn)
        self.incidents.remove(apart)
        decided.remember(group)


class WaitingSend(Waiting):
    def __init__(self, namespace: Namespace, entity: Entity, command: Send) -> None:
        super().__init__(command.messages)
        self.namespace = namespace
        self.entity = entity
        self.command = command

    def go(self, decided: Decided) -> None:
        self.namespace.take_send(self.entity, self.command, decided)

    def abort(self, error: BrokerError, decided: Decided) -> None:
        if not self.command.is_settled:
            decided.say(SendSettled(self.command.link_id, self.command.delivery_id, error))


class WaitingSchedule(Waiting):
    def __init__(self, namespace: Namespace, entity: Entity, request: Schedule) -> None:
        super().__init__(request.messages)
        self.namespace = namespace
        self.entity = entity
        self.request = request

    def go(self, decided: Decided) -> None:
        error = self.namespace.take_schedule(self.entity, self.request, decided)
        if error is not None:
            decided.say(Failed(self.request.request_id, error))

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.say(Failed(self.request.request_id, error))


def _lock_lost(queue: Queue) -> BrokerError:
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue "
        f"'{queue.path}'."
    )


def _wrong_kind_of_receiver(queue: Queue) -> str:
    """Azure's sentences, which the SDKs' own tests look for, and what to do."""
    if queue.sessions is not None:
        return (
            "It is not possible for an entity that requires sessions to create a non-sessionful message receiver. "
            f"'{queue.path}' requires sessions: accept one of them."
        )
    return (
        "A sessionful message receiver cannot be created on an entity that does not require sessions. "
        f"'{queue.path}' does not have sessions: receive without one, or create it with RequiresSession."
    )
