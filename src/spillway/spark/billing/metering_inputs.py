"""What the metering job reads: sealed days, days that a broker answers with, ledgers of clients.

The last two are brought into the form of the first, a file for each namespace and day, under the job's own directory.
Of one namespace and day one source counts: its sealed file, else what the broker says, else what clients counted.
"""

import hashlib
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final, Protocol

from spillway.model.ledger import FORMAT
from spillway.spark.billing.charges import day_text
from spillway.spark.billing.ledger_files import BAD_LINES_MAX, LedgerFile, checked_row
from spillway.spark.platform.line_files import BadLine, DamagedFile, chunks_of, shown

SEALED: Final = "broker"
OPEN: Final = "open"
CLIENT: Final = "client"
STRENGTH: Final = (SEALED, OPEN, CLIENT)
DAY: Final = re.compile(r"day=(\d{4}-\d\d-\d\d)")
SUFFIX: Final = ".jsonl.gz"
TOO_MANY: Final = "more than"  # in the broker's answer to a question for too much at once
MINUTE: Final = timedelta(minutes=1)


class MeteringError(ValueError):
    """What was asked cannot be metered, and why; the user's to mend."""


class Asks(Protocol):
    """A running broker, as `spillway.client.control.ControlClient` is."""

    def ask(
        self, method: str, resource: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> Any: ...


@dataclass(frozen=True)
class LedgerDirectory:
    """A data directory, or its `ledger`; `name`: what its one namespace is called in the table."""

    path: Path
    name: str = ""


@dataclass
class Inputs:
    files: list[LedgerFile] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    open_days: set[str] = field(default_factory=set)

    def by_day(self) -> dict[str, list[LedgerFile]]:
        """The strongest source of each namespace and day."""
        grouped: dict[tuple[str, str], list[LedgerFile]] = defaultdict(list)
        for file in self.files:
            grouped[file.day, file.counted_as or file.namespace].append(file)
        days: dict[str, list[LedgerFile]] = defaultdict(list)
        for (day, namespace), files in sorted(grouped.items()):
            strongest = min((file.source for file in files), key=STRENGTH.index)
            chosen = [file for file in files if file.source == strongest]
            if strongest != CLIENT and len(chosen) > 1:
                both = " and ".join(file.path for file in chosen[:2])
                problem = f"{day} of namespace '{namespace}' is there twice: {both}. Give one of them another name with"
                raise MeteringError(f"{problem} --ledger NAME=DIR, or leave one out")
            days[day] += chosen
        return days


def key_of(file: LedgerFile) -> str:
    """The same file under another directory is the same input."""
    return f"{file.source} {file.counted_as or file.namespace} {Path(file.path).name}"


def fingerprint(file: LedgerFile) -> str:
    """Changes when the content does. A packed file ends with the checksum and the size of what is in it."""
    path = Path(file.path)
    try:
        size = path.stat().st_size
        if path.suffix == ".gz":
            with path.open("rb") as opened:
                opened.seek(max(0, size - 8))
                return f"{size} {opened.read(8).hex()}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"


# -- sealed days --------------------------------------------------------------------------------------------------


def find_sealed(directory: LedgerDirectory, inputs: Inputs) -> None:
    root = directory.path / "ledger" if (directory.path / "ledger").is_dir() else directory.path
    if not root.is_dir():
        raise MeteringError(f"--ledger: {directory.path} is no directory")
    found: set[str] = set()
    for folder in sorted(root.glob("day=*")):
        day = day_of(folder.name)
        if day is None:
            inputs.bad.append(BadLine(str(folder), 0, "the directory's name is no day like day=2027-01-31", ""))
            continue
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue  # one that a broker has not finished
            if not path.name.endswith(SUFFIX) or path.name == SUFFIX:
                inputs.bad.append(BadLine(str(path), 0, "the file's name is not NAMESPACE.jsonl.gz", ""))
                continue
            namespace = path.name.removesuffix(SUFFIX).lower()
            found.add(namespace)
            inputs.files.append(LedgerFile(str(path), day, namespace, SEALED, directory.name))
    if directory.name and len(found) > 1:
        names = ", ".join(sorted(found))
        raise MeteringError(f"--ledger {directory.name}={directory.path}: one name for several namespaces: {names}")
    if not found:
        inputs.notes.append(f"{root} has no sealed days")


def day_of(name: str) -> str | None:
    match = DAY.fullmatch(name)
    try:
        return date.fromisoformat(match[1]).isoformat() if match else None
    except ValueError:
        return None


# -- the open day -------------------------------------------------------------------------------------------------


def stage_open_days(broker: Asks, name: str, staged: Path, inputs: Inputs) -> None:
    """What the broker has counted since the last sealed day that is here. Today's is not over."""
    about = broker.ask("GET", "ledger")
    namespace = name or str(about["namespace"])
    until = datetime.fromisoformat(about["until"])
    sealed = [file.day for file in inputs.files if (file.counted_as or file.namespace) == namespace]
    since = datetime.fromisoformat(about["since"])
    if sealed:
        since = datetime.fromisoformat(max(sealed)).replace(tzinfo=UTC) + timedelta(days=1)
    at = since
    while at < until:
        end = min(until, at.replace(hour=0, minute=0) + timedelta(days=1))
        rows = list(asked_rows(broker, at, end, inputs))
        day = at.strftime("%Y-%m-%d")
        if rows:
            path = staged / f"day={day}" / f"{namespace}.open.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="ascii") as file:
                for row in rows:
                    file.write(json.dumps({"format": FORMAT, "namespace": namespace, **row}) + "\n")
            inputs.files.append(LedgerFile(str(path), day, namespace, OPEN))
        if end == until:
            inputs.open_days.add(day)
        at = end


def asked_rows(broker: Asks, since: datetime, until: datetime, inputs: Inputs) -> Iterator[dict[str, Any]]:
    """All rows, in as many answers as it takes: one has a hundred thousand at most."""
    query = {"since": moment(since), "until": moment(until), "by": "minute"}
    try:
        answer = broker.ask("GET", "ledger", query=query)
    except Exception as error:
        if TOO_MANY not in str(error) or until - since <= MINUTE:
            raise
        middle = since + timedelta(minutes=(until - since) // MINUTE // 2)
        yield from asked_rows(broker, since, middle, inputs)
        yield from asked_rows(broker, middle, until, inputs)
        return
    if answer["damaged_rows"]:
        inputs.notes.append(f"{answer['namespace']}: {answer['damaged_rows']} rows are damaged and left out")
    inputs.notes += [f"{answer['namespace']}: left out: {day}" for day in answer["unreadable_days"]]
    yield from answer["rows"]


def moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%MZ")


# -- ledgers of clients -------------------------------------------------------------------------------------------


def stage_clients(paths: list[Path], aliases: Mapping[str, str], staged: Path, inputs: Inputs, today: str) -> None:
    """Their rows by namespace and day, a file for each client's file. A day that is not over is open."""
    labels: set[str] = set()
    for path, label in [each for given in paths for each in client_files(given)]:
        while label in labels:
            label += "+"
        labels.add(label)
        bad: list[BadLine] = []
        try:
            found = stage_client(path, label, aliases, staged, bad)
        except DamagedFile as damage:
            bad = [BadLine(str(path), 0, f"{damage.reason}; nothing of the file is counted", "")]
            found = []
        except OSError as error:
            bad = [BadLine(str(path), 0, f"cannot be read: {error.strerror}", "")]
            found = []
        inputs.bad += bad
        inputs.files += found
        inputs.open_days |= {file.day for file in found if file.day >= today}


def client_files(path: Path) -> list[tuple[Path, str]]:
    """With what each is called in the checkpoint: the same wherever the directory is."""
    if path.is_dir():
        found = sorted(each for each in path.rglob("*") if each.name.endswith((".jsonl", SUFFIX)))
        return [(each, safe(str(each.relative_to(path)))) for each in found]
    if not path.exists():
        raise MeteringError(f"--client-ledger: {path} is not there")
    return [(path, safe(path.name))]


def stage_client(
    path: Path, label: str, aliases: Mapping[str, str], staged: Path, bad: list[BadLine]
) -> list[LedgerFile]:
    opened: dict[tuple[str, str], tuple[LedgerFile, IO[str]]] = {}
    with ExitStack() as stack:
        line_number = 0
        for chunk in chunks_of(path):
            for line in chunk.split(b"\n")[:-1]:
                line_number += 1
                try:
                    row = checked_row(line)
                except ValueError as error:
                    if len(bad) < BAD_LINES_MAX:
                        bad.append(BadLine(str(path), line_number, str(error), shown(line)))
                    continue
                namespace = aliases.get(row.namespace, row.namespace)
                key = (day_text(row.epoch_s), namespace)
                if key not in opened:
                    target = staged / f"day={key[0]}" / f"{label}.{safe(namespace)}.jsonl"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    ledger = LedgerFile(str(target), key[0], namespace, CLIENT)
                    opened[key] = (ledger, stack.enter_context(target.open("w", encoding="ascii")))
                fields = {"format": FORMAT, **row._asdict(), "namespace": namespace, "bytes": row.size_bytes}
                del fields["size_bytes"]
                opened[key][1].write(json.dumps(fields) + "\n")
    return [file for file, _ in opened.values()]


def safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def clear(staged: Path) -> None:
    shutil.rmtree(staged, ignore_errors=True)
