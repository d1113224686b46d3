"""Links by their number, what each sends to or receives from: attached here, and unregistered here."""

from spillway.broker.commands import AttachReceiver, AttachSender
from spillway.broker.decided import Decided
from spillway.broker.directory import Directory
from spillway.broker.effects import Attached, Detached, Refused
from spillway.broker.entity import Entity
from spillway.broker.forwarding import refuse_forwarded
from spillway.broker.lane import ReceiverLink
from spillway.broker.message_sessions import MessageSessions
from spillway.broker.queue import Queue
from spillway.broker.status import refuse_receiver, refuse_sender
from spillway.broker.topic import Subscription
from spillway.model.errors import BrokerError, NotAllowed, QuotaExceeded
from spillway.model.ledger import EMPTY_RECEIVE
from spillway.model.quotas import Quotas


class Links:
    """Sole owner of what it holds."""

    def __init__(self, directory: Directory, quotas: Quotas) -> None:
        self.directory = directory
        self.quotas = quotas
        self.senders: dict[int, Entity] = {}
        self.ended: dict[int, BrokerError] = {}  # senders that were ended and have not gone yet
        self.received_from: dict[int, Queue] = {}
        self.receivers = directory.receiver_links  # of those, the ones that have a lane to receive from

    # -- attaching --------------------------------------------------------------------------------------------

    def find_for_sender(self, command: AttachSender, decided: Decided) -> Entity | None:
        """The entity that a link wants to send to; None if that cannot be, and the link was refused."""
        entity = self.directory.find(command.path)
        if entity is None:
            error = self.directory.not_found(command.path)
        elif isinstance(entity, Queue) and entity.parent is not None:
            error = NotAllowed(f"'{entity.path}' is a dead-letter queue: it is received from, never sent to.")
        elif isinstance(entity, Subscription):
            error = NotAllowed(f"'{entity.path}' is a subscription: send to its topic, '{entity.topic.path}'.")
        else:
            return entity
        decided.emit(Refused(command.link_id, error))
        return None

    def attach_sender(self, entity: Entity, command: AttachSender, decided: Decided) -> None:
        error = refuse_sender(entity)
        if error is None and entity.share is not None:
            error = entity.share.refuse(1, decided.now_ms)
        if error is not None:
            decided.emit(Refused(command.link_id, error))
            return
        self.senders[command.link_id] = entity
        entity.sender_link_ids[command.link_id] = True
        decided.emit(Attached(command.link_id))

    def find_for_receiver(self, command: AttachReceiver, decided: Decided) -> Queue | None:
        """The queue that a link wants to receive from; None if that cannot be, and the link was refused."""
        entity = self.directory.find(command.path)
        if isinstance(entity, Queue):
            return entity
        if entity is None:
            decided.emit(Refused(command.link_id, self.directory.not_found(command.path)))
        else:
            text = f"'{entity.path}' is a topic: receive from one of its subscriptions."
            decided.emit(Refused(command.link_id, NotAllowed(text)))
        return None

    def attach_receiver(self, queue: Queue, command: AttachReceiver, decided: Decided) -> None:
        error = self._refuse_receiver(queue, command, decided.now_ms)
        if error is not None:
            decided.emit(Refused(command.link_id, error))
            return
        self.received_from[command.link_id] = queue
        queue.usage.receiver_count += 1
        queue.note_use(decided)
        if isinstance(queue.sessions, MessageSessions):
            queue.sessions.accept(command, decided)
            decided.mark_ready(queue)
            return
        link = ReceiverLink(command.link_id, command.deletes, queue.lane)
        self.receivers.add(link)
        queue.lane.receivers.add(link)
        decided.emit(Attached(command.link_id))

    def _refuse_receiver(self, queue: Queue, command: AttachReceiver, now_ms: int) -> BrokerError | None:
        error = refuse_receiver(queue) or refuse_forwarded(queue.path, queue.settings, queue.parent is not None)
        if error is None and queue.share is not None:
            error = queue.share.refuse(1, now_ms)
        if error is not None:
            return error
        if queue.usage.receiver_count >= self.quotas.receivers_per_entity:
            return QuotaExceeded(
                f"'{queue.path}' has {queue.usage.receiver_count} receivers, the most it may have "
                "(limit receivers-per-entity; the subscriptions of a topic are counted together)."
            )
        if (queue.sessions is None) != (command.session is None):
            return NotAllowed(_wrong_kind_of_receiver(queue))
        return None

    # -- ending -----------------------------------------------------------------------------------------------

    def unlink(self, link_id: int, decided: Decided) -> None:
        """The link is gone, whoever ended it."""
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
        link = self.receivers.remove(link_id)
        if link is not None:
            queue.end_call(link, decided)
        if isinstance(queue.sessions, MessageSessions):
            if link is None:
                if queue.sessions.unregister_waiting(link_id):
                    queue.metered(decided).count(EMPTY_RECEIVE)
            else:
                queue.sessions.release(link.lane, decided)
                decided.mark_ready(queue)
        elif link is not None:
            queue.lane.receivers.remove(link)

    def end_receivers(self, entity: Entity, error: BrokerError, decided: Decided) -> None:
        """Receivers that wait for a session are refused, the others detached."""
        if not isinstance(entity, Queue):
            return
        waiting = [] if entity.sessions is None else entity.sessions.unregister_receivers()
        for link_id in [link_id for link_id, queue in self.received_from.items() if queue is entity]:
            del self.received_from[link_id]
            entity.usage.receiver_count -= 1
            link = self.receivers.remove(link_id)
            if link is not None:
                entity.end_call(link, decided)
            decided.emit(Refused(link_id, error) if link_id in waiting else Detached(link_id, error))
        entity.lane.receivers.links.clear()

    def end_senders(self, entity: Entity, error: BrokerError, decided: Decided) -> None:
        """Senders are detached, and what they send until they have heard it is refused."""
        for link_id in list(entity.sender_link_ids):
            del self.senders[link_id]
            self.ended[link_id] = error
            decided.emit(Detached(link_id, error))

    def find(self, link_id: int) -> Entity | None:
        """The entity that a link sends to or receives from."""
        return self.senders.get(link_id) or self.received_from.get(link_id)

    def discard(self, link_id: int) -> None:
        """Removes a link without a word, whatever state it is in: after a fault of ours."""
        entity = self.senders.pop(link_id, None)
        if entity is not None:
            entity.sender_link_ids.pop(link_id, None)
        self.received_from.pop(link_id, None)
        self.receivers.remove(link_id)


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
