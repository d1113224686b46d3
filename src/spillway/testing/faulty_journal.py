"""A journal on a bad disk: it can be slow, stand still, fail, be full, or lose power. Around any real journal.

While it is held, nothing reaches the journal inside, so what a crash leaves is exactly what was told to be durable.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from spillway.model.records import Catalogue, Query, Rows, Turn
from spillway.store.day_files import SealedDays
from spillway.store.journal import Journal, JournalListener


class FaultyJournal:
    """`delay_s` is added between durable and told, to every commit, as a slower disk would."""

    def __init__(self, inner: Journal, delay_s: float = 0.0) -> None:
        self.inner = inner
        self.delay_s = delay_s
        self.is_held = False
        self.free_bytes_said: int | None = None  # instead of the real ones
        self._held: deque[tuple[Turn | Query, int]] = deque()
        self._fault: BaseException | None = None
        self._has_failed = False
        self._submitted_bytes = 0
        self._durable_bytes = 0
        self._sizes: deque[tuple[int, int]] = deque()  # ticket, bytes
        self._listener: JournalListener | None = None
        self._delayed: SimpleQueue[tuple[float, Callable[[], None] | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- what a test does to it ----------------------------------------------------------------------------------

    def suspend(self) -> None:
        """The disk stands still: nothing becomes durable, nothing is loaded."""
        self.is_held = True

    def release(self, count: int | None = None) -> None:
        """Let so many turns and loads through; all of them, and whatever comes, if no number is given."""
        if count is None:
            self.is_held = False
        left = len(self._held) if count is None else count
        while left > 0 and self._held:
            left -= 1
            self._pass_on(*self._held.popleft())

    def fail_next(self, error: BaseException) -> None:
        """The next turn that reaches the disk fails, and everything after it."""
        self._fault = error

    def crash(self) -> Journal:
        """The power goes: what was held is gone, nobody is told anything more. The journal inside has survived."""
        self._held.clear()
        self._has_failed = True
        return self.inner

    # -- Journal -------------------------------------------------------------------------------------------------

    def recover(self) -> Catalogue:
        return self.inner.recover()

    def start(self, listener: JournalListener, post: Callable[[Callable[[], None]], None]) -> None:
        self._listener = listener
        if self.delay_s > 0:
            self._thread = threading.Thread(target=self._run_delayed, args=(post,), name="slow disk", daemon=True)
            self._thread.start()
            self.inner.start(self, self._post_delayed)
        else:
            self.inner.start(self, post)

    def submit(self, turn: Turn, ticket: int) -> None:
        self._submitted_bytes += turn.size_bytes
        self._sizes.append((ticket, turn.size_bytes))
        self._accept(turn, ticket)

    def load(self, query: Query, ticket: int) -> None:
        self._accept(query, ticket)

    @property
    def is_copying(self) -> bool:
        return False

    @property
    def pending_bytes(self) -> int:
        return self._submitted_bytes - self._durable_bytes

    @property
    def free_bytes(self) -> int:
        return self.inner.free_bytes if self.free_bytes_said is None else self.free_bytes_said

    @property
    def set_apart_count(self) -> int:
        return self.inner.set_apart_count

    @property
    def days(self) -> SealedDays:
        return self.inner.days

    def close(self) -> None:
        self.release()
        self.inner.close()
        if self._thread is not None:
            self._delayed.put((0.0, None))
            self._thread.join()

    def _accept(self, what: Turn | Query, ticket: int) -> None:
        if self.is_held:
            self._held.append((what, ticket))
        else:
            self._pass_on(what, ticket)

    def _pass_on(self, what: Turn | Query, ticket: int) -> None:
        if self._has_failed:
            return
        if isinstance(what, Query):
            self.inner.load(what, ticket)
        elif self._fault is not None:
            self._has_failed = True
            assert self._listener is not None, "start comes first"
            self._listener.on_failed(self._fault)
        else:
            self.inner.submit(what, ticket)

    def _post_delayed(self, say: Callable[[], None]) -> None:
        self._delayed.put((time.monotonic() + self.delay_s, say))

    def _run_delayed(self, post: Callable[[Callable[[], None]], None]) -> None:
        while True:
            at, say = self._delayed.get()
            if say is None:
                return
            time.sleep(max(0.0, at - time.monotonic()))
            post(say)

    # -- Listener, to the journal inside -------------------------------------------------------------------------

    def on_durable(self, ticket: int) -> None:
        if self._has_failed:
            return
        while self._sizes and self._sizes[0][0] <= ticket:
            self._durable_bytes += self._sizes.popleft()[1]
        assert self._listener is not None, "start comes first"
        self._listener.on_durable(ticket)

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        if not self._has_failed:
            assert self._listener is not None, "start comes first"
            self._listener.on_loaded(ticket, rows)

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            assert self._listener is not None, "start comes first"
            self._listener.on_failed(error)
