"""Entities that are changed, deleted or taken out of service, with their links."""

from spillway.broker.decided import Decided
from spillway.broker.directory import Directory
from spillway.broker.effects import AccessChanged, SendSettled
from spillway.broker.entity import Entity
from spillway.broker.forwarding import refuse_forwarded
from spillway.broker.ledger import Ledger
from spillway.broker.links import Links
from spillway.broker.queue import Queue
from spillway.broker.topic import Topic
from spillway.model.entity import EntitySettings, entity_key
from spillway.model.errors import BrokerError, NotAllowed, entity_disabled, entity_not_found
from spillway.model.records import EntityRemoved, Record


class Lifecycle:
    def __init__(self, directory: Directory, links: Links, ledger: Ledger) -> None:
        self.directory = directory
        self.links = links
        self.ledger = ledger

    def update(self, entity: Entity, settings: EntitySettings, decided: Decided) -> BrokerError | None:
        error = self.directory.refuse_update(entity, settings)
        if error is not None:
            return error
        for changed in self.directory.with_dead_letters(entity):
            if not settings.may_receive():
                error = entity_disabled(changed.path, settings.status)
            else:
                error = refuse_forwarded(changed.path, settings, changed is not entity)
            if error is not None:
                self.links.end_receivers(changed, error, decided)
        self.directory.update(entity, settings, decided)
        return None

    def delete(self, entity: Entity, decided: Decided) -> BrokerError | None:
        whole = self.directory.whole(entity)
        if whole is None:
            return NotAllowed(f"'{entity.path}' goes when the entity it belongs to is deleted.")
        group: list[Record] = []
        for gone in whole:
            self._delete_one(gone, decided)
            group.append(EntityRemoved(gone.entity_id))
        decided.remember(group)
        return None

    def _delete_one(self, entity: Entity, decided: Decided) -> None:
        """Deletes an entity for good: what was counted of it stays, under its name."""
        self.remove(entity, entity_not_found(self.directory.namespace, entity.path), decided)
        if entity.settings.access_rules and not entity.is_part:
            decided.emit(AccessChanged(entity_key(entity.path), []))
        if entity.tally is not None:
            self.ledger.unregister(entity.tally, decided.turn)

    def remove(self, entity: Entity, error: BrokerError, decided: Decided) -> None:
        """An entity is found no more: its links are detached, and whoever waits for its rows hears why."""
        self.links.end_senders(entity, error, decided)
        self.links.end_receivers(entity, error, decided)
        if isinstance(entity, Queue):
            entity.close()
        elif isinstance(entity, Topic):
            for answer in entity.drain_owed():
                assert isinstance(answer, SendSettled), "sends are what is answered later"
                decided.emit(SendSettled(answer.to, answer.delivery_id, error))
        entity.loads.abort(error, decided)
        self.directory.unregister(entity)
        self.directory.note_store(entity, 0, decided.now_ms)
        entity.is_changed = False
        decided.turn.counters.pop(entity.entity_id, None)
