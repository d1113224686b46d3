"""Running streaming queries to their end."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

# Spark gives the Python process of a source ten seconds to start, whatever the machine is doing, and says this after.
# The query has done nothing by then.
NOT_BEGUN: Final = "Python worker failed to connect back"
TRIES_MAX: Final = 5

LAST_BATCH_S: Final = 120.0
LOOK_S: Final = 0.1
PROGRESS_S: Final = 1.0


def stop_between_batches(query: "StreamingQuery", say: Callable[[str], None]) -> None:
    """A batch under way ends first, if it does within reason: nothing that it has received waits for a lock to end."""
    until_s = time.monotonic() + LAST_BATCH_S
    last = _last_batch(query)
    if query.status["isTriggerActive"]:
        say("stopping after the batch under way")
        # Where one batch follows the other at once, the moment between them is too short to be seen.
        while query.status["isTriggerActive"] and _last_batch(query) == last and time.monotonic() < until_s:
            time.sleep(0.01)
    query.stop()


def _last_batch(query: "StreamingQuery") -> int | None:
    """The number of the last one that has ended."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


def wait_for_end(
    query: "StreamingQuery",
    stopped: threading.Event,
    say: Callable[[str], None],
    on_progress: "Callable[[StreamingQueryProgress], None] | None" = None,
) -> "StreamingQueryException | None":
    """Until it ends, or whoever runs it is told to stop; what it died of. `on_progress` hears every second."""
    looked_s = time.monotonic()
    try:
        while query.isActive and not stopped.wait(LOOK_S):
            if on_progress is None or time.monotonic() - looked_s < PROGRESS_S:
                continue
            looked_s = time.monotonic()
            progress = query.lastProgress
            if progress is not None:
                on_progress(progress)
    except KeyboardInterrupt:
        stopped.set()
    if stopped.is_set():
        stop_between_batches(query, say)
    return query.exception()


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C ask the job to end after the batch under way; a second one does what it did before.

    PySpark's own way with Ctrl-C is to cancel whatever runs: what a batch has received would wait for its locks to end.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one hears of signals
        yield
        return

    def first(number: int, frame: object) -> None:
        put_back()
        # Not here: the thread that is interrupted may hold the lock of the very event that is to be set.
        threading.Thread(target=stop, daemon=True).start()

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, first) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        put_back()


def run_to_end(start: "Callable[[], StreamingQuery]", timeout_s: float | None = None) -> "StreamingQuery":
    """Start a query that ends by itself and wait for it; one that was not begun on a busy machine is started again.

    Raises what the query failed with, or TimeoutError.
    """
    from pyspark.errors import StreamingQueryException

    for tries in range(1, TRIES_MAX + 1):
        query = start()
        try:
            has_ended = query.awaitTermination() if timeout_s is None else query.awaitTermination(timeout_s)  # type: ignore[arg-type]
        except StreamingQueryException as error:
            if NOT_BEGUN in str(error) and not query.recentProgress and tries < TRIES_MAX:
                continue
            raise
        if has_ended is False:
            query.stop()
            raise TimeoutError(f"the query has not ended after {timeout_s:g} s")
        return query
    raise AssertionError("the last try returns or raises")
