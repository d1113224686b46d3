"""What an administrator is shown of entities."""

from spillway.broker.directory import Directory
from spillway.broker.effects import Description, Descriptions
from spillway.broker.entity import Entity
from spillway.broker.queue import Queue
from spillway.broker.topic import Subscription, Topic
from spillway.model.entity import DEAD_LETTER_QUEUE, QUEUE, SUBSCRIPTION, TOPIC, entity_key


def describe(entity: Entity) -> Description:
    shown = Description(kind_of(entity), entity.path, entity.settings, entity.counters.copy())
    shown.size_bytes = entity.counters.size_bytes
    if isinstance(entity, Topic):
        shown.subscription_count = len(entity.subscriptions)
        shown.size_bytes = entity.usage.size_bytes
        shown.sql_filter_count, shown.correlation_filter_count = entity.sql_count, entity.correlation_count
    elif isinstance(entity, Queue) and entity.dead_letters is not None:
        shown.dead_letter_count = entity.dead_letters.counters.active
        shown.size_bytes += entity.dead_letters.counters.size_bytes
    return shown


def kind_of(entity: Entity) -> str:
    if isinstance(entity, Topic):
        return TOPIC
    if isinstance(entity, Subscription):
        return SUBSCRIPTION
    assert isinstance(entity, Queue), "an entity is a topic or a queue"
    return QUEUE if entity.parent is None else DEAD_LETTER_QUEUE


def list_entities(directory: Directory, request_id: int, kind: str, path: str, skip: int, top: int) -> Descriptions:
    """Entities by name, so that paging neither repeats nor leaves out what stays."""
    found: list[Entity] = []
    if kind == TOPIC:
        found = list(directory.topics.values())
    elif kind == SUBSCRIPTION:
        topic = directory.topics.get(entity_key(path))
        found = [] if topic is None else list(topic.subscriptions.values())
    else:
        found = [queue for queue in directory.queues.values() if kind_of(queue) == QUEUE]
    by_key = {entity_key(entity.path): entity for entity in found}
    keys = sorted(by_key)
    page = [describe(by_key[key]) for key in keys[skip : skip + top]]
    return Descriptions(request_id, page, skip + top < len(keys))
