"""The metering job: ledgers become a table in Parquet with one row for each day, namespace, entity and kind.

`OUT/metered/day=…` is the table, `OUT/quarantine/…jsonl` what was set aside and why, `OUT/checkpoint/day=….json` what
each day was made of. A day is done once: it is made again only if a file of it is new or has changed, and then as a
whole.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.client.control import ControlClient, ControlError
from spillway.model.texts import count_text
from spillway.spark.billing.ledger_files import LedgerFile
from spillway.spark.billing.ledger_frames import SUMMED, batches_of, dealt_out, metered
from spillway.spark.billing.metering_inputs import (
    CLIENT,
    Asks,
    Inputs,
    LedgerDirectory,
    MeteringError,
    clear,
    find_sealed,
    fingerprint,
    key_of,
    stage_clients,
    stage_open_days,
)
from spillway.spark.jobs.job import Job
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connect import parallelism
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.line_files import BadLine
from spillway.spark.platform.option import Option
from spillway.spark.platform.preflight import check_writable, to_mend
from spillway.spark.platform.session import Say, build_session, check_spark, say_on_stderr

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

APP: Final = "spillway-metering"
VARIABLE: Final = "SPILLWAY_CONNECTION_STRING"
FORMAT: Final = 1
DAYS_AT_ONCE: Final = 31
TASKS_MIN: Final = 4
TASKS_PER_CORE: Final = 4  # a task that dies is read again: not too much at a time
TABLE: Final = "metered"
QUARANTINE: Final = "quarantine"
CHECKPOINT: Final = "checkpoint"
STAGED: Final = "staged"
ABOUT: Final = "metering.json"


@dataclass(frozen=True)
class MeteringConfig:
    out: Path
    ledgers: tuple[LedgerDirectory, ...] = ()
    client_ledgers: tuple[Path, ...] = ()
    brokers: tuple[tuple[str, Asks], ...] = ()  # with the name that their namespace has in the table, or ""
    aliases: Mapping[str, str] = field(default_factory=dict)  # of namespaces in clients' ledgers
    is_strict: bool = False  # anything set aside is an error
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass
class MeteringSummary:
    out: str
    days: int = 0  # made now
    days_kept: int = 0  # made before, from the same files
    open_days: list[str] = field(default_factory=list)
    files: int = 0
    lines: int = 0  # of ledgers, read now
    rows: int = 0  # of the table, written now
    set_aside: int = 0  # lines and files, all days, now and before
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_here(config: MeteringConfig, master: str | None = None) -> MeteringSummary:
    """In a session of this process. What the user has to mend is an `OptionError`, before Spark is started."""
    with to_mend(MeteringError, ControlError, SparkMissing, OSError):
        check_spark(master)
        check_writable("--out", config.out)
        check_place(config.out)
        inputs = find_inputs(config)
    return run(build_session(APP, master=master), config, inputs=inputs)


def run(
    spark: "SparkSession", config: MeteringConfig, say: Say = say_on_stderr, *, inputs: Inputs | None = None
) -> MeteringSummary:
    """Raises `MeteringError` with what is wrong. `inputs` are those of `find_inputs`, where it was asked before."""
    began = time.monotonic()
    check_place(config.out)
    inputs = inputs or find_inputs(config)
    days = inputs.by_day()
    summary = MeteringSummary(str(config.out), open_days=sorted(inputs.open_days & set(days)))
    due = days_due(config.out, days, summary, inputs.notes)
    for at in range(0, len(due), DAYS_AT_ONCE):
        batch = due[at : at + DAYS_AT_ONCE]
        files = [file for day in batch for file in days[day]]
        what = f"{count_text(len(batch), 'day')}, {count_text(len(files), 'file')}"
        say(f"metering {batch[0]} to {batch[-1]}: {what} ({at + len(batch)}/{len(due)})")
        make_days(spark, config.out, {day: days[day] for day in batch}, summary)
    note_bad(config.out / QUARANTINE / "files.jsonl", inputs.bad)
    summary.notes = inputs.notes
    summary.set_aside = count_lines(config.out / QUARANTINE)
    summary.seconds = round(time.monotonic() - began, 2)
    if summary.set_aside:
        summary.notes.append(f"{summary.set_aside} lines or files were set aside: see {config.out / QUARANTINE}")
        if config.is_strict:
            raise MeteringError(f"{summary.notes[-1]} (--strict)")
    return summary


def check_place(out: Path) -> None:
    """A directory that is ours, or empty, or not there."""
    about = out / CHECKPOINT / ABOUT
    ours = {"job": "metering", "format": FORMAT}
    if about.exists():
        try:
            found = json.loads(about.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise MeteringError(f"{about} cannot be read: {error}") from None
        if found != ours:
            raise MeteringError(f"{out} holds the checkpoint of something else: {json.dumps(found)[:100]}; need {ours}")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeteringError(f"--out {out} holds something else: give a directory that is empty or not there yet")
    write_whole(about, json.dumps(ours) + "\n")


def find_inputs(config: MeteringConfig) -> Inputs:
    inputs = Inputs()
    if not (config.ledgers or config.client_ledgers or config.brokers):
        raise MeteringError("nothing to meter: give --ledger, --client-ledger or --open-day")
    for directory in config.ledgers:
        find_sealed(directory, inputs)
    staged = config.out / STAGED
    clear(staged)
    for name, broker in config.brokers:
        stage_open_days(broker, name, staged, inputs)
    today = config.now().strftime("%Y-%m-%d")
    stage_clients(list(config.client_ledgers), config.aliases, staged, inputs, today)
    return inputs


def days_due(out: Path, days: Mapping[str, list[LedgerFile]], summary: MeteringSummary, notes: list[str]) -> list[str]:
    due = []
    for day, files in sorted(days.items()):
        was = made_of(out, day)
        now = {key_of(file): fingerprint(file) for file in files}
        if was == now:
            summary.days_kept += 1
            continue
        gone = [key for key in was if key not in now and not is_replaced(key, files)]
        if gone:
            missing = ", ".join(key.partition(" ")[2] for key in gone)
            notes.append(f"{day} was left as it is: its files have changed, but {missing} is not here any more")
            continue
        due.append(day)
    return due


def is_replaced(key: str, files: list[LedgerFile]) -> bool:
    """By a stronger source of the same namespace: a day that was open has been sealed."""
    namespace = key.split(" ")[1]
    return any((file.counted_as or file.namespace) == namespace and file.source != CLIENT for file in files)


def made_of(out: Path, day: str) -> dict[str, str]:
    """The files that a day was made of. Nothing: it was not made, or not to the end."""
    try:
        found = json.loads((out / CHECKPOINT / f"day={day}.json").read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in found["inputs"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # damaged: the day is made again


def make_days(spark: "SparkSession", out: Path, days: Mapping[str, list[LedgerFile]], summary: MeteringSummary) -> None:
    prints = {day: {key_of(file): fingerprint(file) for file in files} for day, files in days.items()}
    for day in days:
        (out / CHECKPOINT / f"day={day}.json").unlink(missing_ok=True)
        (out / QUARANTINE / f"day={day}.jsonl").unlink(missing_ok=True)
        shutil.rmtree(out / TABLE / f"day={day}", ignore_errors=True)
    files = [file for of_day in days.values() for file in of_day]
    summed = sum_files(spark, files).persist()
    try:
        about = summed.where("bad_reason is not null or lines is not null").select(
            "day", "lines", "bad_file", "bad_line", "bad_reason", "bad_text"
        )
        told = about.collect()
        # One file a day, in order: what is read of it later is one namespace or one entity.
        ordered = metered(summed).repartition("day").sortWithinPartitions("day", "namespace", "entity", "kind")
        ordered.write.mode("append").partitionBy("day").parquet(str(out / TABLE))
    finally:
        summed.unpersist()
    for day in days:
        bad = [
            BadLine(row["bad_file"], row["bad_line"], row["bad_reason"], row["bad_text"])
            for row in told
            if row["day"] == day and row["bad_reason"] is not None
        ]
        note_bad(out / QUARANTINE / f"day={day}.jsonl", bad)
        made = {"inputs": prints[day], "lines": sum(row["lines"] or 0 for row in told if row["day"] == day)}
        write_whole(out / CHECKPOINT / f"day={day}.json", json.dumps(made, indent=1) + "\n")
    summary.days += len(days)
    summary.files += len(files)
    summary.lines += sum(row["lines"] or 0 for row in told)
    summary.rows += sum(rows_in(out / TABLE / f"day={day}") for day in days)


def rows_in(directory: Path) -> int:
    import pyarrow.parquet

    return sum(int(pyarrow.parquet.read_metadata(path).num_rows) for path in directory.glob("*.parquet"))


def sum_files(spark: "SparkSession", files: list[LedgerFile]) -> "DataFrame":
    """Files are summed where they are read, so that only sums travel."""
    hands = dealt_out(files, max(TASKS_MIN, TASKS_PER_CORE * parallelism(spark)))

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in hands[number]:
                    yield from batches_of(file)

    return spark.range(0, len(hands), 1, len(hands)).mapInArrow(read, SUMMED)


def note_bad(path: Path, bad: list[BadLine]) -> None:
    if not bad:
        path.unlink(missing_ok=True)
        return
    write_whole(path, "".join(json.dumps(each._asdict()) + "\n" for each in bad))


def count_lines(directory: Path) -> int:
    if not directory.is_dir():
        return 0
    return sum(path.read_bytes().count(b"\n") for path in directory.glob("*.jsonl"))


def write_whole(path: Path, text: str) -> None:
    """There whole, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


# -- the command and spark-submit ----------------------------------------------------------------------------------


def parse_named(text: str) -> tuple[str, str]:
    """`NAME=REST`, or REST alone."""
    name, equals, rest = text.partition("=")
    return (name.strip().lower(), rest) if equals and "/" not in name else ("", text)


def parse_directory(text: str) -> LedgerDirectory:
    name, path = parse_named(text)
    return LedgerDirectory(Path(path), name)


def parse_alias(text: str) -> tuple[str, str]:
    name, equals, namespace = text.partition("=")
    if not (name and equals and namespace):
        raise OptionError(f"--alias must be NAME=NAMESPACE, not '{text}'")
    return name.lower(), namespace.lower()


Brokers = list[tuple[str, Asks]]


def broker_of_environment(name: str, place: str, ca_file: Path | None) -> Brokers:
    """The one that the variable leads to. A data directory has keys that a job on a cluster does not read."""
    if place != "-":
        raise OptionError(
            f"--open-day: only -, the broker that {VARIABLE} leads to; spillway pipeline takes directories"
        )
    try:
        return [(name, ControlClient(os.environ.get(VARIABLE, ""), ca_file))]
    except ValueError as error:
        raise OptionError(f"{VARIABLE}: {error}") from None


@dataclass(frozen=True)
class MeteringOptions:
    """What is typed; `config` is what it means."""

    out: Annotated[
        Path,
        Option(
            "DIR",
            "Where the table, its `checkpoint` and the `quarantine` go.",
            more="With `staged` rows that came over HTTP or from clients. Empty, not there yet, or made by this "
            "job before.",
        ),
    ]
    ledgers: Annotated[
        tuple[LedgerDirectory, ...],
        Option(
            "[NAME=]DIR",
            "A broker's data directory, or the `ledger` in it; `NAME`: what to call its namespace.",
            name="ledger",
            parse=parse_directory,
            is_repeated=True,
            more="A name is for two brokers that call theirs alike.",
        ),
    ] = ()
    open_days: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "[NAME=]DIR",
            f"Ask the broker that serves `DIR` for days that are not sealed, as today; `-` for that of `{VARIABLE}`.",
            name="open-day",
            parse=parse_named,
            is_repeated=True,
            alone="-",
            more="By spark-submit `-` alone, or no value.",
        ),
    ] = ()
    client_ledgers: Annotated[
        tuple[Path, ...],
        Option(
            "PATH",
            "File or directory of ledgers that clients kept.",
            name="client-ledger",
            is_repeated=True,
            more="`.jsonl` or `.jsonl.gz`, see below.",
        ),
    ] = ()
    aliases: Annotated[
        Mapping[str, str],
        Option(
            "NAME=NAMESPACE",
            "What a namespace in clients' ledgers is called in the table.",
            name="alias",
            parse=parse_alias,
            is_repeated=True,
            gather=dict,
        ),
    ] = field(default_factory=dict)
    is_strict: Annotated[bool, Option("", "Fail if any line or file had to be set aside.")] = False
    ca_file: Annotated[
        Path | None,
        Option("FILE", "The certificate authority of brokers that are asked.", default="their data directory's"),
    ] = None
    find_brokers: Callable[[str, str, Path | None], Brokers] = broker_of_environment

    def config(self) -> MeteringConfig:
        return MeteringConfig(
            out=self.out,
            ledgers=self.ledgers,
            client_ledgers=self.client_ledgers,
            brokers=tuple(each for name, at in self.open_days for each in self.find_brokers(name, at, self.ca_file)),
            aliases=self.aliases,
            is_strict=self.is_strict,
        )


def run_typed(options: MeteringOptions, master: str | None = None) -> MeteringSummary:
    return run_here(options.config(), master)


def words_of(summary: MeteringSummary) -> str:
    made: list[Any] = [
        f"{summary.out}: {count_text(summary.days, 'day')} made of {count_text(summary.files, 'file')} and "
        f"{count_text(summary.lines, 'line')}, {count_text(summary.rows, 'row')}; "
        f"there already: {count_text(summary.days_kept, 'day')}; {summary.seconds} s"
    ]
    if summary.open_days:
        made.append(f"not over yet: {', '.join(summary.open_days)}")
    return "\n".join([*made, *summary.notes])


JOB: Final = Job(
    "metering",
    "Make a table in Parquet of ledgers: one row for each day, namespace, entity and kind.\n\n"
    "Only days that are new or have changed are read.",
    MeteringOptions,
    run_typed,
    words_of,
    (SparkMissing,),
    (MeteringError,),
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
