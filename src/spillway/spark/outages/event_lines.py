"""Files of a pairing's events (docs/events.md), read on an executor: checked rows, and what cannot be used and why.

A line that cannot be used is set aside with its number, and the others count. So is the end of a file that is damaged:
its lines stand for themselves, and what was read of it before is as good as ever.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypedDict

from spillway.spark.platform.line_files import (
    LINE_BYTES_MAX,
    READ_BYTES,
    BadLine,
    DamagedFile,
    shown,
    unpacked,
    whole,
    words,
)

FORMAT: Final = 1
SUFFIXES: Final = (".jsonl", ".jsonl.gz")
COUNT_MAX: Final = 10**12
NUMBER_MAX: Final = 2**62
EPOCH_US_MIN: Final = 946_684_800_000_000  # the year 2000: before it no clock was set
EPOCH_US_MAX: Final = 4_102_444_800_000_000  # 2100
BAD_LINES_MAX: Final = 1_000  # told of one file; the rest of them are counted
TEXT_MAX: Final = 1_000  # characters of a name or an error that are kept


class EventRow(TypedDict):
    namespace: str
    process: str
    number: int
    event: str
    entity: str
    count: int
    epoch_us: int
    clock_us: int | None
    until_us: int | None
    answered: bool | None
    before: str
    error: str
    queue: str


def find_files(directories: list[Path]) -> list[str]:
    """Every file of events below these directories, or given by name. `FileNotFoundError` names what is not there."""
    files: set[str] = set()
    for directory in directories:
        if directory.is_file():
            files.add(str(directory))
        elif directory.is_dir():
            files |= {str(path) for path in directory.rglob("*.jsonl*") if path.name.endswith(SUFFIXES)}
        else:
            raise FileNotFoundError(f"{directory} is not there")
    return sorted(files)


def read_file(path: str) -> Iterator[EventRow | BadLine]:
    """Never raises for what is in the file, nor for a file that has gone."""
    number = bad = 0
    try:
        for line in lines_of(Path(path)):
            number += 1
            if not line:
                continue  # a writer begins a new line after one that it could not finish
            try:
                yield checked_event(line)
            except ValueError as error:
                bad += 1
                if bad <= BAD_LINES_MAX:
                    yield BadLine(path, number, str(error), shown(line))
    except DamagedFile as damage:
        yield BadLine(path, 0, f"{damage.reason}, after line {number:,}; what stands before it is used", "")
    except OSError as error:
        yield BadLine(path, 0, f"cannot be read: {error.strerror}", "")
    if bad > BAD_LINES_MAX:
        yield BadLine(path, 0, f"and {bad - BAD_LINES_MAX:,} more lines that cannot be used", "")


def lines_of(path: Path) -> Iterator[bytes]:
    """One by one, so that those in front of a damage are had. `DamagedFile`, `OSError`."""
    with path.open("rb") as file:
        rest = b""
        for piece in unpacked(file) if path.suffix == ".gz" else iter(lambda: file.read(READ_BYTES), b""):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            if len(rest) > LINE_BYTES_MAX:
                raise DamagedFile(0, f"a line is longer than {LINE_BYTES_MAX:,} bytes")
        if rest:
            yield rest


def checked_event(line: bytes) -> EventRow:
    """`ValueError` says what is wrong with it."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("not a line of events: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    whole(fields, "format", FORMAT, FORMAT)
    answered = fields.get("answered")
    if answered is not None and not isinstance(answered, bool):
        raise ValueError("'answered' must be true or false")
    return EventRow(
        namespace=words(fields, "namespace")[:TEXT_MAX],
        process=words(fields, "process")[:TEXT_MAX],
        number=whole(fields, "number", 1, NUMBER_MAX),
        event=words(fields, "event")[:TEXT_MAX],
        entity=_text(fields, "entity"),
        count=whole(fields, "count", 0, COUNT_MAX),
        epoch_us=whole(fields, "epoch_us", EPOCH_US_MIN, EPOCH_US_MAX),
        clock_us=_whole_or_none(fields, "clock_us", 0, NUMBER_MAX),
        until_us=_whole_or_none(fields, "until_epoch_us", EPOCH_US_MIN, EPOCH_US_MAX),
        answered=answered,
        before=_text(fields, "before"),
        error=_text(fields, "error"),
        queue=_text(fields, "queue"),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    return words(fields, name)[:TEXT_MAX] if fields.get(name) not in (None, "") else ""


def _whole_or_none(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    return None if fields.get(name) is None else whole(fields, name, least, most)
