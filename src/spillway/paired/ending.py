"""Ending what calls the SDK: tasks, also those that did not hear of it, and what the SDK gave us.

`asyncio.wait_for` of Python 3.11, under every read of the SDK, loses a cancellation that comes in the same moment as
what it waits for. A task that has lost one goes on as if nothing had been: so it is told again.
"""

import asyncio
import contextlib
from typing import Any, Final

CLOSE_S: Final = 5.0  # for a link or a connection to say goodbye
AGAIN_S: Final = CLOSE_S + 1.0  # longer than a task may take to clean up


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and return when all have ended; who cancels this meanwhile waits for that too."""
    left = {task for task in tasks if not task.done()}
    interruption: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=AGAIN_S)
        except asyncio.CancelledError as error:
            interruption = error
        left = {task for task in left if not task.done()}
    for task in tasks:
        if not task.cancelled():
            task.exception()  # what it ended with is no longer of interest
    if interruption is not None:
        raise interruption


async def close_quietly(closable: Any) -> None:
    """A peer that has fallen silent does not keep us from leaving."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await closable.close()
