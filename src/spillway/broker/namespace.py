"""A namespace: a deterministic state machine over its entities.

`apply` takes commands and the time and returns what to remember and what to say. It does no IO and reads no clock; the
same catalogue, seed, commands and times give the same decisions, so a run can be replayed and crashed anywhere.

What a command does is decided next door, in `links`, `sending`, `settling` and `requests`. Here is the turn: what has
fallen due, the commands, then every entity that was touched.

    begin ─▶ timers that are due ─▶ command, command, … ─▶ serve each touched entity ─▶ counters and timers ─▶ end
             └──────────── each of these is a piece of work, undone as a whole if it fails ────────────┘

- **Timers first**: a lock that has ended is lost before anybody settles by it, whatever the order in which a timer and
  a command reached the process. Time does not go on within a turn, so nothing falls due in the middle of it.
- **Commands change, serving hands out.** A command only marks what it has changed (`Decided.touch`). A hundred sends
  and the credit that comes after them are one delivery pass, and one row of counters, instead of a hundred and one.
- **An entity is served once a turn.** Serving may touch others (a dead letter, a forward), which are then served in the
  same turn, behind the rest. One that is touched again after it was served goes on in the next turn, which comes at
  once (`unfinished`): served again here, entities that pass messages on to one another would have no bound in this
  turn.
- **A fault of ours costs its piece of work.** Records and effects are lists that only grow, so undoing them is cutting
  them off where the piece began. What it did to entities in memory cannot be undone: those are read from the store
  again (`containment`), which has everything that was decided before.
- **Numbers bound the turn**: steps, chores, filters, deliveries (`Decided`). What is left goes on in the next turn,
  which `next_due_ms` asks for, with commands of others in between.
"""

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    Command,
    Credit,
    DetachLink,
    DiskMeasured,
    Loaded,
    MemoryMeasured,
    Request,
    SaveLedger,
    Send,
    Settle,
    Undelivered,
)
from spillway.broker.containment import Containment
from spillway.broker.decided import Decided, Servable
from spillway.broker.directory import Directory
from spillway.broker.effects import Detached, Report
from spillway.broker.entity import Entity, earlier
from spillway.broker.faulting import Faulting
from spillway.broker.idle import is_over
from spillway.broker.incidents import Incidents, ReadAgain
from spillway.broker.ledger import Ledger
from spillway.broker.lifecycle import Lifecycle
from spillway.broker.links import Links
from spillway.broker.loads import Loads
from spillway.broker.locks import LockTokens
from spillway.broker.queue import Queue
from spillway.broker.requests import Requests
from spillway.broker.sending import Sending
from spillway.broker.settling import Settling
from spillway.broker.sweeps import SweepDue, SweepExpired
from spillway.broker.timers import Timers
from spillway.broker.topic import PropertyAccess
from spillway.model import limits
from spillway.model.entity import FOR_EVER_MS, entity_key
from spillway.model.ledger import unpack_tally
from spillway.model.message import NEVER
from spillway.model.quotas import Quotas
from spillway.model.records import Catalogue, Counters, Turn


class Namespace:
    """`token_seed`: eight bytes that differ from life to life, so that old lock tokens mean nothing."""

    def __init__(
        self,
        name: str,
        catalogue: Catalogue,
        token_seed: bytes,
        access: PropertyAccess | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.name = name
        self.quotas = quotas or Quotas()
        self.directory = Directory(
            name,
            LockTokens(token_seed),
            access or PropertyAccess(),
            self.quotas,
        )
        self.throttle = self.directory.throttle
        self.directory.last_entity_id = catalogue.last_entity_id
        self.ledger = Ledger(catalogue.ledger_minute)
        self.timers = Timers(self.directory.by_id)
        self.links = Links(self.directory, self.quotas)
        self.faulting = Faulting(self.directory, self.links)
        self.lifecycle = Lifecycle(self.directory, self.links, self.ledger)
        self.incidents = Incidents(name, self.directory.apart)
        self.containment = Containment(
            self.incidents, self.directory, self.links, self.lifecycle, self.ledger, self.timers
        )
        self.sending = Sending(self.links, self.faulting, self.throttle)
        self.settling = Settling(self.directory, self.links, self.faulting, self.throttle)
        self.requests = Requests(
            self.directory,
            self.faulting,
            self.ledger,
            self.sending,
            self.settling,
            self.lifecycle,
            self.containment,
        )
        self.last_step = 0  # the number of the last piece of work, see `Decided.begin`
        self.started_ms = 0  # of this life; 0 until the first turn
        self.unfinished: list[Servable] = []
        self.chores: list[Servable] = []  # have more to do by themselves, as far as the store keeps up
        self.is_store_behind = False  # what was done of that last is not on disk yet; the pump says so
        self.applied_ms = 0
        self.skipped: dict[int, Counters] = {}  # by entity, of those that cannot be served too
        for row in catalogue.entities:
            if catalogue.was_interrupted:
                row.counters.last_sequence_number += limits.NUMBERS_SKIPPED
                self.skipped[row.put.entity_id] = row.counters.copy()
            try:
                entity = self.containment.recover(row, catalogue.clock_ms)
                if row.tally:
                    entity.tally = unpack_tally(entity.path, entity.entity_id, row.tally)
                    self.ledger.recover(entity.tally)
                if isinstance(entity, Queue) and entity.forwarder is not None and entity.counters.active > 0:
                    self.unfinished.append(entity)  # messages that were to be passed on
            except Exception as error:  # one row never keeps the others from being served
                self.containment.set_row_apart(row, error, catalogue.clock_ms)

    # -- the whole of it --------------------------------------------------------------------------------------

    def skipped_numbers(self, now_ms: int) -> Turn:
        """The first turn of a life: numbers that the life before may have shown, of messages that it had not stored
        when it was interrupted, are never given to others. Empty if it ended in order."""
        turn = Turn(now_ms)
        turn.counters = self.skipped
        self.skipped = {}
        return turn

    def apply(self, commands: list[Command], now_ms: int) -> Decided:
        decided = Decided(now_ms, self.ledger, self.throttle.disk, self.last_step)
        decided.begin()
        self.applied_ms = now_ms
        if self.is_store_behind:
            decided.chores_begun = decided.chores_left = 0
        try:
            self._begin_turn(decided)
        except Exception as error:
            self.containment.contain(error, "the beginning of a turn", None, None, decided)
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
                self.containment.contain(error, type(command).__name__, command, None, decided)
        self._serve_ready(decided)
        decided.begin()
        try:
            if self.faulting.is_on:
                self.faulting.delay_effects(decided)
            self.unfinished = decided.unfinished
            self.chores = decided.chores
            self.ledger.end_turn(decided.turn, decided.saves_ledger and decided.may_write(0), decided.saves_ledger)
        except Exception as error:
            self.containment.contain(error, "the end of a turn", None, None, decided)
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
            decided.mark_ready(queue)
        for entity in self.chores:
            decided.mark_ready(entity)
        if self.incidents.unreported:
            self.incidents.emit_unreported(decided)
        if 0 < self.incidents.due_ms <= now_ms:
            for apart in self.incidents.pop_due(now_ms):
                Loads(self.directory.load_numbers, self.directory.loads).add(
                    ReadAgain(self.containment, apart), decided
                )
        if self.faulting.is_on:
            self.faulting.end_due(decided)
        if self.throttle.throttled and self.throttle.resume_ms <= now_ms:
            self._resume_throttled(decided)

    def next_due_ms(self) -> int:
        """When `apply` must be called even without commands; 0 if no time is set."""
        if self.unfinished or self.incidents.unreported:
            return 1  # at once
        if self.chores and not self.is_store_behind:
            return 1
        other_ms = earlier(self.ledger.seal_due_ms, self.incidents.due_ms)
        if self.throttle.throttled:
            other_ms = earlier(other_ms, self.throttle.resume_ms)
        if self.faulting.is_on:
            other_ms = earlier(other_ms, self.faulting.due_ms())
        when_ms = self.timers.next_ms()
        if self.is_store_behind and when_ms <= self.applied_ms:
            return other_ms  # it goes on when the store has caught up
        return earlier(when_ms, other_ms)

    def has_counted(self) -> bool:
        """Whether the ledger has something to write down: `SaveLedger` within a second."""
        return self.ledger.has_counted()

    @property
    def held_bytes(self) -> int:
        """Bytes of sends that wait for an answer of the store before they can be decided."""
        return self.directory.id_budget.held_bytes

    def exists(self, path: str) -> bool:
        return self.directory.find(path) is not None or entity_key(path) in self.directory.apart

    def _dispatch(self, command: Command, decided: Decided) -> None:
        if isinstance(command, Send):
            self.sending.send(command, decided)
        elif isinstance(command, Settle):
            self.settling.settle(command, decided)
        elif isinstance(command, Credit):
            self.settling.credit(command, decided)
        elif isinstance(command, Loaded):
            self._loaded(command, decided)
        elif isinstance(command, Request):
            self.requests.answer(command, decided)
        elif isinstance(command, AttachSender):
            self._attach_sender(command, decided)
        elif isinstance(command, AttachReceiver):
            self._attach_receiver(command, decided)
        elif isinstance(command, DetachLink):
            if self.faulting.is_on:
                self.faulting.on_detach(command.link_id)
            self.links.unlink(command.link_id, decided)
            if command.error is not None:
                decided.emit(Detached(command.link_id, command.error))
        elif isinstance(command, Undelivered):
            self.settling.undelivered(command, decided)
        elif isinstance(command, MemoryMeasured):
            self.throttle.note_memory(command.bytes_used, decided.now_ms)
        elif isinstance(command, SaveLedger):
            decided.saves_ledger = True
        else:
            assert isinstance(command, DiskMeasured), "a command of no known kind"
            self.throttle.disk.note(command.free_bytes)

    def _attach_sender(self, command: AttachSender, decided: Decided) -> None:
        entity = self.links.find_for_sender(command, decided)
        if entity is None or (self.faulting.is_on and self.faulting.on_attach(entity, command.link_id, decided)):
            return
        self.links.attach_sender(entity, command, decided)

    def _attach_receiver(self, command: AttachReceiver, decided: Decided) -> None:
        queue = self.links.find_for_receiver(command, decided)
        if queue is None or (self.faulting.is_on and self.faulting.on_attach(queue, command.link_id, decided)):
            return
        self.links.attach_receiver(queue, command, decided)

    def _loaded(self, command: Loaded, decided: Decided) -> None:
        loads = self.directory.loads.pop(command.load_id, None)
        if loads is None:
            return  # its entity was deleted meanwhile
        self.containment.answering = loads
        loads.on_loaded(command.rows, decided)
        self.containment.answering = None
        queue = loads.owner
        if queue is not None:
            decided.mark_ready(queue)

    def _serve_ready(self, decided: Decided) -> None:
        at = 0
        while at < len(decided.ready):  # serving may touch a dead-letter queue
            entity = decided.ready[at]
            assert isinstance(entity, Entity)
            at += 1
            if entity.is_apart:
                continue
            decided.begin()
            try:
                entity.serve(decided)
            except Exception as error:
                self.containment.contain(error, "serving", None, entity, decided)
            entity.is_handled = True
        for entity in decided.ready:
            assert isinstance(entity, Entity)
            entity.is_ready = False
            entity.is_handled = False
            if entity.is_apart:
                continue
            if entity.is_changed:
                entity.is_changed = False
                decided.turn.counters[entity.entity_id] = entity.counters.copy()
                self.directory.note_store(entity, entity.counters.size_bytes, decided.now_ms)
            self.timers.set(entity)

    def _resume_throttled(self, decided: Decided) -> None:
        """Deliveries that waited for operations."""
        for lane, owner in self.throttle.pop_throttled().items():
            if not lane.is_closed:
                assert isinstance(owner, Queue), "deliveries come from queues"
                owner.mark_lane_ready(lane, decided)

    # -- time -------------------------------------------------------------------------------------------------

    def _fire_timers(self, decided: Decided) -> None:
        entity = self.timers.pop_due(decided.now_ms)
        while entity is not None:
            decided.begin()
            try:
                self._on_time(entity, decided)
            except Exception as error:
                self.containment.contain(error, "what was due", None, entity, decided)
            entity = self.timers.pop_due(decided.now_ms)

    def _on_time(self, entity: Entity, decided: Decided) -> None:
        now_ms = decided.now_ms
        decided.mark_ready(entity)
        if entity.settings.auto_delete_ms != FOR_EVER_MS and is_over(entity, self.started_ms, now_ms):
            decided.emit(Report(f"'{entity.path}' was idle for its AutoDeleteOnIdle and is deleted.", False))
            self.lifecycle.delete(entity, decided)
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
