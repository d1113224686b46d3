"""The resident window of a queue: its next messages in memory, the rest only in the store.

Two sources feed the front of the line. `line` holds messages never delivered, in order, up to `upto`: every number up
to there is in memory, locked, or gone. `returned` holds numbers that came back (abandoned, lock expired, released);
their bodies are read again when their turn comes. The next message is the smaller of both heads (contract H6).

    locked, returned, or gone │ `line`, in memory │ cold: in the store alone
    ──────────────────────────┴───────────────────┴─────────────────────────▶ sequence numbers
                                               `upto`                `cold_upto`

What holds between two calls:

- Nothing is cold if `cold_upto <= upto`.
- `line` rises, and has no number above `upto`. A number in it that is not in `resident` has gone, and is skipped.
- A number is in `resident` only if it is in `line` or in `returned_numbers`.
- `returned_numbers` says what has returned; the heap may also have numbers of which that is no longer so.

Why it is done so:

- **A new message stays in memory only if nothing is cold**, even where there is room. Else there were two pieces with a
  gap of messages between them that nobody has read, one number could not say what is in memory, and what was sent later
  would be delivered earlier. The price is that a message which goes cold is written and read back, so senders are
  slowed before it comes to that (`pace.py`).
- **What returns is a number.** Locks hold no bodies (there may be tens of thousands), so the body has to be read again.
  Until it is, `take` answers None although `line` has messages: those stand behind it.
- **What is gone from the middle is not searched for.** Expiry and deletion would walk through the line or the heap for
  every message; instead it is noticed when its number comes to the head.
- **An answer of the store says how far it goes** (`refill`), which may be beyond its last message: the numbers up to
  there are gone, or of other sessions. Were `upto` moved only to the last message, a tail of such numbers would count
  as cold for ever, and be asked for in every turn. It says what was the last number when it was *asked*: what came
  later is cold, and not in the answer.
"""

import heapq
from collections import deque

from spillway.broker.locks import LockBudget
from spillway.model import limits
from spillway.model.message import StoredMessage


class ResidentBudget:
    """Bytes of messages in memory over all entities of a namespace, with what Python needs to hold them."""

    def __init__(self, bytes_max: int, lock_bytes_max: int = limits.LOCK_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.locks = LockBudget(lock_bytes_max)


class Window:
    def __init__(self, budget: ResidentBudget) -> None:
        self.budget = budget
        self.line: deque[int] = deque()
        self.resident: dict[int, StoredMessage] = {}  # by number: in `line`, or returned and read again
        self.resident_bytes = 0
        self.returned: list[int] = []  # a heap
        self.returned_numbers: set[int] = set()
        self.upto = 0
        self.cold_upto = 0  # the highest number that was left to the store: above `upto` only the store has messages

    def may_have_more(self) -> bool:
        """Whether messages of its may wait, here or in the store."""
        return self.cold_upto > self.upto or len(self.resident) > 0 or len(self.returned_numbers) > 0

    def begin_cold(self, last_sequence_number: int) -> None:
        """The window at start: whatever there is, is in the store."""
        self.cold_upto = last_sequence_number

    def restart(self, last_sequence_number: int) -> None:
        """The window becomes cold: no message is in memory or locked, all that waits is in the store."""
        self.clear()
        self.upto = 0
        self.cold_upto = last_sequence_number

    def append(self, stored: StoredMessage) -> None:
        """A new active message at the tail. It stays in memory only if everything before it is, and there is room."""
        number = stored.sequence_number
        if self.cold_upto > self.upto or not self.has_room():
            self.cold_upto = number
            return
        self.retain(stored)
        self.line.append(number)
        self.upto = number

    def insert(self, stored: StoredMessage) -> None:
        """A message that was not to be seen so far takes its place in the line. No read of the store is under way."""
        number = stored.sequence_number
        if number <= self.upto:
            self.requeue(number)
        elif number > self.cold_upto:
            self.append(stored)
        # Between the two it is cold: the store has it in its place, and it is read with the others.

    def append_cold(self, sequence_number: int) -> None:
        """A new message at the tail whose body is not at hand: the store has it."""
        self.cold_upto = sequence_number

    def has_room(self) -> bool:
        """One message always has: a queue must not starve because others fill the budget."""
        return not self.resident or (
            len(self.resident) < limits.RESIDENT_MESSAGES_MAX
            and self.resident_bytes < limits.RESIDENT_BYTES_MAX
            and self.budget.bytes_used < self.budget.bytes_max
        )

    def is_long(self, waiting: int) -> bool:
        """Half full, or full already. `waiting`: all that wait, here and in the store."""
        return (
            self.cold_upto > self.upto
            or waiting * 2 >= limits.RESIDENT_MESSAGES_MAX
            or self.resident_bytes * 2 >= limits.RESIDENT_BYTES_MAX
        )

    def is_short(self, waiting: int) -> bool:
        """An eighth full, and nothing in the store."""
        return (
            waiting * 8 <= limits.RESIDENT_MESSAGES_MAX
            and self.resident_bytes * 8 <= limits.RESIDENT_BYTES_MAX
            and self.cold_upto <= self.upto
        )

    def retain(self, stored: StoredMessage) -> None:
        size = len(stored.message.raw)
        if stored.overlay is not None:
            size += stored.overlay.size_bytes
        self.resident[stored.sequence_number] = stored
        self.resident_bytes += size
        self.budget.bytes_used += size + limits.RESIDENT_MESSAGE_BYTES

    def evict(self, sequence_number: int) -> StoredMessage | None:
        """Forget the body; the number stays in `line` and is skipped there."""
        stored = self.resident.pop(sequence_number, None)
        if stored is not None:
            size = len(stored.message.raw)
            if stored.overlay is not None:
                size += stored.overlay.size_bytes
            self.resident_bytes -= size
            self.budget.bytes_used -= size + limits.RESIDENT_MESSAGE_BYTES
        return stored

    def requeue(self, sequence_number: int) -> None:
        """A message that was delivered, or hidden, takes its place by its number."""
        assert sequence_number <= self.upto, "only what was resident can come back"
        assert sequence_number not in self.returned_numbers, "a message returns once"
        self.returned_numbers.add(sequence_number)
        heapq.heappush(self.returned, sequence_number)

    def is_waiting(self, sequence_number: int) -> bool:
        """Whether a message waits: here, in the store only, or returned; it is neither locked nor gone."""
        return (
            sequence_number > self.upto or sequence_number in self.resident or sequence_number in self.returned_numbers
        )

    def remove(self, sequence_number: int) -> None:
        """The message is gone by another way than delivery (expired, deleted)."""
        self.evict(sequence_number)
        self.returned_numbers.discard(sequence_number)  # and skipped in the heap

    def _trim(self) -> None:
        """Take numbers off the heads that are no longer waiting."""
        while self.returned and self.returned[0] not in self.returned_numbers:
            heapq.heappop(self.returned)
        while self.line and self.line[0] not in self.resident:
            self.line.popleft()

    def pop(self) -> StoredMessage | None:
        """The next message, if its body is in memory; None when there is none or it must be read first."""
        while True:
            if not self.returned:
                while self.line:
                    stored = self.evict(self.line.popleft())
                    if stored is not None:
                        return stored
                return None
            self._trim()
            if self.returned and (not self.line or self.returned[0] < self.line[0]):
                number = self.returned[0]
                if number not in self.resident:
                    return None
                heapq.heappop(self.returned)
                self.returned_numbers.discard(number)
                return self.evict(number)
            if not self.returned and not self.line:
                return None
            if self.line:
                stored = self.evict(self.line.popleft())
                if stored is not None:
                    return stored

    def unread_returned(self, count: int) -> list[int]:
        """The first returned numbers whose bodies must be read before the line can go on; [] if it can."""
        self._trim()
        if not self.returned or self.returned[0] in self.resident:
            return []
        if self.line and self.line[0] < self.returned[0]:
            return []
        first = heapq.nsmallest(count * 2, self.returned)
        return [n for n in first if n in self.returned_numbers and n not in self.resident][:count]

    def wants_more(self) -> bool:
        """The line is running low and the store has more."""
        return self.cold_upto > self.upto and len(self.line) < limits.LOAD_MESSAGES // 2 and self.has_room()

    def refill(self, messages: list[StoredMessage], answered_upto: int) -> None:
        """Messages read from the store, in order; everything up to `answered_upto` is now in memory or gone."""
        for stored in messages:
            assert stored.sequence_number > self.upto, "the store answered what was in memory already"
            self.retain(stored)
            self.line.append(stored.sequence_number)
            self.upto = stored.sequence_number
        if answered_upto > self.upto:
            self.upto = answered_upto

    def clear(self) -> None:
        """The entity is deleted."""
        self.budget.bytes_used -= self.resident_bytes + len(self.resident) * limits.RESIDENT_MESSAGE_BYTES
        self.resident.clear()
        self.line.clear()
        self.returned.clear()
        self.returned_numbers.clear()
        self.resident_bytes = 0
        self.cold_upto = self.upto
