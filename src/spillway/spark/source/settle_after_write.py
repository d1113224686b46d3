"""Settling what was read back from files, once the files are on the disk. All of it happens on executors."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from spillway.spark.platform.access import Access
from spillway.spark.platform.paths import local_path
from spillway.spark.source.settle import settle_groups
from spillway.syphon.crash import COMPLETED, RECEIVED, SENT, crash_at, variables

FILE: Final = "file"
RESULT: Final = "entity string, settled long, lost long"

Work = Callable[[Iterator[Any]], Iterator[Any]]


def settle_after_write(access: Access, has_sessions: bool, out: str, environment: Mapping[str, str]) -> Work:
    """Of rows with `entity`, `lock_token`, `session_id` and the `file` they are in: sync the file, then settle them."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        counts: dict[str, list[int]] = {}
        synced = Synced(out)
        with variables(environment):
            for batch in batches:
                for url in batch.column(FILE).unique().to_pylist():
                    synced.add(url)
                crash_at(SENT)
                groups = groups_of(batch, has_sessions)
                for key, gone in settle_groups(access, groups).items():
                    count = counts.setdefault(key[0], [0, 0])
                    count[0] += len(groups[key]) - gone.lost
                    count[1] += gone.lost
                crash_at(COMPLETED)
        columns = {
            "entity": pa.array(list(counts), pa.string()),
            "settled": pa.array([count[0] for count in counts.values()], pa.int64()),
            "lost": pa.array([count[1] for count in counts.values()], pa.int64()),
        }
        yield pa.RecordBatch.from_pydict(columns)

    return work


def groups_of(batch: Any, has_sessions: bool) -> dict[tuple[str, str | None], list[uuid.UUID]]:
    """Lock tokens by entity, and by session where these hold the locks."""
    entities = batch.column("entity").to_pylist()
    tokens = batch.column("lock_token").to_pylist()
    sessions = batch.column("session_id").to_pylist() if has_sessions else [None] * len(tokens)
    groups: dict[tuple[str, str | None], list[uuid.UUID]] = {}
    for entity, session_id, token in zip(entities, sessions, tokens, strict=True):
        groups.setdefault((entity, session_id), []).append(uuid.UUID(token))
    return groups


def die_when_received(environment: Mapping[str, str]) -> Work:
    """Hands rows on as they are, past the crash point between receiving and writing; only tests ask for it."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        with variables(environment):
            for batch in batches:
                if batch.num_rows:
                    crash_at(RECEIVED)
                yield batch

    return work


class Synced:
    """Files and directories that this task has seen to be on the disk.

    Only of the local file system, where a file that was closed and renamed may still be in memory alone. What the
    committer of another file system has committed, that one keeps.
    """

    def __init__(self, out: str) -> None:
        self._out = local_path(out)
        self._done: set[Path] = set()

    def add(self, url: str) -> None:
        path = local_path(url, is_quoted=True)
        if path is None or path in self._done:
            return
        self._sync(path)
        for directory in path.parents:
            self._sync(directory)
            # The directory above holds the name of this one, which the job may have made.
            if self._out is None or directory == self._out.parent:
                break

    def _sync(self, path: Path) -> None:
        if path in self._done:
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self._done.add(path)
