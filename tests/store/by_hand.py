"""A journal with a log whose writer and keeper are one thread, the test's: each step is taken when the test says so."""

import random
import threading
from pathlib import Path
from typing import TypeAlias

from spillway.model.message import ACTIVE, Message, StoredMessage
from spillway.model.records import MessageAdded, MessageChanged, MessageMoved, MessageRemoved, Query, Record, Rows, Turn
from spillway.store.bodies import SHARED_BYTES_MIN
from spillway.store.logged import LoggedJournal
from tests.store.crash_disk import CrashDisk
from tests.store.listening import counters, everything, queue_put

ENTITIES = (1, 2, 3)
SEGMENT_BYTES = 8 * 1024
BATCH_BYTES = 2_000
Row: TypeAlias = tuple[int, int, bytes]  # number, delivery count, body
State: TypeAlias = dict[int, list[Row]]  # by entity


class NoWaiting(threading.Event):
    """Time passes at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


class ByHand:
    """Takes turns of a `Story`, and counts which were told to be durable."""

    def __init__(self, disk: CrashDisk, story: "Story") -> None:
        self.story = story
        self.told = story.told  # so many turns of the story were
        self.failures: list[BaseException] = []
        self.rows: dict[int, Rows] = {}
        self._has_writer = self._has_keeper = True  # until they fail
        self.journal = LoggedJournal(
            disk.root / "journal.db",
            vfs=disk.vfs.vfs_name,
            files=disk.files,
            segment_bytes=SEGMENT_BYTES,
            batch_bytes=BATCH_BYTES,
        )
        self.journal._closing = NoWaiting()

    def recover(self) -> None:
        self.journal.recover()
        self.journal._listener = self
        self.journal._post = lambda callback: callback()

    def submit(self, turn: Turn) -> None:
        """The story's next one: its ticket is its number."""
        self.journal.submit(turn, len(self.story.states) - 1)

    def ask(self, query: Query) -> None:
        self.journal.load(query, 1 << 40)
        self.write()
        self.keep()

    def write(self) -> None:
        """One frame of what waits."""
        if self._has_writer:
            self.journal._entries.put(None)
            self.journal._append_all()
            self._has_writer = self.journal._failure is None

    def keep(self, is_resting: bool = False) -> None:
        """What the writer has handed over is folded as far as it has to be; all of it, after some rest."""
        journal = self.journal
        database = journal._database
        assert database is not None
        try:
            while self._has_keeper and not journal._handed.empty():
                journal._step(database)
            if self._has_keeper and is_resting:
                journal._at_rest(database)
        except BaseException as error:
            journal._fail(error)
            self._has_keeper = False

    def close(self) -> None:
        self.write()
        self.journal._handed.put((None, 0, 0))
        self.keep()
        self.journal.close()

    def on_durable(self, ticket: int) -> None:
        self.told = self.story.told = ticket

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        self.rows[ticket] = rows

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        self.failures.append(error)


class Story:
    """Turns at random, and what there is after each: a store that was cut off has one of these states, and no other."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.states: list[State] = [{}]
        self.told = 0
        self._last = dict.fromkeys(ENTITIES, 0)

    @property
    def submitted(self) -> int:
        return len(self.states) - 1

    def goes_on_from(self, state: State) -> None:
        """After a crash: what was not told and is not there has never been."""
        self.told = max(number for number, each in enumerate(self.states) if each == state)
        del self.states[self.told + 1 :]

    def next(self) -> Turn:
        turn = Turn(1)
        if self.submitted == 0:
            turn.add([queue_put(entity_id) for entity_id in ENTITIES])
            self.states.append({entity_id: [] for entity_id in ENTITIES})
            return turn
        state = {entity_id: list(rows) for entity_id, rows in self.states[-1].items()}
        turn.add(self._group(state))
        for entity_id in ENTITIES:
            turn.counters[entity_id] = counters(len(state[entity_id]), self._last[entity_id])
        self.states.append(state)
        return turn

    def _group(self, state: State) -> list[Record]:
        entity_id = self.chance.choice(ENTITIES)
        rows = state[entity_id]
        what = self.chance.random()
        if not rows or what < 0.4:
            size = self.chance.choice((1, 40, 700, SHARED_BYTES_MIN))
            message = Message(self.chance.randbytes(size))
            places = ENTITIES if size == SHARED_BYTES_MIN else (entity_id,)
            return [self._add(state, place, message) for place in places]
        at = self.chance.randrange(len(rows))
        number, delivery_count, body = rows.pop(at)
        if what < 0.75:
            return [MessageRemoved(entity_id, number)]
        if what < 0.9:
            rows.insert(at, (number, delivery_count + 1, body))
            return [MessageChanged(entity_id, number, ACTIVE, delivery_count + 1, None)]
        to_entity_id = self.chance.choice(ENTITIES)
        self._last[to_entity_id] += 1
        state[to_entity_id].append((self._last[to_entity_id], delivery_count, body))
        return [MessageMoved(entity_id, number, to_entity_id, self._last[to_entity_id], 1, 0, delivery_count, None)]

    def _add(self, state: State, entity_id: int, message: Message) -> MessageAdded:
        self._last[entity_id] += 1
        number = self._last[entity_id]
        state[entity_id].append((number, 0, message.raw))
        return MessageAdded(entity_id, StoredMessage(message, number, 1))

    def tell(self, hand: ByHand, steps: int) -> None:
        """The writer ahead of the keeper, both in step, and rests in between."""
        lag = self.chance.choice((0, 3, 12))
        for step in range(steps):
            for _ in range(self.chance.randint(1, 3)):
                hand.submit(self.next())
            hand.write()
            if step % (lag + 1) == 0:
                hand.keep()
            if step % 7 == 5:
                hand.ask(everything(self.chance.choice(ENTITIES)))
            if step % 11 == 10:
                hand.keep(is_resting=True)


def found_in(path: Path) -> State:
    """What a start finds, and leaves without an end."""
    journal = LoggedJournal(path, synchronous="OFF", segment_bytes=SEGMENT_BYTES)
    catalogue = journal.recover()
    database = journal._database
    assert database is not None
    found = {
        row.put.entity_id: [
            (each.sequence_number, each.delivery_count, each.message.raw)
            for each in database.answer(everything(row.put.entity_id)).messages
        ]
        for row in catalogue.entities
    }
    journal.close()
    return found
