"""Where the messages of an entity begin and end, found by looking at single ones.

Asked by the driver when it plans a batch. It asks for messages without their bodies, so that none passes through it.
"""

from typing import Final

from spillway.client import Management

# A service that spreads an entity over partitions puts the partition's number into the upper bits: such numbers do
# not grow with time, and "everything after this one" means nothing.
PARTITIONED_FROM: Final = 2**48
ACTIVE: Final = 0
DEFERRED: Final = 1
LOOKED_AT_MAX: Final = 1_000  # deferred or scheduled messages that are passed over in search of an active one
PASSED_OVER_MAX: Final = 100_000  # the same where it is said to a user that somebody has locked messages
PEEKED_AT_ONCE: Final = 500
SESSIONS_MAX: Final = 100_000
SESSIONS_PAGE: Final = 500


class NotInOneRow(RuntimeError):
    """The entity is partitioned by a service that numbers each partition by itself."""


async def first_from(management: Management, sequence_number: int, session_id: str | None = None) -> int | None:
    """The first sequence number at or after this one; None if there is none."""
    found = await management.peek(sequence_number, 1, session_id=session_id, omit_body=True)
    if not found:
        return None
    return checked_number(management, found[0].sequence_number)


def checked_number(management: Management, number: int | None) -> int:
    """A sequence number that grows with time; raises `NotInOneRow` for any other."""
    if number is None:
        raise NotInOneRow(f"'{management.path}' shows messages without sequence numbers, which cannot be browsed")
    if number >= PARTITIONED_FROM:
        raise NotInOneRow(
            f"'{management.path}' is partitioned and numbers its messages by partition, so it cannot be browsed in "
            "order: take mode=peeklock"
        )
    return number


async def last_of(management: Management, at_least: int) -> int:
    """The highest sequence number, from one that is known to exist on: steps that double, then halves."""
    low, step = at_least, 1
    while True:
        found = await first_from(management, low + step)
        if found is None:
            break
        low, step = found, step * 2
    high = low + step  # nothing from here on
    while high - low > 1:
        middle = (low + high) // 2
        found = await first_from(management, middle)
        if found is None:
            high = middle
        else:
            low = found
    return low


async def last_until(management: Management, first: int, end_at: int | None) -> int:
    """The highest sequence number up to this one, from one that is known to exist on; at most a few beyond the last."""
    if end_at is not None and (end_at <= first or await first_from(management, end_at) is not None):
        return end_at
    return await last_of(management, first)


async def end_of(management: Management, first: int, count_max: int | None) -> int:
    """Where a batch with this first message ends (exclusive): never more than `count_max` messages, none left out."""
    if count_max is not None and await first_from(management, first + count_max) is not None:
        return first + count_max  # sequence numbers may have gaps: these are at most as many messages
    end = await last_of(management, first) + 1
    return end if count_max is None else min(end, first + count_max)  # more may have come meanwhile


async def first_active(management: Management) -> int | None:
    """The first message that is neither deferred nor scheduled, whoever may have locked it."""
    at, looked_at = 0, 0
    while looked_at < LOOKED_AT_MAX:
        found = await management.peek(at, 1 if looked_at == 0 else 50, omit_body=True)
        if not found:
            return None
        for message in found:
            number = message.sequence_number or 0
            if message.state == ACTIVE:
                return number
            at = number + 1
        looked_at += len(found)
    return at


async def has_active(management: Management, at: int, last: int) -> tuple[bool, int]:
    """Whether a message up to `last` is neither deferred nor scheduled, whoever may have locked it; and the number to
    look from the next time, behind deferred messages at the head: nobody but who deferred them receives those.

    Behind more than `PASSED_OVER_MAX` others nothing is looked for at a time, and the next look goes on.
    """
    head, is_head, looked_at = at, True, 0
    while at <= last and looked_at < PASSED_OVER_MAX:
        found = await management.peek(at, PEEKED_AT_ONCE, omit_body=True)
        if not found:
            break
        for message in found:
            at = (message.sequence_number or 0) + 1
            if message.state == ACTIVE:
                return at - 1 <= last, head
            is_head = is_head and message.state == DEFERRED
            head = at if is_head else head
        looked_at += len(found)
    return False, head


async def sessions_of(management: Management) -> list[str]:
    """Every session that has messages."""
    found: list[str] = []
    while len(found) < SESSIONS_MAX:
        page = await management.sessions(len(found), SESSIONS_PAGE)
        found += page
        if len(page) < SESSIONS_PAGE:
            break
    return sorted(set(found))
