"""Locks on messages: volatile (contract H16), one table per entity.

All locks of an entity last equally long, so the order of insertion is the order of expiry: a renewed lock is taken out
and put in again at the end. Nothing is scanned and no lock has a timer of its own.
"""

from typing import Final

from spillway.model.message import DEFERRED, Overlay, StoredMessage

_MULTIPLIER: Final = 0x3779B97F4A7C15  # odd, so that the product below is a bijection on 56 bits
_MASK: Final = 0xFFFFFFFFFFFFFF
_LAST_BYTES: Final[list[bytes]] = [bytes([value]) for value in range(256)]
LOCK_BYTES: Final = 400  # what a lock takes in memory, besides properties that settlements have added
NEVER_ENDS_MS: Final = 1 << 62


class LockTokens:
    """Tokens that are never handed out twice: eight random bytes of this life and a counter.

    The counter is scattered but for its last byte, so 256 tokens in a row share all the others.
    """

    def __init__(self, seed: bytes) -> None:
        assert len(seed) == 8, "a seed has eight bytes"
        self.seed = seed
        self.count = 0
        self.shared = b""  # all bytes of a token but the last one

    def next(self) -> bytes:
        self.count += 1
        last = self.count & 0xFF
        if last == 0 or not self.shared:
            self.shared = self.seed + (((self.count >> 8) * _MULTIPLIER) & _MASK).to_bytes(7, "big")
        return self.shared + _LAST_BYTES[last]


class Holder:
    """A holder of locks: a receiving link. `locked_count` bounds what one receiver can pile up."""

    def __init__(self) -> None:
        self.locked_count = 0


class LockBudget:
    """What the locks of a namespace take, and may take."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0


class LockShare:
    """What the locks of one entity take. They outlive their links, so who locks and leaves gains nothing by it.

    An entity may have as much as is left for the others: however much is locked in one, another finds room.
    """

    def __init__(self, budget: LockBudget) -> None:
        self.budget = budget
        self.bytes_used = 0

    def has_room(self) -> bool:
        return self.bytes_used <= self.budget.bytes_max - self.budget.bytes_used

    def count(self, count: int) -> None:
        self.bytes_used += count
        self.budget.bytes_used += count


class Lock:
    """A claim on one message. Keeps what settling needs, not the body: that is read again if the message returns."""

    def __init__(self, token: bytes, stored: StoredMessage, locked_until_ms: int, holder: Holder | None) -> None:
        self.token = token
        self.locked_until_ms = locked_until_ms
        self.holder = holder  # None: received by number, without a link
        self.sequence_number = stored.sequence_number
        self.delivery_count = stored.delivery_count
        self.expires_ms = stored.expires_ms
        message = stored.message
        self.size_bytes = len(message.raw)
        self.own_properties_bytes = message.application_end - message.properties_end
        self.state = stored.state
        self.session_id = stored.session_id
        self.overlay: Overlay | None = stored.overlay


class LockTable:
    def __init__(self, share: LockShare) -> None:
        self.share = share
        self.noted_bytes = 0  # what the share was told that they take
        self.overlay_bytes = 0  # of what settlements have added to their messages
        self.by_token: dict[bytes, Lock] = {}
        self.deferred_numbers: set[int] = set()  # of the messages that are deferred and locked
        self.earliest_ms = 0  # no lock ends before this; 0 when there is none

    def add(self, lock: Lock) -> None:
        assert lock.token not in self.by_token, "a token is never used twice"
        self.by_token[lock.token] = lock
        if lock.state == DEFERRED:
            self.deferred_numbers.add(lock.sequence_number)
        if lock.overlay is not None:
            self.overlay_bytes += lock.overlay.size_bytes
        if self.earliest_ms == 0:
            self.earliest_ms = lock.locked_until_ms
        if lock.holder is not None:
            lock.holder.locked_count += 1

    def remove(self, token: bytes) -> Lock | None:
        lock = self.by_token.get(token)
        if lock is not None:
            del self.by_token[token]
            if lock.overlay is not None:
                self.overlay_bytes -= lock.overlay.size_bytes
            if lock.state == DEFERRED:
                self.deferred_numbers.discard(lock.sequence_number)
            if lock.holder is not None:
                lock.holder.locked_count -= 1
        return lock

    def note(self) -> None:
        """Tell the share what they take now: when they are served, not for each of them."""
        held_bytes = len(self.by_token) * LOCK_BYTES + self.overlay_bytes
        if held_bytes != self.noted_bytes:
            self.share.count(held_bytes - self.noted_bytes)
            self.noted_bytes = held_bytes

    def renew(self, lock: Lock, locked_until_ms: int) -> None:
        """Takes it to the end of the order."""
        del self.by_token[lock.token]
        lock.locked_until_ms = locked_until_ms
        self.by_token[lock.token] = lock

    def pop_expired(self, now_ms: int, count_max: int) -> list[Lock]:
        """Locks that ended at or before now, earliest first, so many at most; they are gone from the table."""
        expired: list[Lock] = []
        self.earliest_ms = 0
        for lock in self.by_token.values():
            if lock.locked_until_ms > now_ms or len(expired) >= count_max:
                self.earliest_ms = lock.locked_until_ms
                break
            expired.append(lock)
        for lock in expired:
            self.remove(lock.token)
        self.note()
        return expired

    def pop_some(self, count_max: int) -> list[Lock]:
        """The earliest locks, whenever they end; they are gone from the table."""
        return self.pop_expired(NEVER_ENDS_MS, count_max)

    def pop_all(self) -> list[Lock]:
        locks = list(self.by_token.values())
        for lock in locks:
            self.remove(lock.token)
        self.earliest_ms = 0
        self.note()
        return locks
