"""Faults of ours while one command is applied: the command is refused, and nobody else pays.

What the command had begun is undone: its records and effects are dropped, and every entity that it had touched is taken
out of service, with all that belongs to it, and read from the store again as at a start. Locks on its messages are lost
(they are volatile, contract H16), its links are ended with an error that clients try again; no message is lost or
doubled. Where it happens again the entity is left alone for longer each time. Entities that it had not touched go on.

The state of such an entity cannot be trusted, so nothing of it is looked at beyond what leads to its links.
"""

import traceback
from typing import Final

from spillway.broker.decided import Decided, Servable
from spillway.broker.effects import Report
from spillway.broker.entity import Entity
from spillway.broker.loads import Loads, LoadStep
from spillway.broker.queue import Queue
from spillway.broker.topic import Subscription
from spillway.model.entity import entity_key
from spillway.model.errors import BrokerError, InternalError
from spillway.model.ledger import Tally
from spillway.model.records import EntityPut, EntityRow, LoadEntity, Query, Rows

RECENT_MS: Final = 600_000  # faults of one entity within this time belong together
WAIT_MS: Final = 1_000  # after its second one, and twice as long after each that follows
WAIT_MS_MAX: Final = 60_000
FRAMES_SHOWN: Final = 3
REPORTS_MAX: Final = 20  # within
REPORTS_MS: Final = 60_000


class Apart:
    """A queue, subscription or topic and all that belongs to it, out of service."""

    def __init__(self, path: str, error: InternalError, now_ms: int) -> None:
        self.path = path  # of what the others belong to
        self.error = error  # what whoever asks for it hears
        self.since_ms = now_ms
        self.retry_ms = 0  # when it is read again; 0: that is under way
        self.reason = ""
        self.paths: dict[int, str] = {}  # by entity id
        self.tallies: dict[int, Tally] = {}  # what the ledger has open of them

    def add(self, entity_id: int, path: str) -> None:
        self.paths[entity_id] = path

    def entity_ids(self) -> list[int]:
        """What belongs to another has the higher number, and comes behind it."""
        return sorted(self.paths)

    def is_headed_by(self, path: str) -> bool:
        return entity_key(path) == entity_key(self.path)


class FailureHistory:
    """How often an entity failed lately."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """The entity failed once more: how long it stays apart."""
        if now_ms - self.last_ms > RECENT_MS:
            self.count = 0
        self.count += 1
        self.last_ms = now_ms
        if self.count == 1:
            return 0
        return min(WAIT_MS << min(self.count - 2, 16), WAIT_MS_MAX)


class Incidents:
    """`apart` is the directory's: who asks for an entity in it is told what happened."""

    def __init__(self, namespace: str, apart: dict[str, Apart]) -> None:
        self.namespace = namespace
        self.apart = apart  # by the key of every path
        self.count = 0  # in this life
        self.histories: dict[str, FailureHistory] = {}  # by key
        self.unreported: list[str] = []  # found before there was a turn to say it in
        self.reported_ms = 0
        self.reported_count = 0  # since then
        self.due_ms = 0  # when one of those apart is to be read again; 0: none

    def begin(self, error: BaseException, what: str) -> "Incident":
        self.count += 1
        return Incident(f"{self.namespace}-{self.count}", what, error)

    def put(self, apart: Apart, now_ms: int) -> None:
        """An entity with all that belongs to it is out of service from now on."""
        history = self.histories.get(entity_key(apart.path))
        if history is None:
            history = FailureHistory()
            self.histories[entity_key(apart.path)] = history
        apart.retry_ms = now_ms + history.wait_ms(now_ms)
        for path in apart.paths.values():
            self.apart[entity_key(path)] = apart
        self._set_due()

    def remove(self, apart: Apart) -> None:
        for path in apart.paths.values():
            self.apart.pop(entity_key(path), None)
        self._set_due()

    def pop_due(self, now_ms: int) -> list[Apart]:
        """Entities that are to be read again now."""
        due: list[Apart] = []
        for apart in self.families():
            if 0 < apart.retry_ms <= now_ms:
                apart.retry_ms = 0
                due.append(apart)
        self._set_due()
        return due

    def family_of(self, entity_id: int) -> Apart | None:
        for apart in self.apart.values():
            if entity_id in apart.paths:
                return apart
        return None

    def families(self) -> list[Apart]:
        found: list[Apart] = []
        for apart in self.apart.values():
            if apart not in found:
                found.append(apart)
        return found

    def _set_due(self) -> None:
        self.due_ms = 0
        for apart in self.apart.values():
            if apart.retry_ms != 0 and (self.due_ms == 0 or apart.retry_ms < self.due_ms):
                self.due_ms = apart.retry_ms

    def report(self, text: str, decided: Decided) -> None:
        """A line for the log, unless it has many of these already: a client may cause one with every command."""
        if decided.now_ms - self.reported_ms > REPORTS_MS:
            self.reported_ms = decided.now_ms
            self.reported_count = 0
        self.reported_count += 1
        if self.reported_count < REPORTS_MAX:
            decided.emit(Report(text))
        elif self.reported_count == REPORTS_MAX:
            decided.emit(Report(f"{text}; more of them within this minute are counted, not reported"))

    def emit_unreported(self, decided: Decided) -> None:
        for text in self.unreported:
            decided.emit(Report(text))
        self.unreported = []


class Incident:
    """One fault, by a name that is in the answer and in the log."""

    def __init__(self, name: str, what: str, error: BaseException) -> None:
        self.name = name
        self.text = f"incident {name}: {what}: {type(error).__name__}: {error} ({frames_of(error)})"

    def error(self) -> InternalError:
        return InternalError(
            "The service was unable to process the request; please retry the operation. "
            f"It is a fault of the broker, whose log has more under incident {self.name}."
        )

    def error_for(self, path: str) -> InternalError:
        return InternalError(
            f"'{path}' is out of service for a moment: it is read from the store again after a fault of the broker, "
            f"whose log has more under incident {self.name}. Please retry the operation."
        )


def frames_of(error: BaseException) -> str:
    """The place where an error happened, innermost first, in one line for the log."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    return ", ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames))


def families_of(touched: list[Servable]) -> list[Entity]:
    """What these belong to, each once: queues and subscriptions, or the topic if one was among them."""
    heads: list[Entity] = []
    for each in touched:
        assert isinstance(each, Entity), "a turn touches entities"
        head: Entity = each
        if isinstance(head, Queue) and head.parent is not None:
            head = head.parent
        if head not in heads:
            heads.append(head)
    return [head for head in heads if not isinstance(head, Subscription) or head.topic not in heads]


class ReadAgain(LoadStep):
    """The rows of a family, one after the other. `restore` of the namespace takes them."""

    def __init__(self, restorer: "Restorer", apart: Apart) -> None:
        self.restorer = restorer
        self.apart = apart
        self.todo = apart.entity_ids()
        self.rows: list[EntityRow] = []

    def query(self, decided: Decided) -> Query | None:
        return LoadEntity(self.todo[0]) if self.todo else None

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        del self.todo[0]
        if rows.entity is not None:
            self.rows.append(rows.entity)
        if self.todo:
            return True
        self.restorer.restore(self.apart, self.rows, decided)
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        """Asked in vain, by a fault in its own turn: it is tried again."""
        self.apart.retry_ms = decided.now_ms + WAIT_MS_MAX


class Restorer:
    """The namespace, which takes an entity back into service."""

    def restore(self, apart: Apart, rows: list[EntityRow], decided: Decided) -> None:
        raise AssertionError("the namespace does this")


def apart_of(put: EntityPut, incident: Incident, now_ms: int) -> Apart:
    """An entity that could not be made of its row."""
    apart = Apart(put.path, incident.error_for(put.path), now_ms)
    apart.reason = incident.text
    apart.add(put.entity_id, put.path)
    return apart


def undo(decided: Decided, loads_by_id: dict[int, Loads]) -> list[Loads]:
    """Takes back what was remembered and said since `begin`; whose questions to the store are not asked after all."""
    unasked = [loads_by_id.pop(effect.to) for effect in decided.undone_loads() if effect.to in loads_by_id]
    decided.undo()
    return unasked
