"""`foreachBatch(settling(function, options))`: a batch is received once, handed to a function, and settled after it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spillway.spark.source.options import access_of
from spillway.spark.source.settle import ABANDON, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchFunction = Callable[["DataFrame", int], Any]


def settling(function: BatchFunction, options: Mapping[str, str]) -> Callable[["DataFrame", int], None]:
    """A function for `foreachBatch` that completes the messages of a batch once `function` has returned.

    `function` is given the rows and the batch's number, as by `foreachBatch`, and has stored what it wants to keep
    when it returns; `options` are the reader's. It may use the rows more than once: they were received before, and
    are kept by the executors until it returns. If it raises, the messages are abandoned, and can be received again
    at once. An executor that is lost meanwhile fails the batch: its rows cannot be made again, only received again.
    """
    access_of(options)  # what is wrong with them is said now, not in the first batch

    def settle_after(batch: "DataFrame", number: int) -> None:
        with received_once(batch) as rows:
            try:
                function(rows, number)
            except BaseException:
                # Its own reason is what the caller has to hear.
                with contextlib.suppress(Exception):
                    settle(rows, options, ABANDON)
                raise
            settle(rows, options)

    return settle_after


@contextlib.contextmanager
def received_once(batch: "DataFrame") -> "Iterator[DataFrame]":
    """The rows of a frame, cut off from where they came from.

    Not `cache`: where a cached partition is lost, Spark would run the source again, which receives other messages,
    and these would be settled although nobody has stored them.
    """
    rows = batch.localCheckpoint(eager=True)
    try:
        yield rows
    finally:
        _free(rows)


def _free(rows: "DataFrame") -> None:
    """Without this they stay on the executors until the JVM collects its garbage, as they do on Spark Connect."""
    with contextlib.suppress(Exception):
        rows._jdf.queryExecution().analyzed().rdd().unpersist(False)
