"""An event loop that a fork can leave alone."""

import asyncio
import os
import selectors


class ForkableLoop(asyncio.SelectorEventLoop):
    """A fork has none of its parent's threads, but shares the connections and the selector's kernel object with it."""

    def __init__(self) -> None:
        self._own_selector = selectors.DefaultSelector()
        self._is_abandoned = False
        super().__init__(self._own_selector)

    def abandon(self) -> None:
        """In the fork: whatever is thrown away here touches nothing of the parent's."""
        self._is_abandoned = True
        self._own_selector.close()

    def is_closed(self) -> bool:
        return self._is_abandoned or super().is_closed()


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for a thread of its own; the usual one where processes cannot be forked."""
    return ForkableLoop() if hasattr(os, "fork") else asyncio.new_event_loop()
