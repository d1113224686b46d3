"""What became of messages on their way home, counted by backlog queue, destination and reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from spillway.client import ClientError

MOVED: Final = "moved"  # the primary has it and the backlog has not
REPEATED: Final = "repeated"  # the primary has it, but the backlog could not be told and hands it out again
KEPT: Final = "kept"  # refused; it stays in the backlog
DEAD_LETTERED: Final = "dead-lettered"
OUTCOMES: Final = (MOVED, REPEATED, KEPT, DEAD_LETTERED)

REASONS_MAX: Final = 1_000  # different lines of these counts: a reason may name a message
REASON_CHARS_MAX: Final = 300


@dataclass(frozen=True)
class OutcomeCount:
    """One line of counts. `destination` is empty where nobody can know it."""

    backlog: str
    destination: str
    outcome: str
    reason: str
    messages: int
    size_bytes: int


Told = Callable[[OutcomeCount], None]


@dataclass
class OutcomeCounts:
    """The lines of one pass, or of several together."""

    lines: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)

    def add(self, count: OutcomeCount) -> None:
        key = (count.backlog, count.destination, count.outcome, count.reason)
        if key not in self.lines and len(self.lines) >= REASONS_MAX:
            key = (count.backlog, "", count.outcome, "other reasons")
        line = self.lines.setdefault(key, [0, 0])
        line[0] += count.messages
        line[1] += count.size_bytes

    def counts(self) -> Iterator[OutcomeCount]:
        for (backlog, destination, outcome, reason), (messages, size_bytes) in self.lines.items():
            if messages:
                yield OutcomeCount(backlog, destination, outcome, reason, messages, size_bytes)

    def total(self, outcome: str) -> int:
        return sum(line[0] for key, line in self.lines.items() if key[2] == outcome)


def reason_of(error: ClientError) -> str:
    """The condition and the peer's words, without what differs from one refusal to the next."""
    return str(error).partition(" TrackingId:")[0].partition(" Reference:")[0][:REASON_CHARS_MAX]
