"""The observer of a standing syphon, who hears what it does: a program's events and ledger, or a command's output."""

from typing import Protocol

from spillway.client import ClientError
from spillway.model.aliases import Malformed


class Observer(Protocol):
    """Called between two steps of the syphon: quick, and never raising."""

    # -- what happened

    def syphoned(self, path: str, count: int, queue: str) -> None:
        """An entity of the primary took messages of a backlog queue."""
        ...

    def kept(self, path: str, error: ClientError, queue: str, held: int) -> None:
        """A destination takes nothing now. Said once, until it takes something again."""
        ...

    def message_kept(self, queue: str, error: ClientError, sequence_number: int) -> None:
        """A message stays in the backlog for what it is. Said once."""
        ...

    def dead_lettered(self, queue: str, error: Malformed) -> None:
        """A message that no paired sender can have written is in the dead letters."""
        ...

    def repeated(self, queue: str, error: ClientError) -> None:
        """The primary has a message, and the backlog will hand it out once more."""
        ...

    def polled(self, queue: str, received: int) -> None:
        """A receive of an idle queue has ended."""
        ...

    def interrupted(self, queue: str, error: ClientError) -> None:
        """A receiver of the backlog failed, and is made anew."""
        ...

    # -- what it is charged as

    def count_receive(self, queue: str, size_bytes: int) -> None: ...
    def count_empty_receive(self, queue: str) -> None: ...
    def count_settle(self, queue: str) -> None: ...
    def count_renew(self, queue: str) -> None: ...
    def count_send(self, path: str, size_bytes: int) -> None: ...
