"""Many lock tokens in one request, although a request with one lost lock in it is refused as a whole."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from spillway.client import (
    ABANDONED,
    COMPLETED,
    DEAD_LETTERED,
    DEFERRED,
    Management,
    MessageLockLost,
    SessionLockLost,
)

TOKENS_AT_A_TIME: Final = 500
PIECES: Final = (TOKENS_AT_A_TIME, 25, 1)  # after a refusal: pieces, then single tokens
REQUESTS_AT_A_TIME: Final = 8
assert tuple(sorted(PIECES, reverse=True)) == PIECES and PIECES[-1] == 1, "pieces get smaller, down to one token"

# What a user calls them.
SETTLEMENTS: Final = {
    "complete": COMPLETED,
    "abandon": ABANDONED,
    "defer": DEFERRED,
    "dead_letter": DEAD_LETTERED,
}

Call = Callable[[Sequence[uuid.UUID]], Awaitable[object]]


async def settle_tokens(
    management: Management,
    tokens: Sequence[uuid.UUID],
    settlement: str = "complete",
    *,
    session_id: str | None = None,
    reason: str | None = None,
    description: str | None = None,
) -> list[uuid.UUID]:
    """Settle messages by their lock tokens, from any process; the answer is the tokens whose locks were lost."""
    status = SETTLEMENTS[settlement]

    async def settle(some: Sequence[uuid.UUID]) -> None:
        await management.settle(some, status, reason=reason, description=description, session_id=session_id)

    return await in_pieces(settle, tokens)


async def renew_tokens(management: Management, tokens: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Renew locks; the answer is the tokens that are held still: the others are settled meanwhile, or expired."""
    gate = asyncio.Semaphore(REQUESTS_AT_A_TIME)
    chunks = [tokens[at : at + TOKENS_AT_A_TIME] for at in range(0, len(tokens), TOKENS_AT_A_TIME)]
    held = await asyncio.gather(*[_renew(management, chunk, gate) for chunk in chunks])
    assert sum(map(len, held)) <= len(tokens), "no lock is won by renewing"
    return [token for some in held for token in some]


async def _renew(management: Management, tokens: Sequence[uuid.UUID], gate: asyncio.Semaphore) -> Sequence[uuid.UUID]:
    """Rows are settled together: where the first and the last token have gone, those between have too.

    To ask for each would cost as much as settling them did. One that is wrongly given up is received once more.
    """
    try:
        async with gate:
            await management.renew_locks(tokens)
        return tokens
    except (MessageLockLost, SessionLockLost):
        if len(tokens) == 1:
            return []
    if len(tokens) > 2:
        ends = await asyncio.gather(*[_renew(management, [token], gate) for token in (tokens[0], tokens[-1])])
        if not any(ends):
            return []
    middle = len(tokens) // 2
    halves = await asyncio.gather(*[_renew(management, half, gate) for half in (tokens[:middle], tokens[middle:])])
    return [token for half in halves for token in half]


async def in_pieces(call: Call, tokens: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Call with all of them, a request at a time; the answer is the tokens that it was refused for."""
    gate = asyncio.Semaphore(REQUESTS_AT_A_TIME)
    if 0 < len(tokens) <= TOKENS_AT_A_TIME:  # as of most sessions
        return await _piece(call, tokens, gate)
    chunks = [tokens[at : at + TOKENS_AT_A_TIME] for at in range(0, len(tokens), TOKENS_AT_A_TIME)]
    lost = await asyncio.gather(*[_piece(call, chunk, gate) for chunk in chunks])
    assert sum(map(len, lost)) <= len(tokens), "no more is lost than was asked for"
    return [token for some in lost for token in some]


async def _piece(call: Call, tokens: Sequence[uuid.UUID], gate: asyncio.Semaphore) -> list[uuid.UUID]:
    try:
        async with gate:
            await call(tokens)
        return []
    except (MessageLockLost, SessionLockLost) as error:
        if len(tokens) == 1 or isinstance(error, SessionLockLost):
            return list(tokens)
    smaller = next(size for size in PIECES if size < len(tokens))
    pieces = [tokens[at : at + smaller] for at in range(0, len(tokens), smaller)]
    lost = await asyncio.gather(*[_piece(call, piece, gate) for piece in pieces])
    return [token for some in lost for token in some]
