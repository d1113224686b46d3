"""Entities that are deleted when nobody uses them.

Idle is, as on Azure, an entity that nobody sends to (subscriptions: their copies do not count), receives from, browses
or changes, and that has no scheduled messages. A receiver that is attached receives, and so does what forwards. What is
done with a dead-letter queue is done with its entity, and what is done with a subscription with its topic too. Messages
that wait do not keep an entity alive.
"""

from spillway.broker.entity import Entity
from spillway.broker.message_sessions import MessageSessions
from spillway.broker.queue import Queue
from spillway.broker.topic import Topic
from spillway.model import limits


def is_over(entity: Entity, started_ms: int, now_ms: int) -> bool:
    """Whether an entity is to be deleted as idle; if it is in use, its time begins anew.

    After a start clients have some minutes to come back: what they were waiting for was in use until it stopped.
    """
    if entity.is_part or entity.idle_until_ms() > now_ms:
        return False
    if is_in_use(entity):
        entity.use(now_ms)
        return False
    back_ms = started_ms + limits.AUTO_DELETE_MS_MIN
    if now_ms < back_ms:
        entity.idle_floor_ms = back_ms
        return False
    return True


def is_in_use(entity: Entity) -> bool:
    if entity.counters.scheduled > 0:
        return True
    if isinstance(entity, Topic):
        return entity.usage.receiver_count > 0
    assert isinstance(entity, Queue), "an entity is a topic or a queue"
    if entity.forwarder is not None or _has_receivers(entity):
        return True
    return entity.dead_letters is not None and _has_receivers(entity.dead_letters)


def _has_receivers(queue: Queue) -> bool:
    sessions = queue.sessions
    if sessions is None:
        return len(queue.lane.receivers.links) > 0
    return len(sessions.locked) > 0 or (isinstance(sessions, MessageSessions) and len(sessions.waiting) > 0)
