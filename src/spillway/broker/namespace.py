"""A namespace: a deterministic state machine over its entities.

`apply` takes commands and the time and returns what to remember and what to say. It does no IO and reads no clock; the
same catalogue, seed, commands and times give the same decisions, so a run can be replayed and crashed anywhere.
"""

import heapq

from spillway.broker import faults
from spillway.broker.by_number import BatchDeleteStep, BrowseStep, CancelStep, ReceiveDeferredStep
from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateQueue,
    Credit,
    DeleteEntity,
    Detach,
    DiskNearlyFull,
    Loaded,
    Peek,
    PlantFault,
    ReceiveDeferred,
    RenewLocks,
    Request,
    Schedule,
    Send,
    Settle,
    Undelivered,
    UpdateDisposition,
    UpdateQueue,
)
from spillway.broker.decided import Decided, Touchable
from spillway.broker.effects import Attached, Detached, Done, Failed, Refused, Renewed, Scheduled, SendSettled, Settled
from spillway.broker.loads import LoadNumberSource, Loads
from spillway.broker.locks import Lock, LockTokens
from spillway.broker.queue import Queue
from spillway.broker.receivers import ReceiverLink
from spillway.broker.refill import Refill
from spillway.broker.sweeps import SweepDue, SweepExpired
from spillway.broker.window import ResidentBudget
from spillway.model import limits
from spillway.model.entity import (
    DEAD_LETTER_QUEUE,
    QUEUE,
    QueueSettings,
    dead_letter_path,
    entity_key,
    name_problem,
    settings_from_json,
)
from spillway.model.errors import (
    ArgumentError,
    BrokerError,
    EntityAlreadyExists,
    MessageLockLost,
    NotAllowed,
    QuotaExceeded,
    ServerBusy,
    entity_not_found,
)
from spillway.model.message import NEVER, Message
from spillway.model.records import Catalogue, EntityPut, EntityRemoved, EntityRow, Record
from spillway.model.settlement import RELEASE, Settlement


class Namespace:
    """`token_seed`: eight bytes that differ from life to life, so that old lock tokens mean nothing."""

    def __init__(self, name: str, catalogue: Catalogue, token_seed: bytes) -> None:
        self.name = name
        self.tokens = LockTokens(token_seed)
        self.budget = ResidentBudget(limits.RESIDENT_NAMESPACE_BYTES_MAX)
        self.queues: dict[str, Queue] = {}  # by key
        self.queues_by_id: dict[int, Queue] = {}
        self.senders: dict[int, Queue] = {}  # by link number
        self.receivers: dict[int, ReceiverLink] = {}
        self.received_from: dict[int, Queue] = {}
        self.load_numbers = LoadNumberSource()
        self.loads: dict[int, Loads] = {}
        self.last_entity_id = catalogue.last_entity_id
        self.timers: list[tuple[int, int]] = []  # a heap of (when, entity id); stale ones are skipped
        self.faults = faults.Faults()
        self.is_disk_full = False
        self.unfinished: list[Touchable] = []
        self.release = Settlement(RELEASE)
        for row in catalogue.entities:
            self._recover(row)

    # -- the whole of it --------------------------------------------------------------------------------------

    def apply(self, commands: list[Command], now_ms: int) -> Decided:
        decided = Decided(now_ms)
        for queue in self.unfinished:
            decided.touch(queue)
        self._fire_timers(decided)  # what has ended by now ends before anything is asked of it
        for command in commands:
            self._dispatch(command, decided)
        self._serve_touched(decided)
        self.unfinished = decided.unfinished
        return decided

    def next_due_ms(self) -> int:
        """When `apply` must be called even without commands; 0 if no time is set."""
        if self.unfinished:
            return 1  # at once
        while self.timers:
            when, entity_id = self.timers[0]
            queue = self.queues_by_id.get(entity_id)
            if queue is not None and queue.timer_ms == when:
                return when
            heapq.heappop(self.timers)
        return 0

    def exists(self, path: str) -> bool:
        return entity_key(path) in self.queues

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
            self._detach(command)
        elif isinstance(command, Undelivered):
            self._undelivered(command, decided)
        else:
            assert isinstance(command, DiskNearlyFull), "a command of no known kind"
            self.is_disk_full = command.is_full

    def _serve_touched(self, decided: Decided) -> None:
        at = 0
        while at < len(decided.touched):  # serving may touch a dead-letter queue
            queue = decided.touched[at]
            assert isinstance(queue, Queue)
            at += 1
            queue.serve(decided)
        for queue in decided.touched:
            assert isinstance(queue, Queue)
            queue.is_touched = False
            if queue.is_changed:
                queue.is_changed = False
                decided.turn.counters[queue.entity_id] = queue.counters.copy()
            due_ms = queue.due_ms()
            if due_ms != 0 and (queue.timer_ms == 0 or due_ms < queue.timer_ms):
                queue.timer_ms = due_ms
                heapq.heappush(self.timers, (due_ms, queue.entity_id))

    def _fire_timers(self, decided: Decided) -> None:
        while self.timers and self.timers[0][0] <= decided.now_ms:
            when, entity_id = heapq.heappop(self.timers)
            queue = self.queues_by_id.get(entity_id)
            if queue is None or queue.timer_ms != when:
                continue
            queue.timer_ms = 0
            decided.touch(queue)
            queue.expire_locks(decided)
            if queue.next_due_ms != NEVER and queue.next_due_ms <= decided.now_ms and not queue.is_sweeping_due:
                queue.is_sweeping_due = True
                queue.loads.add(SweepDue(queue), decided)
            if (
                queue.next_expiry_ms != NEVER
                and queue.next_expiry_ms <= decided.now_ms
                and not queue.is_sweeping_expired
            ):
                queue.is_sweeping_expired = True
                queue.loads.add(SweepExpired(queue), decided)

    # -- links ------------------------------------------------------------------------------------------------

    def _send(self, command: Send, decided: Decided) -> None:
        queue = self.senders.get(command.link_id)
        if queue is None:
            return  # the link was ended by us while the send was on its way: nobody waits for it
        error = self._refuse_send(queue, command.messages)
        if error is None:
            self._admit(queue, command.messages, decided)
        if not command.is_settled:
            decided.say(SendSettled(command.link_id, command.delivery_id, error))

    def _refuse_send(self, queue: Queue, messages: list[Message]) -> BrokerError | None:
        error = self.faults.find(queue.path, faults.SEND)
        if error is not None:
            return error
        if self.is_disk_full:
            return ServerBusy(
                "The disk of the broker is nearly full: messages can be received and settled, not sent. "
                "Try again in 10 seconds, when messages were received or space was freed."
            )
        return queue.refuse_send(messages)

    def _admit(self, queue: Queue, messages: list[Message], decided: Decided) -> list[int]:
        """One group. A ping is answered and never stored (contract F2)."""
        group: list[Record] = []
        numbers: list[int] = []
        for message in messages:
            if not message.is_ping:
                numbers.append(queue.admit(message, group, decided.now_ms))
        decided.remember(group)
        decided.touch(queue)
        return numbers

    def _settle(self, command: Settle, decided: Decided) -> None:
        queue = self.received_from.get(command.link_id)
        if queue is None:
            return
        error = self.faults.find(queue.path, faults.SETTLE)
        if error is None:
            error = self._settle_token(queue, command.lock_token, command.settlement, decided)
        if not command.is_settled:
            decided.say(Settled(command.link_id, command.delivery_id, command.settlement.kind, error))

    def _settle_token(self, queue: Queue, token: bytes, settlement: Settlement, decided: Decided) -> BrokerError | None:
        error = queue.refuse_settlement(settlement)
        if error is not None:
            return error
        lock = queue.locks.remove(token)
        if lock is None:
            return _lock_lost(queue)
        queue.settle(lock, settlement, decided)
        decided.touch(queue)
        return None

    def _credit(self, command: Credit, decided: Decided) -> None:
        link = self.receivers.get(command.link_id)
        if link is None:
            return
        link.limit = command.limit
        if command.drains:
            link.drains = True
        decided.touch(self.received_from[command.link_id])

    def _attach_sender(self, command: AttachSender, decided: Decided) -> None:
        queue = self.queues.get(entity_key(command.path))
        error = self._refuse_attach(queue, command.path)
        if error is None and queue is not None and queue.parent is not None:
            error = NotAllowed(f"'{queue.path}' is a dead-letter queue: it is received from, never sent to.")
        if error is not None or queue is None:
            decided.say(Refused(command.link_id, error or entity_not_found(self.name, command.path)))
            return
        self.senders[command.link_id] = queue
        queue.sender_link_ids[command.link_id] = True
        decided.say(Attached(command.link_id))

    def _attach_receiver(self, command: AttachReceiver, decided: Decided) -> None:
        queue = self.queues.get(entity_key(command.path))
        error = self._refuse_attach(queue, command.path)
        if error is not None or queue is None:
            decided.say(Refused(command.link_id, error or entity_not_found(self.name, command.path)))
            return
        link = ReceiverLink(command.link_id, command.deletes)
        self.receivers[command.link_id] = link
        self.received_from[command.link_id] = queue
        queue.receivers.add(link)
        decided.say(Attached(command.link_id))

    def _refuse_attach(self, queue: Queue | None, path: str) -> BrokerError | None:
        if queue is None:
            return entity_not_found(self.name, path)
        return self.faults.find(queue.path, faults.ATTACH)

    def _detach(self, command: Detach) -> None:
        queue = self.senders.pop(command.link_id, None)
        if queue is not None:
            queue.sender_link_ids.pop(command.link_id, None)
            return
        link = self.receivers.pop(command.link_id, None)
        if link is not None:
            self.received_from.pop(command.link_id).receivers.remove(link)

    def _undelivered(self, command: Undelivered, decided: Decided) -> None:
        queue = self.queues.get(entity_key(command.path))
        if queue is None:
            return
        lock = queue.locks.remove(command.lock_token)
        if lock is not None:
            queue.settle(lock, self.release, decided)
            decided.touch(queue)

    # -- requests ---------------------------------------------------------------------------------------------

    def _request(self, request: Request, decided: Decided) -> None:
        if isinstance(request, CreateQueue):
            self._create(request, decided)
            return
        if isinstance(request, PlantFault):
            self.faults.plant(request.path, request.operation, request.error)
            decided.say(Done(request.request_id))
            return
        queue = self.queues.get(entity_key(request.path))
        if queue is None:
            decided.say(Failed(request.request_id, entity_not_found(self.name, request.path)))
        elif isinstance(request, UpdateQueue):
            self._update(queue, request, decided)
        elif isinstance(request, DeleteEntity):
            self._delete(queue, request, decided)
        else:
            error = self.faults.find(queue.path, faults.MANAGEMENT)
            if error is None:
                self._manage(queue, request, decided)
            else:
                decided.say(Failed(request.request_id, error))

    def _manage(self, queue: Queue, request: Request, decided: Decided) -> None:
        """The operations of `$management`."""
        decided.touch(queue)
        if isinstance(request, RenewLocks):
            self._renew(queue, request, decided)
        elif isinstance(request, UpdateDisposition):
            self._update_disposition(queue, request, decided)
        elif isinstance(request, Peek):
            Loads(self.load_numbers, self.loads).add(
                BrowseStep(queue, request), decided
            )  # changes nothing: no queueing
        elif isinstance(request, Schedule):
            error = self._refuse_send(queue, request.messages)
            if error is None:
                decided.say(Scheduled(request.request_id, self._admit(queue, request.messages, decided)))
            else:
                decided.say(Failed(request.request_id, error))
        elif isinstance(request, CancelScheduled):
            queue.loads.add(CancelStep(queue, request), decided)
        elif isinstance(request, ReceiveDeferred):
            queue.loads.add(ReceiveDeferredStep(queue, request), decided)
        else:
            assert isinstance(request, BatchDelete), "a request of no known kind"
            queue.loads.add(BatchDeleteStep(queue, request), decided)

    def _renew(self, queue: Queue, request: RenewLocks, decided: Decided) -> None:
        locks: list[Lock] = []
        for token in request.lock_tokens:
            lock = queue.locks.get(token)
            if lock is None:
                decided.say(Failed(request.request_id, _lock_lost(queue)))
                return
            locks.append(lock)
        until_ms = decided.now_ms + queue.settings.lock_duration_ms
        for lock in locks:
            queue.locks.renew(lock, until_ms)
        decided.say(Renewed(request.request_id, [until_ms] * len(locks)))

    def _update_disposition(self, queue: Queue, request: UpdateDisposition, decided: Decided) -> None:
        error = self.faults.find(queue.path, faults.SETTLE)
        if error is None:
            error = queue.refuse_settlement(request.settlement)
        if error is None:
            for token in request.lock_tokens:
                if queue.locks.get(token) is None:
                    error = _lock_lost(queue)
        if error is not None:
            decided.say(Failed(request.request_id, error))
            return
        for token in request.lock_tokens:
            self._settle_token(queue, token, request.settlement, decided)
        decided.say(Done(request.request_id))

    def _loaded(self, command: Loaded, decided: Decided) -> None:
        loads = self.loads.pop(command.load_id, None)
        if loads is None:
            return  # its entity was deleted meanwhile
        loads.on_loaded(command.rows, decided)
        queue = loads.owner
        if queue is not None:
            decided.touch(queue)

    # -- entities ---------------------------------------------------------------------------------------------

    def _create(self, request: CreateQueue, decided: Decided) -> None:
        error = self._refuse_create(request.path)
        if error is not None:
            decided.say(Failed(request.request_id, error))
            return
        queue_id = self.last_entity_id + 1
        self.last_entity_id += 2
        path = request.path.strip("/")
        queue = self._add_queue(queue_id, path, request.settings, None)
        dead_letters = self._add_queue(queue_id + 1, dead_letter_path(path), request.settings, queue)
        self._remember_settings(queue, dead_letters, decided)
        decided.say(Done(request.request_id))

    def _refuse_create(self, path: str) -> BrokerError | None:
        problem = name_problem(path.strip("/"))
        if problem is not None:
            return ArgumentError(f"'{path}' cannot be the name of a queue: {problem}.")
        if self.exists(path):
            return EntityAlreadyExists(f"'{path}' exists already in the namespace '{self.name}'.")
        if len(self.queues) >= limits.ENTITIES_MAX:
            return QuotaExceeded(
                f"The namespace '{self.name}' has {limits.ENTITIES_MAX} entities, the most it may have."
            )
        return None

    def _update(self, queue: Queue, request: UpdateQueue, decided: Decided) -> None:
        """Locks are lost when an entity changes (contract H16)."""
        dead_letters = queue.dead_letters
        if dead_letters is None:
            error = NotAllowed(f"'{queue.path}' takes its settings from the queue it belongs to.")
            decided.say(Failed(request.request_id, error))
            return
        for changed in (queue, dead_letters):
            changed.settings = request.settings
            changed.drop_locks()
            decided.touch(changed)
        self._remember_settings(queue, dead_letters, decided)
        decided.say(Done(request.request_id))

    def _remember_settings(self, queue: Queue, dead_letters: Queue, decided: Decided) -> None:
        settings = queue.settings.to_json()
        decided.remember(
            [
                EntityPut(queue.entity_id, QUEUE, queue.path, settings, 0),
                EntityPut(dead_letters.entity_id, DEAD_LETTER_QUEUE, dead_letters.path, settings, queue.entity_id),
            ]
        )

    def _delete(self, queue: Queue, request: DeleteEntity, decided: Decided) -> None:
        dead_letters = queue.dead_letters
        if dead_letters is None:
            error = NotAllowed(f"'{queue.path}' goes when the queue it belongs to is deleted.")
            decided.say(Failed(request.request_id, error))
            return
        group: list[Record] = []
        for gone in (dead_letters, queue):
            self._forget(gone, decided)
            group.append(EntityRemoved(gone.entity_id))
        decided.remember(group)
        decided.say(Done(request.request_id))

    def _forget(self, queue: Queue, decided: Decided) -> None:
        """Its links are detached, whoever waits for its rows hears that it is gone."""
        error = entity_not_found(self.name, queue.path)
        for link_id in list(queue.sender_link_ids):
            del self.senders[link_id]
            decided.say(Detached(link_id, error))
        for link in list(queue.receivers.links):
            del self.receivers[link.link_id]
            del self.received_from[link.link_id]
            decided.say(Detached(link.link_id, error))
        queue.receivers.links.clear()
        queue.loads.abort(error, decided)
        queue.locks.take_all()
        queue.window.clear()
        queue.is_changed = False
        decided.turn.counters.pop(queue.entity_id, None)
        del self.queues[entity_key(queue.path)]
        del self.queues_by_id[queue.entity_id]

    def _recover(self, row: EntityRow) -> None:
        put = row.put
        parent = self.queues_by_id.get(put.parent_id)
        assert put.kind == QUEUE or parent is not None, "a dead-letter queue comes after its queue"
        queue = self._add_queue(put.entity_id, put.path, settings_from_json(put.settings), parent)
        queue.begin(row.counters, row.next_due_ms, row.next_expiry_ms)
        due_ms = queue.due_ms()
        if due_ms != 0:
            queue.timer_ms = due_ms
            heapq.heappush(self.timers, (due_ms, queue.entity_id))

    def _add_queue(self, entity_id: int, path: str, settings: QueueSettings, parent: Queue | None) -> Queue:
        loads = Loads(self.load_numbers, self.loads)
        queue = Queue(entity_id, path, settings, parent, self.tokens, self.budget, loads)
        loads.owner = queue
        queue.refill_step = Refill(queue)
        if parent is not None:
            parent.dead_letters = queue
        self.queues[entity_key(path)] = queue
        self.queues_by_id[entity_id] = queue
        return queue


def _lock_lost(queue: Queue) -> BrokerError:
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue "
        f"'{queue.path}'."
    )
