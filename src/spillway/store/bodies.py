"""Bodies that several rows share: the copies of a message published to a topic have one between them.

A body counts the rows that refer to it, and goes with the last of them. Counts have a table of their own, so that the
copy that is settled writes a few bytes and never the body again. The checksum of each row covers the body it refers to:
whoever reads a message finds damage in its body, and nobody must read it to count.
"""

from collections.abc import Iterable
from typing import Final
from zlib import crc32

import apsw

from spillway.model.message import Message
from spillway.store.batch import Batch
from spillway.store.rows import DamagedRow
from spillway.store.statements import STATEMENTS, fetch, fetch_many

CHECK_BITS: Final = 16  # of a body id, below its number
# Counting down costs 1 to 2 us of CPU a copy, which is what writing a kilobyte less saves; half of that is chosen for
# the space. Shorter ones are cheaper to copy.
SHARED_BYTES_MIN: Final = 512


def body_id_of(number: int) -> int:
    """The number of a body and a check over it: a reference with a flipped bit leads nowhere, never to another body."""
    return number << CHECK_BITS | crc32(number.to_bytes(8, "little")) & (1 << CHECK_BITS) - 1


def read_body(cursor: apsw.Cursor, body_id: int) -> object:
    """The bytes of a body; None if it is not there."""
    for (raw,) in fetch(cursor, "select_body", (body_id,)):
        return raw
    return None


class Bodies:
    """The bodies of one open file. `last_number` is remembered with the clock: numbers are never used again."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._reading = connection.cursor()  # of its own: it reads while the rows of an answer are gone through
        self.last_number = 0
        self.are_there = True  # until looked: while there are none, removing a message asks nothing
        self._more: dict[int, int] = {}  # by body id: how many rows more refer to it

    def refresh(self) -> None:
        self.are_there = bool(self._connection.execute(STATEMENTS["select_any_body"]).fetchall())

    def read(self, body_id: int) -> object:
        return read_body(self._reading, body_id)

    def roll_back(self, last_number: int) -> None:
        """The transaction was rolled back: the last number was this, and nothing is counted."""
        self.last_number = last_number
        self._more.clear()
        self.refresh()

    # -- inside a transaction: release what goes, place what comes, then settle -------------------------------------

    def release(self, statement: str, bounds: Iterable[tuple[int, ...]]) -> None:
        """The rows within these bounds are about to be deleted."""
        if not self.are_there:
            return
        for (body_id,) in fetch_many(self._connection.cursor(), statement, list(bounds)):
            self._count(body_id, -1)

    def place(self, batch: Batch) -> dict[Message, int]:
        """The messages of fresh rows that refer to a body, and to which. A new one is made where it pays."""
        rows = batch.fresh.values()
        messages = [row.message for row in rows if not isinstance(row, DamagedRow)]
        if len(messages) < len(rows):
            for row in rows:
                if isinstance(row, DamagedRow):
                    self._count(row.body_id, 1)
        placed: dict[Message, int] = {}
        if batch.held:
            for message in messages:
                if message in batch.held:
                    placed[message] = batch.held[message]
                    self._count(placed[message], 1)
        if len(set(messages)) < len(messages):
            self._make(messages, placed)
        return placed

    def _make(self, messages: list[Message], placed: dict[Message, int]) -> None:
        copies: dict[Message, int] = {}
        for message in messages:
            if message not in placed:
                copies[message] = copies.get(message, 0) + 1
        bodies: list[tuple[int, bytes]] = []
        counts: list[tuple[int, int]] = []
        for message, count in copies.items():
            if count > 1 and len(message.raw) >= SHARED_BYTES_MIN:
                self.last_number += 1
                body_id = body_id_of(self.last_number)
                placed[message] = body_id
                bodies.append((body_id, message.raw))
                counts.append((body_id, count))
        self._connection.executemany(STATEMENTS["insert_body"], bodies)
        self._connection.executemany(STATEMENTS["insert_body_count"], counts)
        self.are_there = self.are_there or bool(bodies)

    def _count(self, body_id: object, more: int) -> None:
        """A damaged reference leads nowhere: at worst a body stays that nobody needs, and the full check says so."""
        if isinstance(body_id, int):
            self._more[body_id] = self._more.get(body_id, 0) + more

    def settle(self) -> None:
        """Counts are brought up to date; a body that nobody refers to any more goes.

        A damaged count stays as it is, and its body with it: how many need it is not known.
        """
        changes = [(body_id, more) for body_id, more in self._more.items() if more]
        self._more.clear()
        if not changes:
            return
        self._connection.executemany(STATEMENTS["add_to_body_count"], changes)
        self._connection.execute(STATEMENTS["delete_unused_bodies"])
        before = self._connection.total_changes()
        self._connection.execute(STATEMENTS["delete_unused_body_counts"])
        if self._connection.total_changes() > before:
            self.refresh()
