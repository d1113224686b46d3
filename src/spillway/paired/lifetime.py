"""In a syphon's host the two factories live and die together (contract F12).

Partner faulted: the other is faulted at once. Partner closed: the other has five seconds to follow, then it is
faulted; a syphon with one arm would take messages out of the backlog and have nowhere to put them.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from spillway.paired.errors import FactoryClosed

GRACE_S: Final = 5.0


class Factory(Protocol):
    """What of a factory has an end."""

    host: str
    is_closed: bool
    fault: BaseException | None
    on_end: list[Callable[[], None]]

    async def abort(self, error: BaseException) -> None: ...


class Partners:
    def __init__(self, primary: Factory, secondary: Factory) -> None:
        self.factories = (primary, secondary)
        self.tasks: set[asyncio.Task[None]] = set()

    def watch_each_other(self) -> None:
        one, other = self.factories
        assert one is not other, "a factory is not its own partner"
        one.on_end.append(lambda: self._on_end(one, other))
        other.on_end.append(lambda: self._on_end(other, one))

    def _on_end(self, ended: Factory, other: Factory) -> None:
        if other.is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._follow(ended, other))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _follow(self, ended: Factory, other: Factory) -> None:
        if ended.fault is not None:
            await other.abort(FactoryClosed(f"its partner, the factory of {ended.host}, was faulted: {ended.fault}"))
            return
        await asyncio.sleep(GRACE_S)
        if not other.is_closed:
            await other.abort(
                FactoryClosed(
                    f"its partner, the factory of {ended.host}, was closed, and this one was not within {GRACE_S:g} s"
                )
            )
