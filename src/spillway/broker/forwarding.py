"""Auto-forwarding: a queue or subscription that passes its messages on to a queue or topic, and dead letters likewise.

A forwarded message leaves its place and arrives at the other in one group. It is admitted there as any send is: its
time to live starts anew, nothing is counted against it; its first number is kept. What the destination refuses (it is
disabled, full or gone) is dead-lettered where it came from, as on Azure; dead letters wait in their queue instead and
are tried again, and so does everything while the disk is full. Of a duplicate, where the destination looks for them,
nothing is left. A few hundred are passed on in one turn, read from the store like those for a receiver: a backlog of
any depth costs time, not memory.
"""

from typing import Final

from spillway.broker.decided import Decided
from spillway.broker.duplicates import Duplicates, Waiting
from spillway.broker.entity import Entity, Origin
from spillway.broker.incidents import Apart
from spillway.broker.loads import LoadStep
from spillway.broker.queue import REASON_SESSION, Forwarder, Queue, QueueSessions, with_reason
from spillway.broker.topic import PropertyAccess, Subscription, Topic
from spillway.model import limits
from spillway.model.entity import EntitySettings, entity_key
from spillway.model.errors import ArgumentError, BrokerError, EntityDisabled, EntityNotFound, NotAllowed, QuotaExceeded
from spillway.model.message import Message, Overlay, StoredMessage
from spillway.model.records import MessageRemoved, Query, Record

REASON_HOPS: Final = "MaxTransferHopCountExceeded"
HOPS_TEXT: Final = "The maximum number of allowed hops when forwarding between queues has been exceeded."
RETRY_MS: Final = 5_000  # until a destination that took no dead letter is tried again


def target_of(settings: EntitySettings, is_dead_letters: bool) -> str:
    """Where such an entity passes its messages on to; "" if it keeps them."""
    return settings.forward_dead_letters_to if is_dead_letters else settings.forward_to


def refuse_forwarded(path: str, settings: EntitySettings, is_dead_letters: bool) -> BrokerError | None:
    """Nobody receives from what passes its messages on."""
    target = target_of(settings, is_dead_letters)
    if not target:
        return None
    return NotAllowed(
        "Cannot create a message receiver on an entity with auto-forwarding enabled. "
        f"'{path}' passes its messages on: receive from '{target}'."
    )


def refuse_forwards(
    path: str, settings: EntitySettings, queues: dict[str, Queue], topics: dict[str, Topic]
) -> BrokerError | None:
    """What is against the destinations that an entity is to have."""
    if settings.forward_to and settings.requires_session and not settings.is_partitioned:
        return ArgumentError(
            f"'{path}' cannot have both RequiresSession and ForwardTo: messages of sessions are not forwarded."
        )
    for name, target in (
        ("ForwardTo", settings.forward_to),
        ("ForwardDeadLetteredMessagesTo", settings.forward_dead_letters_to),
    ):
        if not target:
            continue
        key = entity_key(target)
        queue = queues.get(key)
        is_queue = queue is not None and queue.parent is None and not isinstance(queue, Subscription)
        if not is_queue and key not in topics:
            return ArgumentError(
                f"The auto forwarding destination entity does not exist: {name} of '{path}' is '{target}'. "
                "Name a queue or topic of this namespace, and create it first."
            )
    return None


class Forwarding(Forwarder):
    """Forwarding of one queue, subscription or dead-letter queue. The destination is found by its name each time."""

    def __init__(
        self,
        queue: Queue,
        queues: dict[str, Queue],
        topics: dict[str, Topic],
        apart: dict[str, Apart],
        access: PropertyAccess,
        sessions: QueueSessions | None,
    ) -> None:
        self.queue = queue
        self.sessions = sessions  # that it has when it no longer forwards
        self.queues = queues
        self.topics = topics
        self.apart = apart  # destinations that are out of service for a moment: messages wait for them
        self.access = access
        self.retry_ms = 0
        self.is_stopping = False
        self.waiting: WaitingForward | None = None  # until the destination knows whether they are duplicates

    def due_ms(self) -> int:
        return self.retry_ms

    def run(self, decided: Decided) -> None:
        queue = self.queue
        if self.is_stopping or queue.lane.is_closed or not queue.settings.may_receive():
            return
        if decided.now_ms < self.retry_ms or self.waiting is not None:
            return
        self.retry_ms = 0
        target = self._target()
        if target is None and self._is_apart():
            self.retry_ms = decided.now_ms + RETRY_MS
            return
        has_served = False
        while decided.chores_left > 0:
            stored = queue.pop_next(queue.lane, decided)
            if stored is None:
                queue.ask_for_more(queue.lane, decided)
                return
            has_served = True
            decided.chores_left -= limits.COPY_STEPS
            if target is not None and target.duplicates is not None:
                if not target.duplicates.knows([stored.message], decided.now_ms):
                    self._enqueue(stored, target.duplicates, decided)
                    return
            if not self._pass_on(stored, target, decided):
                return
        decided.continue_later(queue, has_served)  # other entities first, then this one again

    def _enqueue(self, first: StoredMessage, duplicates: Duplicates, decided: Decided) -> None:
        """The store must be asked, for as many as would be passed on together."""
        queue = self.queue
        waiting = WaitingForward(self)
        stored: StoredMessage | None = first
        while stored is not None:
            waiting.add(stored)
            if len(waiting.stored) >= limits.FORWARD_MESSAGES:
                break
            stored = queue.pop_next(queue.lane, decided)
        duplicates.knows(waiting.messages, decided.now_ms)
        self.waiting = waiting
        duplicates.enqueue(waiting, decided)

    def resume(self, waiting: "WaitingForward", decided: Decided) -> None:
        """Messages that waited are passed on, or requeued if nothing is passed on any more."""
        if self.waiting is waiting:
            self.waiting = None
        queue = self.queue
        if queue.lane.is_closed:
            return
        decided.mark_ready(queue)
        is_going = queue.forwarder is self and not self.is_stopping and not self._is_apart()
        target = self._target()
        for stored in waiting.stored:
            if not is_going:
                queue.lane.window.requeue(stored.sequence_number)
            elif not self._pass_on(stored, target, decided):
                is_going = False

    def abandon(self, waiting: "WaitingForward", decided: Decided) -> None:
        """The destination is gone: the messages that waited are looked at again."""
        self.waiting = None
        if not self.queue.lane.is_closed:
            for stored in waiting.stored:
                self.queue.lane.window.requeue(stored.sequence_number)
            decided.mark_ready(self.queue)

    def stop(self, decided: Decided) -> None:
        """Messages are received here again, once nothing that was asked of the store is on its way."""
        self.is_stopping = True
        self.queue.loads.add(Restart(self), decided)

    def _is_apart(self) -> bool:
        return entity_key(target_of(self.queue.settings, self.queue.parent is not None)) in self.apart

    def _target(self) -> Entity | None:
        key = entity_key(target_of(self.queue.settings, self.queue.parent is not None))
        queue = self.queues.get(key)
        return self.topics.get(key) if queue is None else queue

    def _pass_on(self, stored: StoredMessage, target: Entity | None, decided: Decided) -> bool:
        """False: this one must wait, and the others with it."""
        if not decided.may_write(len(stored.message.raw)):
            self.queue.lane.window.requeue(stored.sequence_number)
            self.retry_ms = decided.now_ms + RETRY_MS
            return False
        overlay = Overlay() if stored.overlay is None else stored.overlay.copy()
        if overlay.hops >= limits.FORWARD_HOPS_MAX:
            if self.queue.parent is None:
                self._dead_letter(stored, REASON_HOPS, HOPS_TEXT, decided)
            return True  # a dead letter stays where it is, and the others go on
        error = self._refusal(stored.message, target, decided.now_ms)
        if error is None:
            assert target is not None, "what is not there was refused"
            overlay.hops += 1
            self._move(stored, overlay, target, decided)
            return True
        if self.queue.parent is None:
            self._dead_letter(stored, reason_of(error), error.description, decided)
            return True
        self.queue.lane.window.requeue(stored.sequence_number)
        self.retry_ms = decided.now_ms + RETRY_MS
        return False

    def _refusal(self, message: Message, target: Entity | None, now_ms: int) -> BrokerError | None:
        if target is None:
            wanted = target_of(self.queue.settings, self.queue.parent is not None)
            return EntityNotFound(f"The auto forwarding destination entity '{wanted}' does not exist.")
        return target.refuse_new([message], now_ms)

    def _move(self, stored: StoredMessage, overlay: Overlay, target: Entity, decided: Decided) -> None:
        message = stored.message
        if isinstance(target, Topic):
            message = self.access.merge(message, overlay)  # its rules see what they would of a message just sent
            if message is not stored.message:
                overlay.clear_properties()
                overlay.dead_letter_reason = None
                overlay.dead_letter_description = None
                message.digest = stored.message.digest
        decided.mark_ready(target)
        group = self._leave(stored)
        target.admit(message, group, decided, Origin(stored.enqueue_sequence_number, overlay))
        target.metered(decided).send(len(message.raw))  # a hop is charged like a send
        decided.remember(group)

    def _leave(self, stored: StoredMessage) -> list[Record]:
        queue = self.queue
        queue.uncount(len(stored.message.raw), stored.state)
        return [MessageRemoved(queue.entity_id, stored.sequence_number, stored.session_id)]

    def _dead_letter(self, stored: StoredMessage, reason: str, text: str, decided: Decided) -> None:
        queue = self.queue
        size = len(stored.message.raw)
        queue.uncount(size, stored.state)
        group: list[Record] = []
        overlay = with_reason(stored.overlay, reason, text[: limits.DEAD_LETTER_TEXT_CHARS_MAX])
        queue.dead_letter(stored.sequence_number, size, stored.delivery_count, overlay, group, decided)
        decided.remember(group)


class WaitingForward(Waiting):
    """Messages taken out of the line of their queue. They are still in the store."""

    def __init__(self, forwarding: Forwarding) -> None:
        super().__init__([])
        self.forwarding = forwarding
        self.stored: list[StoredMessage] = []

    def add(self, stored: StoredMessage) -> None:
        self.stored.append(stored)
        self.messages.append(stored.message)

    def resume(self, decided: Decided) -> None:
        self.forwarding.resume(self, decided)

    def abort(self, error: BrokerError, decided: Decided) -> None:
        self.forwarding.abandon(self, decided)


class Restart(LoadStep):
    """Has its queue read its messages from the beginning again: those that could not be passed on are still there."""

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding

    def query(self, decided: Decided) -> Query | None:
        queue = self.forwarding.queue
        if queue.forwarder is self.forwarding and self.forwarding.is_stopping:
            queue.forwarder = None
            if self.forwarding.waiting is not None:
                self.forwarding.waiting.stored.clear()  # read from the store again with all others
            queue.lane.window.restart(queue.counters.last_sequence_number)
            queue.sessions = self.forwarding.sessions
            decided.mark_ready(queue)
        return None


def reason_of(error: BrokerError) -> str:
    """The reason in the words of the service, which are .NET's."""
    if isinstance(error, EntityDisabled):
        return "MessagingEntityDisabledException"
    if isinstance(error, EntityNotFound):
        return "MessagingEntityNotFoundException"
    if isinstance(error, QuotaExceeded):
        return "QuotaExceededException"
    if isinstance(error, NotAllowed):
        return REASON_SESSION  # what a destination that requires sessions has against a message
    return type(error).__name__
