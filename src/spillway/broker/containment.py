"""What is done about a fault of ours: the command is refused, and what it had touched is read from the store again.

What that means for clients is in `incidents`.

To go on with the state that the fault has left would be to trust what has just been shown wrong; to end the process
would let one client's command end everybody's. What is sound is what the store has: every turn up to this one was
submitted, and this one is written without the piece of work that failed. So the entities that it had touched are taken
out of service, read again, and put back.

    in service ──a fault──▶ apart, a read under way ──read──▶ in service
                              ▲            │ a fault while it is read, or soon after
                              └── apart, until `retry_ms` ◀──┘ (longer each time)

What the piece had begun elsewhere must be let go of as well, or it would be waited for for ever:

- **Loads that it asked for** are cut off with its effects and never reach the store. Their entities would stay with a
  load under way that nobody answers: so these are unregistered, and their entities read again, too.
- **The load whose answer it was working on** (`answering`) has been answered, and nobody would go on with what is
  behind it.
- **Links that a command was about to make or to end** are known to the peer and half known here: they are struck out,
  and the command is refused.

`Turn.counters` of such an entity may have half of the piece in them: the store counts its messages anew (`recounts`).
"""

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    Command,
    Credit,
    DetachLink,
    Request,
    Send,
    Settle,
    Undelivered,
)
from spillway.broker.decided import Decided, Servable
from spillway.broker.directory import Directory
from spillway.broker.effects import AccessChanged, Detached, Failed, Refused, SendSettled, SettlementAnswered
from spillway.broker.entity import Entity
from spillway.broker.incidents import Apart, Incident, Incidents, Restorer, apart_of, families_of, undo
from spillway.broker.ledger import Ledger
from spillway.broker.lifecycle import Lifecycle
from spillway.broker.links import Links
from spillway.broker.loads import Loads
from spillway.broker.timers import Timers
from spillway.model.entity import entity_key
from spillway.model.errors import BrokerError, InternalError
from spillway.model.records import EntityRemoved, EntityRow, Record


class Containment(Restorer):
    def __init__(
        self,
        incidents: Incidents,
        directory: Directory,
        links: Links,
        lifecycle: Lifecycle,
        ledger: Ledger,
        timers: Timers,
    ) -> None:
        self.incidents = incidents
        self.directory = directory
        self.links = links
        self.lifecycle = lifecycle
        self.ledger = ledger
        self.timers = timers
        self.answering: Loads | None = None  # whose answer from the store is being worked on

    def recover(self, row: EntityRow, now_ms: int) -> Entity:
        if row.problem:
            raise InternalError(row.problem)
        entity = self.directory.recover(row)
        self.timers.set(entity)
        self.directory.note_store(entity, entity.counters.size_bytes, now_ms)
        return entity

    def contain(
        self, error: Exception, what: str, command: Command | None, entity: Entity | None, decided: Decided
    ) -> None:
        """This piece of work is undone and refused; what it had touched is read from the store again."""
        touched: list[Servable] = list(decided.changing)
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
        """Whom a command is for. Links that it was about to make or to end are not there."""
        found: Entity | None = None
        if isinstance(command, Send):
            found = self.links.senders.get(command.link_id)
        elif isinstance(command, (Settle, Credit)):
            found = self.links.received_from.get(command.link_id)
        elif isinstance(command, (Request, Undelivered)):
            found = self.directory.find(command.path)
        elif isinstance(command, (AttachSender, AttachReceiver)):
            found = self.directory.find(command.path)
            self.links.discard(command.link_id)
            if found is not None:
                found.sender_link_ids.pop(command.link_id, None)
        elif isinstance(command, DetachLink):
            found = self.links.find(command.link_id)
            self.links.discard(command.link_id)
        return [] if found is None else [found]

    def _refuse_command(self, command: Command, error: BrokerError, decided: Decided) -> None:
        if isinstance(command, Send):
            if not command.is_settled:
                decided.emit(SendSettled(command.link_id, command.delivery_id, error))
        elif isinstance(command, Settle):
            if not command.is_settled:
                decided.emit(SettlementAnswered(command.link_id, command.delivery_id, command.settlement.kind, error))
        elif isinstance(command, Request):
            decided.emit(Failed(command.request_id, error))
        elif isinstance(command, (AttachSender, AttachReceiver)):
            decided.emit(Refused(command.link_id, error))
        elif isinstance(command, DetachLink) and command.error is not None:
            decided.emit(Detached(command.link_id, command.error))

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
                self.lifecycle.remove(entity, apart.error, decided)
            except Exception as error:  # its state is not sound: it goes all the same
                apart.reason += f"; {type(error).__name__}: {error}"
                self.directory.discard(entity)
            decided.turn.counters[entity.entity_id] = entity.counters.copy()
            decided.turn.recounts.append(entity.entity_id)
        self.incidents.put(apart, decided.now_ms)

    def set_row_apart(self, row: EntityRow, error: Exception, now_ms: int) -> None:
        """One that could not be made of its row at the start; what belongs to it shares its lot."""
        put = row.put
        made = self.directory.by_id.get(put.entity_id)
        if made is not None:
            made.is_apart = True
            self.directory.discard(made)
        apart = self.incidents.family_of(put.parent_id)
        if apart is None:
            incident = self.incidents.begin(error, f"reading '{put.path}' from the store")
            apart = apart_of(put, incident, now_ms)
            self.incidents.unreported.append(incident.text)
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
                entity = self.recover(row, decided.now_ms)
                made.append(entity)
                entity.tally = apart.tallies.get(entity.entity_id)
        except Exception as error:
            incident = self.incidents.begin(error, f"reading '{apart.path}' from the store")
            apart.reason = incident.text
            for entity_id in apart.paths:
                half = self.directory.by_id.get(entity_id)
                if half is not None:
                    half.is_apart = True
                    self.directory.discard(half)
            self.incidents.put(apart, decided.now_ms)
            self.incidents.report(incident.text, decided)
            return
        for entity in made:
            decided.mark_ready(entity)
        self.incidents.report(f"'{apart.path}' was read from the store again and is in service", decided)

    def delete_apart(self, apart: Apart, decided: Decided) -> None:
        group: list[Record] = []
        for entity_id in apart.paths:
            group.append(EntityRemoved(entity_id))
            tally = apart.tallies.get(entity_id)
            if tally is not None:
                self.ledger.unregister(tally, decided.turn)
        self.incidents.remove(apart)
        decided.remember(group)
        decided.emit(AccessChanged(entity_key(apart.path), []))  # if it had any, nobody knows
