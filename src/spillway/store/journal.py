"""The seam between deciding and remembering, small enough to read at a glance.

A journal has one writer. Turns are committed in the order submitted; whatever arrives while a commit is under way is
the next one (group commit without a timer). `JournalListener` is called on the thread that `post` leads to, in order.
"""

from collections.abc import Callable
from typing import Protocol

from spillway.model.records import Catalogue, Query, Rows, Turn
from spillway.store.day_files import SealedDays


class JournalListener(Protocol):
    """The listener that hears of durable turns and loaded rows: the pump, or a test."""

    def on_durable(self, ticket: int) -> None:
        """Every turn up to and with this ticket will survive a power cut."""

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        """The answer to the query submitted with this ticket. The turns it rests on are durable.

        An answer takes its time, and holds nobody up: later turns may have been told before it.
        """

    def on_copied(self) -> None:
        """`is_copying` is over, or `pending_bytes` has become less without a turn that became durable."""

    def on_failed(self, error: BaseException) -> None:
        """A write or sync failed. Nothing more will be committed; the process must end."""


class Journal(Protocol):
    def recover(self) -> Catalogue:
        """Entities and counters, never messages. Call once, first."""

    def start(self, listener: JournalListener, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin to write. `post` runs a function on the listener's thread (`loop.call_soon_threadsafe`)."""

    def submit(self, turn: Turn, ticket: int) -> None:
        """Remember this turn. `on_durable` with this ticket or a later one says when it is."""

    def load(self, query: Query, ticket: int) -> None:
        """Answer from exactly the turns submitted so far. The caller has submitted the turns it depends on."""

    @property
    def pending_bytes(self) -> int:
        """Submitted and not yet durable."""

    @property
    def is_copying(self) -> bool:
        """Whether the journal puts its own things in order: what nobody waits for is better submitted later."""

    @property
    def free_bytes(self) -> int:
        """Room for more: free space of the file system and inside the store, less what is on its way there.

        Cheap enough to be asked before every turn.
        """

    @property
    def set_apart_count(self) -> int:
        """Rows that could not be read, and were set apart; in this life and those before."""

    @property
    def days(self) -> SealedDays:
        """The ledger's sealed days."""

    def close(self) -> None:
        """Commit what was submitted, stop the writer, release the directory."""
