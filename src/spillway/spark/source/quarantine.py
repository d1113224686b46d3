"""Where refused rows go with `onRefused=quarantine`: a directory of Parquet files, or a queue.

At least once, as everything that is written: a batch that is tried again sets its rows aside again. A file appears
whole, or not at all, and only when its task is done.
"""

import base64
import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from spillway.client import OutgoingMessage
from spillway.spark.platform.access import OptionError
from spillway.spark.source.refusals import RefusedRow

REASON: Final = "refused_reason"
ENTITY: Final = "refused_entity"
TIME: Final = "refused_time"
ADDED: Final = (REASON, ENTITY, TIME)


class Quarantine(Protocol):
    """Of one attempt of a task."""

    def add(self, refused: Sequence[RefusedRow]) -> list[RefusedRow]:
        """Set rows aside; those that cannot be are returned."""

    def finish(self) -> None:
        """All rows of the task are where they belong."""

    def abandon(self) -> None:
        """The task has failed: nothing of it is to be seen."""


def check_directory(path: Path) -> None:
    """That files can be written there, as far as the driver can see: before anything is sent."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{uuid.uuid4().hex}.probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OptionError(f"quarantine {path}: it cannot be written there: {error.strerror}") from None


class DirectoryQuarantine:
    """One Parquet file: the rows as they were, with `refused_reason`, `refused_entity` and `refused_time`."""

    def __init__(self, directory: Path) -> None:
        # Spark passes over names that begin with a point.
        name = f"refused-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex}"
        self._path = directory / f"{name}.parquet"
        self._new = directory / f".{name}.new"
        self._writer: Any = None

    def add(self, refused: Sequence[RefusedRow]) -> list[RefusedRow]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert refused, "no file is begun for nothing"
        table = pa.Table.from_batches([_with_reason(each) for each in refused])
        if self._writer is None:
            self._new.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._new, table.schema)
        self._writer.write_table(table)
        return []

    def finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        _sync(self._new)
        self._new.rename(self._path)
        _sync(self._path.parent)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with contextlib.suppress(OSError):
            self._new.unlink(missing_ok=True)


def _with_reason(refused: RefusedRow) -> Any:
    """The row as it was, with why, for whom and when."""
    import pyarrow as pa

    batch = refused.row.batch
    assert batch is not None, "a row of a task has its batch"
    row = batch.slice(refused.row.position, 1)
    kept = [name for name in row.schema.names if name not in ADDED]  # what was refused before is refused anew
    columns = [row.column(name) for name in kept]
    fields = [row.schema.field(name).with_nullable(True) for name in kept]
    moment = pa.timestamp("us", "UTC")
    for name, value, kind in (
        (REASON, refused.reason, pa.string()),
        (ENTITY, refused.row.out[0], pa.string()),
        (TIME, datetime.now(UTC), moment),
    ):
        columns.append(pa.array([value], kind))
        fields.append(pa.field(name, kind))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def notice_of(refused: RefusedRow) -> OutgoingMessage:
    """A refused row as a message: JSON with the reason and the row, and an id that is the same at every try."""
    about = {"reason": refused.reason, "entity": refused.row.out[0], "row": _plain_row(refused)}
    body = json.dumps(about, ensure_ascii=False, default=str)
    return OutgoingMessage(
        body,
        message_id=hashlib.sha256(body.encode()).hexdigest(),
        subject="refused",
        content_type="application/json",
    )


def _plain_row(refused: RefusedRow) -> dict[str, object]:
    batch = refused.row.batch
    assert batch is not None, "a row of a task has its batch"
    row = batch.slice(refused.row.position, 1)
    plain: dict[str, object] = {}
    for name in row.schema.names:
        try:
            value = row.column(name).to_pylist()[0]
        except (ValueError, OverflowError):  # a time that no calendar has
            value = str(row.column(name).cast("int64")[0])
        if isinstance(value, bytes):
            plain[f"{name}_base64"] = base64.b64encode(value).decode()
        elif isinstance(value, list):
            plain[name] = {str(key): _plain(each) for key, each in value}
        else:
            plain[name] = _plain(value)
    return plain


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
