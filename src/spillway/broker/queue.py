"""One queue: takes messages in, hands them out under locks, settles them.

A dead-letter queue is a queue too: it belongs to its `parent`, takes no sends, and its messages neither expire nor move
on. What needs rows from the store is in `refill` (the window), `sweeps` (due and expired messages) and `by_number`.
"""

from typing import Final

from spillway.broker.commands import ASKS_MORE, ASKS_NOTHING
from spillway.broker.decided import Decided
from spillway.broker.effects import Deliver, Drained, Paced
from spillway.broker.entity import Entity, Origin, Usage, earlier
from spillway.broker.faults import NO_FAULTS, Faults
from spillway.broker.lane import Lane, ReceiverLink
from spillway.broker.loads import Loads
from spillway.broker.locks import Lock, LockShare, LockTokens
from spillway.broker.pace import Pace, may_pause
from spillway.broker.throttle import RESUME_MS, Throttle
from spillway.broker.window import ResidentBudget
from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.errors import ArgumentOutOfRange, BrokerError, NotAllowed, ServerBusy
from spillway.model.ledger import EMPTY_RECEIVE
from spillway.model.message import ACTIVE, DEFERRED, HIDDEN, NEVER, Message, Overlay, StoredMessage
from spillway.model.quotas import Quotas
from spillway.model.records import EntityRow, MessageAdded, MessageChanged, MessageMoved, MessageRemoved, Record
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement

REASON_DELIVERIES: Final = "MaxDeliveryCountExceeded"
REASON_EXPIRED: Final = "TTLExpiredException"
REASON_SESSION: Final = "Session ID is null."  # Azure's words


NO_THROTTLE: Final = Throttle("", Quotas())


def locked_out(queue: "Queue") -> BrokerError:
    return ServerBusy(
        f"The locks on messages of '{queue.path}' take as much of the broker's memory as they may (limit memory-mb). "
        "Settle some of them, or wait 10 seconds and try again."
    )


class QueueSessions:
    """What a queue asks of its message sessions; see message_sessions.py."""

    def __init__(self) -> None:
        self.locked: dict[str, Lane] = {}  # by session id
        self.ending: dict[str, Lane] = {}  # those of them whose lock runs, the one that ends first in front
        self.dirty: dict[str, Lane] = {}  # to be served at the end of this turn

    def enqueue(self, stored: StoredMessage, decided: Decided) -> None:
        """A new message of a session."""

    def serve(self, decided: Decided) -> None:
        """At the end of a turn."""

    def refill(self, lane: Lane, decided: Decided) -> None:
        """The lane of a session wants messages from the store."""

    def locked_until_ms(self, lane: Lane) -> int:
        return 0

    def is_over(self, lane: Lane, now_ms: int) -> bool:
        """Whether the lock of a session has run out, while those of its messages are being taken away."""
        return False

    def on_time(self, decided: Decided) -> None:
        """Something is due."""

    def revoke(self, lane: Lane, decided: Decided) -> None:
        """This session is lost: its receiver is told, its messages are back in their place, uncounted."""

    def revoke_all(self, decided: Decided) -> None:
        """Every session is lost."""

    def unregister_receivers(self) -> list[int]:
        """Receivers leave, and whoever ends them says so; the numbers of those that still waited for a session."""
        return []

    def reappear(self, stored: StoredMessage, decided: Decided) -> None:
        """A message of a session that was hidden so far."""

    def due_ms(self) -> int:
        return 0


class Forwarder:
    """What a queue asks of who passes its messages on; see forwarding.py."""

    def run(self, decided: Decided) -> None:
        """At the end of a turn."""

    def due_ms(self) -> int:
        return 0


class Queue(Entity):
    def __init__(
        self,
        entity_id: int,
        path: str,
        settings: EntitySettings,
        parent: "Queue | None",
        tokens: LockTokens,
        budget: ResidentBudget,
        loads: Loads,
        usage: Usage,
    ) -> None:
        super().__init__(entity_id, path, settings, loads, usage)
        self.parent = parent  # of a dead-letter queue
        self.is_part = parent is not None
        self.dead_letters: Queue | None = None  # None on a dead-letter queue
        self.locked = LockShare(budget.locks)
        self.lane = Lane(budget, None, self.locked)  # of a queue without sessions; else nothing is ever in it
        self.sessions: QueueSessions | None = (
            None  # set by the directory where they are required and nothing is forwarded
        )
        self.forwarder: Forwarder | None = None  # set by the directory where messages are passed on
        self.tokens = tokens
        self.faults: Faults = NO_FAULTS  # the namespace's, set by the directory
        self.throttle: Throttle = NO_THROTTLE  # and so is this
        self.pace = Pace()  # of its senders
        self.next_expiry_ms: int = NEVER  # no waiting message expires before this
        self.is_sweeping_expired = False
        self.overdue: set[int] = set()  # expired and passed over: there was no space to dead-letter them

    def recover(self, row: EntityRow) -> None:
        super().recover(row)
        self.next_expiry_ms = row.next_expiry_ms
        if row.counters.active > 0:
            self.lane.window.begin_cold(row.counters.last_sequence_number)
        else:
            self.lane.window.upto = row.counters.last_sequence_number

    # -- taking in ------------------------------------------------------------------------------------------

    def refuse_send(self, messages: list[Message]) -> BrokerError | None:
        if self.parent is not None:
            return NotAllowed(f"'{self.path}' is a dead-letter queue: it is received from, never sent to.")
        error = super().refuse_send(messages)
        if error is not None or not self.settings.requires_session:
            return error
        for message in messages:
            if message.session_id is None and not message.is_ping:
                return NotAllowed(session_text(self.path))
        return None

    def enqueue(
        self, message: Message, number: int, group: list[Record], decided: Decided, origin: Origin | None
    ) -> None:
        if origin is None:
            self.accept(message, number, number, None, group, decided)
        else:
            self.accept(message, number, origin.first_number, origin.overlay, group, decided)

    def accept(
        self,
        message: Message,
        number: int,
        first_number: int,
        overlay: Overlay | None,
        group: list[Record],
        decided: Decided,
    ) -> None:
        """`first_number` is the one it had where it was sent to: in a topic, in what passed it on, or here."""
        stored = StoredMessage(message, number, decided.now_ms)
        stored.enqueue_sequence_number = first_number
        stored.overlay = overlay
        group.append(MessageAdded(self.entity_id, stored))
        stored.expires_ms = self.expiry_of(message, decided.now_ms)
        if self.faults.hiding and self._is_hidden(stored, decided.now_ms):
            return
        self.count(len(message.raw), ACTIVE)
        if stored.expires_ms != NEVER:
            self.note_expiry(stored.expires_ms)
        self._enqueue_in_lane(stored, decided)

    def _is_hidden(self, stored: StoredMessage, now_ms: int) -> bool:
        """A fault may keep it out of sight for a while; it has its number, and its place among the others."""
        until_ms = self.faults.hidden_until_ms(self.path, now_ms)
        if until_ms == NEVER:
            return False
        stored.state = HIDDEN
        stored.due_ms = until_ms
        stored.session_id = self.session_of(stored.message)
        self.count(len(stored.message.raw), HIDDEN)
        self.note_due(until_ms)
        return True

    def _reappear(self, stored: StoredMessage, decided: Decided) -> None:
        """A hidden message appears where it would be if it had never been hidden, as old as it is."""
        stored.state = ACTIVE
        stored.due_ms = NEVER
        self.is_changed = True
        self.counters.hidden -= 1
        self.counters.active += 1
        record = MessageChanged(self.entity_id, stored.sequence_number, ACTIVE, stored.delivery_count, stored.overlay)
        decided.remember([record])
        if stored.expires_ms != NEVER:
            self.note_expiry(stored.expires_ms)
        if self.sessions is None:
            self.lane.window.insert(stored)
        else:
            self.sessions.reappear(stored, decided)

    def _enqueue_in_lane(self, stored: StoredMessage, decided: Decided) -> None:
        """A message goes to the tail of its lane."""
        if self.sessions is None:
            if self.forwarder is not None:
                stored.session_id = self.session_of(stored.message)
            self.lane.window.append(stored)
        else:
            stored.session_id = stored.message.session_id
            self.sessions.enqueue(stored, decided)

    def session_of(self, message: Message) -> str | None:
        """The session that a message is stored under; also while the queue forwards, and has but one lane."""
        return message.session_id if self.settings.requires_session and not self.is_part else None

    def lacks_session(self, message: Message) -> bool:
        """Whether no receiver could ever be given it: refused where it is sent to, a dead letter of a subscription."""
        return message.session_id is None and self.settings.requires_session and self.parent is None

    def activate(self, stored: StoredMessage, decided: Decided) -> None:
        """A scheduled one joins the tail with a new number; its first one is kept, and its life starts now."""
        if self.lacks_session(stored.message):  # of a store that an earlier version wrote
            self._dead_letter_without_session(stored, decided)
            return
        if stored.state == HIDDEN:
            self._reappear(stored, decided)
            return
        old_number = stored.sequence_number
        self.counters.scheduled -= 1
        self.counters.active += 1
        stored.sequence_number = self.next_number()
        stored.state = ACTIVE
        stored.due_ms = NEVER
        stored.enqueued_ms = decided.now_ms
        stored.expires_ms = self.expiry_of(stored.message, decided.now_ms)
        if stored.expires_ms != NEVER:
            self.note_expiry(stored.expires_ms)
        stored.session_id = self.session_of(stored.message)
        record = MessageMoved(
            self.entity_id,
            old_number,
            self.entity_id,
            stored.sequence_number,
            stored.enqueued_ms,
            stored.expires_ms,
            stored.delivery_count,
            stored.overlay,
            stored.session_id,
        )
        record.size_bytes += len(stored.message.raw)
        decided.remember([record])
        self._enqueue_in_lane(stored, decided)

    def _dead_letter_without_session(self, stored: StoredMessage, decided: Decided) -> None:
        size = len(stored.message.raw)
        group: list[Record] = []
        self.uncount(size, stored.state)
        overlay = with_reason(stored.overlay, REASON_SESSION, session_text(self.path))
        self.dead_letter(stored.sequence_number, size, stored.delivery_count, overlay, group, decided)
        decided.remember(group)

    def note_expiry(self, expires_ms: int) -> None:
        if self.next_expiry_ms == NEVER or expires_ms < self.next_expiry_ms:
            self.next_expiry_ms = expires_ms

    # -- handing out ----------------------------------------------------------------------------------------

    def serve(self, decided: Decided) -> None:
        if self.forwarder is not None:
            self.forwarder.run(decided)
        elif self.sessions is None:
            self.serve_lane(self.lane, decided)
        else:
            self.sessions.serve(decided)

    def serve_lane(self, lane: Lane, decided: Decided) -> None:
        """Hand out what there is to whoever has credit, a few messages a link at a time; then answer drains."""
        left = limits.DELIVERIES_PER_TURN_MAX
        lane.locks.note()
        is_locked_out = not self.locked.has_room()  # looked at once a turn: one turn's deliveries are few
        share = self.share
        if share is not None:
            left = share.deliverable(decided.now_ms)
        most = left
        has_served = True
        while has_served and left > 0:
            has_served = False
            for link in lane.receivers.rotation():
                if is_locked_out and not link.deletes:
                    continue
                for _ in range(min(limits.DELIVERIES_PER_VISIT_MAX, left)):
                    if link.handed_count >= link.limit or link.locked_count >= limits.UNSETTLED_PER_LINK_MAX:
                        break
                    stored = self.pop_next(lane, decided)
                    if stored is None:
                        break
                    self._hand_to(link, stored, decided)
                    left -= 1
                    has_served = True
        if share is not None:
            share.charge(most - left)
        if self.sessions is None:
            if left < most:
                self.pace.count(most - left, decided.now_ms)
            self.pace_senders(decided)
        if has_served and most == limits.DELIVERIES_PER_TURN_MAX:
            self.mark_lane_ready(lane, decided)
            decided.unfinished.append(self)  # other entities first, then this one again
            return
        if lane.receivers.are_waiting():
            if is_locked_out:
                self.throttle.add_throttled(lane, self, decided.now_ms + RESUME_MS)
            elif has_served and share is not None:
                share.mark_throttled(lane, self, decided.now_ms)
            self.ask_for_more(lane, decided)
        for link in lane.receivers.links:
            if link.drains and (not lane.is_refilling or link.handed_count >= link.limit):
                link.drains = False
                link.limit = link.handed_count
                self.end_call(link, decided)
                decided.emit(Drained(link.link_id, link.credit_number))

    def pace_senders(self, decided: Decided) -> None:
        """Senders that outrun the receivers are paused for a moment, and resumed; see pace.py."""
        pace = self.pace
        lane = self.lane
        waiting = self.counters.active - len(lane.locks.by_token)
        if pace.paused:
            if pace.should_resume(lane.window, waiting, decided.now_ms):
                for link_id in pace.resume():
                    decided.emit(Paced(link_id, False))
        elif pace.should_pause(lane.window, waiting, decided.now_ms) and may_pause(len(self.sender_link_ids)):
            pace.pause(list(self.sender_link_ids), decided.now_ms)
            for link_id in pace.paused:
                decided.emit(Paced(link_id, True))

    def mark_lane_ready(self, lane: Lane, decided: Decided) -> None:
        """Something changed for this lane: it is served at the end of the turn."""
        decided.mark_ready(self)
        if self.sessions is not None and lane.session_id is not None:
            self.sessions.dirty[lane.session_id] = lane

    def ask_for_more(self, lane: Lane, decided: Decided) -> None:
        if lane.is_refilling or lane.refill_step is None:
            return
        if lane.window.wants_more() or lane.window.unread_returned(1):
            lane.is_refilling = True
            if self.sessions is None:
                self.loads.add(lane.refill_step, decided)
            else:
                self.sessions.refill(lane, decided)

    def pop_next(self, lane: Lane, decided: Decided) -> StoredMessage | None:
        """The next message in line that has not expired."""
        while True:
            stored = lane.window.pop()
            if stored is None or stored.expires_ms == NEVER or stored.expires_ms > decided.now_ms:
                return stored
            if not self.may_expire(stored, decided):
                self.overdue.add(stored.sequence_number)
                self.note_expiry(stored.expires_ms)
                continue
            group: list[Record] = []
            self.expire(stored, group, decided)
            decided.remember(group)

    def _hand_to(self, link: ReceiverLink, stored: StoredMessage, decided: Decided) -> None:
        link.handed_count += 1
        self.metered(decided).receive(len(stored.message.raw))
        if link.deletes:
            self._delete(stored.sequence_number, len(stored.message.raw), stored.state, stored.session_id, decided)
            decided.emit(Deliver(link.link_id, self.path, stored, b"", 0))
            return
        lock = self.lock(stored, link.lane, link, decided.now_ms)
        decided.emit(Deliver(link.link_id, self.path, stored, lock.token, lock.locked_until_ms))

    def ask(self, link: ReceiverLink, asks: int, decided: Decided) -> None:
        """A client granted credit: a new call to receive, or more for the one that still waits for its first message.

        A call that ends without a delivery is an empty receive, and counted.
        """
        if asks == ASKS_MORE and link.is_asking and link.handed_count == link.asked_at:
            return
        self.end_call(link, decided)
        link.is_asking = asks != ASKS_NOTHING
        link.asked_at = link.handed_count

    def end_call(self, link: ReceiverLink, decided: Decided) -> None:
        if link.is_asking:
            link.is_asking = False
            if link.handed_count == link.asked_at:
                self.metered(decided).count(EMPTY_RECEIVE)

    def lock(self, stored: StoredMessage, lane: Lane, holder: ReceiverLink | None, now_ms: int) -> Lock:
        """Under the session's lock where there are sessions, else for the queue's own time."""
        until_ms = now_ms + self.settings.lock_duration_ms
        if self.sessions is not None:
            until_ms = self.sessions.locked_until_ms(lane)
        lock = Lock(self.tokens.next(), stored, until_ms, holder)
        lane.locks.add(lock)
        return lock

    def is_waiting(self, stored: StoredMessage) -> bool:
        """Whether a message waits, in memory or in the store: it is neither locked nor gone."""
        lane = self.lane_of(stored.session_id)
        return lane is None or lane.window.is_waiting(stored.sequence_number) or stored.sequence_number in self.overdue

    def discard(self, stored: StoredMessage) -> None:
        """A message is gone by another way than delivery."""
        self.overdue.discard(stored.sequence_number)
        lane = self.lane_of(stored.session_id)
        if lane is not None:
            lane.window.remove(stored.sequence_number)

    def lane_of(self, session_id: str | None) -> Lane | None:
        """None: nobody holds this session."""
        if self.sessions is None:
            return self.lane
        return None if session_id is None else self.sessions.locked.get(session_id)

    # -- settling -------------------------------------------------------------------------------------------

    def refuse_settlement(self, settlement: Settlement) -> BrokerError | None:
        if settlement.kind == DEAD_LETTER and self.parent is not None:
            return NotAllowed(f"'{self.path}' is a dead-letter queue: its messages cannot be dead-lettered again.")
        return None

    def refuse_changes(self, lock: Lock, settlement: Settlement) -> BrokerError | None:
        """A message with what was added to it stays a message that could be sent.

        A property that replaces one of the message's own counts beside it: the body is not at hand to look into.
        """
        overlay = _merged(lock.overlay, settlement.properties)
        if overlay is None:
            return None
        changed = overlay.properties_bytes
        if lock.own_properties_bytes + changed > limits.PROPERTIES_BYTES_MAX:
            return ArgumentOutOfRange(
                f"The properties of the message would have {lock.own_properties_bytes + changed} bytes with those to "
                f"modify; at most {limits.PROPERTIES_BYTES_MAX} are allowed. It stays locked: settle it with fewer."
            )
        if lock.size_bytes + changed > limits.MESSAGE_BYTES_MAX:
            return ArgumentOutOfRange(
                f"The message would have {lock.size_bytes + changed} bytes with the properties to modify; at most "
                f"{limits.MESSAGE_BYTES_MAX} are allowed. It stays locked: settle it with fewer."
            )
        return None

    def settle(self, lock: Lock, settlement: Settlement, decided: Decided) -> None:
        """Apply a settlement to a lock that was taken out of the table."""
        kind = settlement.kind
        if kind == COMPLETE:
            self._delete(lock.sequence_number, lock.size_bytes, lock.state, lock.session_id, decided)
            return
        if kind == RELEASE:
            self.requeue(lock)
            return
        overlay = _merged(lock.overlay, settlement.properties)
        group: list[Record] = []
        if kind == ABANDON and self.parent is not None:
            self._abandon_dead_letter(lock, overlay, group)
        elif kind == ABANDON:
            self.fail_delivery(lock, overlay, group, decided)
        elif kind == DEFER:
            self._defer(lock, overlay, group)
        else:
            assert kind == DEAD_LETTER, f"settlement {kind} is none we know"
            self.uncount(lock.size_bytes, lock.state)
            self.dead_letter(
                lock.sequence_number,
                lock.size_bytes,
                lock.delivery_count,
                with_reason(overlay, settlement.reason, settlement.description),
                group,
                decided,
            )
        if group:
            decided.remember(group)

    def requeue(self, lock: Lock) -> None:
        """A locked message is back at its place, not counted as a failed delivery."""
        if lock.state == DEFERRED:
            return
        lane = self.lane_of(lock.session_id)
        if lane is not None:
            lane.window.requeue(lock.sequence_number)
        if lock.expires_ms != NEVER:
            self.note_expiry(lock.expires_ms)

    def fail_delivery(self, lock: Lock, overlay: Overlay | None, group: list[Record], decided: Decided) -> None:
        """Abandoned or lock expired: counted; the last failure moves it to the dead-letter queue (contract H7)."""
        count = lock.delivery_count + 1
        if self.parent is None and count >= self.settings.max_delivery_count:
            text = f"Message could not be consumed after {count} delivery attempts."
            self.uncount(lock.size_bytes, lock.state)
            overlay = with_reason(overlay, REASON_DELIVERIES, text)
            self.dead_letter(lock.sequence_number, lock.size_bytes, count, overlay, group, decided)
            return
        record = MessageChanged(self.entity_id, lock.sequence_number, lock.state, count, overlay)
        record.size_bytes += lock.size_bytes  # the row is written anew
        group.append(record)
        self.requeue(lock)

    def _abandon_dead_letter(self, lock: Lock, overlay: Overlay | None, group: list[Record]) -> None:
        """Not counted, as on Azure: its count tells what happened before it came here. What was changed is kept."""
        if overlay is not lock.overlay:
            record = MessageChanged(self.entity_id, lock.sequence_number, lock.state, lock.delivery_count, overlay)
            record.size_bytes += lock.size_bytes
            group.append(record)
        self.requeue(lock)

    def _defer(self, lock: Lock, overlay: Overlay | None, group: list[Record]) -> None:
        """Counted as a delivery, as on Azure; but it is never the last one."""
        record = MessageChanged(self.entity_id, lock.sequence_number, DEFERRED, lock.delivery_count + 1, overlay)
        record.size_bytes += lock.size_bytes
        group.append(record)
        if lock.state == ACTIVE:
            self.is_changed = True
            self.counters.active -= 1
            self.counters.deferred += 1

    def may_expire(self, stored: StoredMessage, decided: Decided) -> bool:
        """Whether there is space for what becomes of it: a dead letter needs some, one that goes makes some."""
        if not self.settings.dead_letter_on_expiry or self.parent is not None:
            return True
        return decided.may_write(len(stored.message.raw))

    def expire(self, stored: StoredMessage, group: list[Record], decided: Decided) -> None:
        """An unlocked message outlived its time: to the dead-letter queue if so configured, else gone."""
        size = len(stored.message.raw)
        self.uncount(size, stored.state)
        if self.settings.dead_letter_on_expiry and self.parent is None:
            overlay = with_reason(stored.overlay, REASON_EXPIRED, "The message expired and was dead lettered.")
            self.dead_letter(stored.sequence_number, size, stored.delivery_count, overlay, group, decided)
        else:
            session_id = stored.session_id if stored.state == ACTIVE else None
            group.append(MessageRemoved(self.entity_id, stored.sequence_number, session_id))

    def dead_letter(
        self,
        sequence_number: int,
        size_bytes: int,
        delivery_count: int,
        overlay: Overlay,
        group: list[Record],
        decided: Decided,
    ) -> None:
        """Move a message, already taken out of this queue's counters, to the dead-letter queue."""
        target = self.dead_letters
        assert target is not None, "a dead-letter queue has none of its own"
        overlay.dead_letter_source = self.path
        decided.mark_ready(target)
        number = target.next_number()
        target.count(size_bytes, ACTIVE)
        record = MessageMoved(
            self.entity_id,
            sequence_number,
            target.entity_id,
            number,
            decided.now_ms,
            NEVER,
            delivery_count,
            overlay,
        )
        record.size_bytes += size_bytes
        group.append(record)
        target.lane.window.append_cold(number)

    def _delete(
        self, sequence_number: int, size_bytes: int, state: int, session_id: str | None, decided: Decided
    ) -> None:
        if state != ACTIVE:
            session_id = None
        decided.remember([MessageRemoved(self.entity_id, sequence_number, session_id)])
        self.uncount(size_bytes, state)

    # -- time -----------------------------------------------------------------------------------------------

    def on_time(self, decided: Decided) -> None:
        if self.pace.paused:
            self.pace_senders(decided)
        if self.sessions is not None:
            self.sessions.on_time(decided)
        self.expire_locks(
            self.lane.locks.pop_expired(decided.now_ms, decided.chores_left // limits.LOCK_STEPS), decided
        )

    def expire_locks(self, locks: list[Lock], decided: Decided) -> None:
        decided.chores_left -= len(locks) * limits.LOCK_STEPS
        for lock in locks:
            self.expire_lock(lock, decided)

    def find_lock(self, lane: Lane, token: bytes, now_ms: int) -> Lock | None:
        """None if it has ended, also while it waits with many others to be taken away."""
        lock = lane.locks.by_token.get(token)
        if lock is None:
            return None
        is_over = lock.locked_until_ms <= now_ms if self.sessions is None else self.sessions.is_over(lane, now_ms)
        return None if is_over else lock

    def expire_lock(self, lock: Lock, decided: Decided) -> None:
        """A lock ran out: a failed delivery. Not counted of a dead letter, nor on a full disk: it cannot be written."""
        if self.parent is not None or not decided.may_write(lock.size_bytes):
            self.requeue(lock)
            return
        group: list[Record] = []
        self.fail_delivery(lock, lock.overlay, group, decided)
        decided.remember(group)

    def has_locks(self) -> bool:
        return len(self.lane.locks.by_token) > 0 or (self.sessions is not None and len(self.sessions.locked) > 0)

    def revoke_locks(self, decided: Decided) -> None:
        """The entity changed (contract H16): every lock is lost, no delivery is counted."""
        if self.sessions is not None:
            self.sessions.revoke_all(decided)
        for lock in self.lane.locks.pop_all():
            self.requeue(lock)

    def close(self) -> None:
        """The entity is deleted: nothing of it stays in memory."""
        lanes = [self.lane]
        if self.sessions is not None:
            lanes += list(self.sessions.locked.values())
            self.sessions.locked.clear()
            self.sessions.ending.clear()
        for lane in lanes:
            lane.is_closed = True
            lane.receivers.links.clear()
            lane.locks.pop_all()
            lane.window.clear()

    def due_ms(self) -> int:
        due = super().due_ms()
        due = earlier(due, self.lane.locks.earliest_ms)
        due = earlier(due, self.pace.paused_until_ms)
        if not self.is_sweeping_expired:
            due = earlier(due, self.next_expiry_ms)
        if self.sessions is not None:
            due = earlier(due, self.sessions.due_ms())
        if self.forwarder is not None:
            due = earlier(due, self.forwarder.due_ms())
        return due


def _merged(overlay: Overlay | None, properties: dict[str, bytes] | None) -> Overlay | None:
    """A copy with these properties changed; the old one may be on its way to a receiver."""
    if not properties:
        return overlay
    merged = Overlay() if overlay is None else overlay.copy()
    merged.set_properties(properties)
    return merged


def with_reason(overlay: Overlay | None, reason: str | None, description: str | None) -> Overlay:
    copy = Overlay() if overlay is None else overlay.copy()
    copy.dead_letter_reason = reason
    copy.dead_letter_description = description
    return copy


def session_text(path: str) -> str:
    return (
        "The SessionId was not set on a message, and it cannot be sent to the entity. "
        f"'{path}' requires sessions: set one on every message."
    )
