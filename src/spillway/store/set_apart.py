"""Rows that cannot be read, kept as they were found: a file beside the journal, one JSON object a line.

A row whose checksum does not hold, or whose content nobody understands, is never served and never stops anything. It is
copied here once, with the place it had and what is wrong with it, and said once in the log. What can be made anew from
other rows is; the file then has what was there before. `spillway store set-apart` shows it.
"""

import base64
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from spillway.store.own_files import open_own

log = logging.getLogger(__name__)

NAME: Final = "set-apart.jsonl"
ROWS_MAX: Final = 10_000  # kept in the file: more of them are counted, and found by the full check
LOGGED_MAX: Final = 100  # of one life; more of them are counted

COLUMNS: Final = {
    "message": (
        *("key", "state", "due_ms", "enqueued_ms", "expires_ms", "delivery_count", "enqueue_sequence_number"),
        *("session_id", "checksum", "overlay", "meta", "body_id", "raw"),
    ),
    "session": ("entity_id", "session_id", "active", "ready_since", "state", "state_ms", "checksum"),
    "entity": (
        *("id", "kind", "path", "settings", "parent_id", "put_checksum", "last_sequence_number", "active", "deferred"),
        *("scheduled", "hidden", "size_bytes", "used_ms", "counters_checksum", "tally"),
    ),
    "rule": ("entity_id", "number", "name", "rule", "checksum"),
    "meta": ("format", "clock_ms", "last_entity_id", "last_body_number", "created_ms", "checksum"),
    "accepted_id": ("key", "last_ms", "ids", "checksum"),
    "id_index": ("digest", "sequence_number", "accepted_ms", "checksum"),
    "id_indexed": ("upto", "accepted_ms", "checksum"),
    "ledger": ("minute", "entity", "kind", "operations", "units", "bytes", "proof"),
    "ledger_sealed": ("before_minute", "mirror"),
    "removed": ("entity_id",),
}


class SetApart:
    """Rows of one journal that were set apart. Without a path nothing is kept: for a check that only reads."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: list[dict[str, Any]] = []  # in this life, for who only looks
        self.count = 0
        self._known: set[str] = set()
        self._unwritten: list[bytes] = []
        self._logged_count = 0
        if path is not None:
            for row in read_set_apart(path):
                self._known.add(_name_of(row))
            self.count = len(self._known)

    def note(
        self, table: str, place: object, columns: Sequence[object], reason: str, entity: str = "", number: int = 0
    ) -> None:
        """This row, at this place in its table. Twice is once."""
        row: dict[str, Any] = {
            "table": table,
            "place": str(place),
            "entity": entity,
            "number": number,
            "reason": reason,
        }
        name = _name_of(row)
        if name in self._known:
            return
        self._known.add(name)
        self.count += 1
        row["found_ms"] = int(time.time() * 1000)
        row["columns"] = {key: _plain(value) for key, value in zip(COLUMNS[table], columns, strict=False)}
        if self.path is None:
            self.found.append(row)
            return
        self._log(row)
        if self.count <= ROWS_MAX:
            self._unwritten.append(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            self._write()

    def _log(self, row: dict[str, Any]) -> None:
        self._logged_count += 1
        if self._logged_count <= LOGGED_MAX:
            log.error("%s: %s. It is set apart: spillway store set-apart shows it", self.path, text_of(row))
        elif self._logged_count == LOGGED_MAX + 1:
            log.error("%s: more rows are set apart than are said here: spillway store check finds all", self.path)

    def _write(self) -> None:
        """Synced: what is made anew from other rows is not there any more. Without space it is tried with the next."""
        assert self.path is not None, "who only looks keeps nothing"
        try:
            file = open_own(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            try:
                while self._unwritten:
                    line = self._unwritten[0]
                    if os.write(file, line) < len(line):
                        break
                    del self._unwritten[0]
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            log.warning("%s: %s", self.path, error.strerror)


def read_set_apart(path: Path) -> Iterator[dict[str, Any]]:
    """What was set apart, in the order it was found. A line that was cut short by a crash is passed over."""
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    with open(file, "rb") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and {"table", "place", "reason"} <= set(row):
                yield row


def text_of(row: dict[str, Any]) -> str:
    """One line for people."""
    table, entity, number, reason = row["table"], row.get("entity"), row.get("number"), row["reason"]
    if table == "message":
        return f"message {number} of {entity}: {reason}"
    if entity:
        return f"{entity}: {reason}"
    return str(reason)


def _name_of(row: dict[str, Any]) -> str:
    return f"{row['table']} {row['place']} {row['reason']}"


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    return value
