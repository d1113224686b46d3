"""The availability job: files of events in, outages, tables and a report out, whatever is broken in between."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from spillway.spark.jobs.availability import (
    AvailabilityConfig,
    AvailabilityError,
    check_place,
    parse_ledger,
    run,
    words_of,
)
from spillway.spark.outages.availability_summary import AvailabilitySummary
from tests.spark.event_files import BASE_US, SECOND_US, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quiet(line: str) -> None:
    """No progress in tests."""


def ledger_line(entity: str, kind: str, operations: int, namespace: str) -> str:
    fields = {"format": 1, "namespace": namespace, "minute": "2027-01-15T08:00:00Z", "epoch_s": BASE_US // SECOND_US}
    return json.dumps({**fields, "entity": entity, "kind": kind, "operations": operations, "units": 1, "bytes": 0})


def ledger(directory: Path, namespace: str, *lines: str) -> Path:
    path = directory / "ledger" / "day=2027-01-15" / f"{namespace}.jsonl.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    return directory


def broken_clock(events: Path) -> None:
    """The machine's clock is set back by an hour while the entity is away."""
    machine = Writer(events, "machine", "clocks")
    machine.tell(0, "failed-over", "orders", before="healthy")
    machine.apart_s = -3600.0
    machine.tell(30, "pinged", "orders", answered=True)
    machine.tell(30, "recovered", "orders", before="failed over")
    machine.tell(31, "closed")


def twice_and_cut_short(events: Path) -> None:
    """A file, and its packed copy without an end; five lines are in neither."""
    writer = Writer(events, "packed", "twice")
    writer.outage("orders", 0, 30, 30)
    writer.number += 5
    writer.tell(100, "closed")
    copy = events / "copy" / "packed.jsonl.gz"
    copy.parent.mkdir()
    copy.write_bytes(gzip.compress(writer.path.read_bytes())[:-9])


def histories(directory: Path) -> None:
    said = {"t": 1, "p": "consumer-1", "op": "recv", "a": 0}
    lines = [{**said, "id": f"producer-1-{at}", "seq": number} for number, at in enumerate([0, 2, 1, 2, 3], 1)]
    lines += [lines[0], {**said, "op": "complete", "id": "producer-1-0", "seq": 1, "res": "ok"}]
    directory.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "consumer-1.history.jsonl").write_text(text + '{"cut sho')


@dataclass
class Made:
    summary: AvailabilitySummary
    config: AvailabilityConfig
    page: str

    def outage(self, entity: str) -> dict[str, Any]:
        (found,) = (row for row in self.summary.outages if row["entity"] == entity)
        return found


pytestmark = pytest.mark.timeout(900)  # the first run of all starts Spark as well


@pytest.fixture(scope="module")
def made(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two senders and a syphon of one pairing, a sender of another; lines that are broken; a ledger; a capture."""
    base = tmp_path_factory.mktemp("availability")
    events = base / "events"
    web, batch = Writer(events, "web"), Writer(events, "batch", apart_s=1.5)
    web.outage("orders", 0, 60, 600)
    batch.outage("Orders", 2, 60, 300)
    web.outage("bills", 5, 30, 30)
    web.tell(200, "suspected", "users", before="healthy")
    web.tell(203, "recovered", "users", before="suspect")
    home = Writer(events, "home")
    for at_s in (80, 90, 100):
        home.syphoned("orders", at_s, 300)
    home.syphoned("bills", 85, 30)
    home.tell(100, "syphon-repeated", "contoso/x-servicebus-transfer/0")
    gone = Writer(events, "gone", "fabrikam")
    gone.tell(0, "failed-over", "orders", before="healthy")
    gone.diverted("orders", 1, 7)
    for writer in (web, batch, home):
        writer.tell(5000, "closed")
    batch.write('{"format": 1, "event":')
    batch.write('{"format": 7}')
    batch.write('["<script>alert(1)</script>"]')
    broken_clock(events)
    twice_and_cut_short(events)
    primary = ledger(
        base / "one",
        "sbemulatorns",
        ledger_line("orders", "ping", 2, "sbemulatorns"),
        ledger_line("orders", "send", 9, "sbemulatorns"),
        "not a line",
    )
    queue = "contoso/x-servicebus-transfer/0"
    secondary = ledger(
        base / "two", "second", ledger_line(queue, "send", 931, "second"), ledger_line(queue, "settle", 930, "second")
    )
    rows = [("orders", number, f"web-{at}", {"at": str(at)}) for number, at in enumerate([1, 2, 5, 3, 4, 2, 6], 1)]
    columns = "entity string, sequence_number long, message_id string, properties map<string,string>"
    table = spark.createDataFrame([*rows, rows[0], ("orders", 99, "", {})], columns)
    table.write.parquet(str(base / "captured"))
    histories(base / "lab")
    config = AvailabilityConfig(
        out=base / "out",
        events=(events,),
        ledgers=(("contoso", primary), ("", secondary)),
        captured=str(base / "captured"),
        sender="substring_index(message_id, '-', 1)",
        position="properties['at']",
        histories=base / "lab",
        report=base / "report.html",
    )
    summary = run(spark, config, quiet)
    return Made(summary, config, (base / "report.html").read_text(encoding="utf-8"))


def test_an_outage_that_several_processes_saw_is_one_with_its_times(made: Made) -> None:
    (outage,) = (row for row in made.summary.outages if row["namespace"] == "contoso" and row["entity"] == "orders")
    assert (outage["processes"], outage["processes_back"], outage["end"]) == (2, 2, "recovered")
    assert (outage["began"], outage["length_s"]) == ("2027-01-15T08:00:00.000Z", 73.5)
    assert (outage["to_fail_over_s"], outage["to_return_s"]) == (10.0, 9.5)
    assert (outage["pings"], outage["pings_answered"]) == (14, 2)
    assert (outage["diverted"], outage["syphoned"], outage["backlog_max"]) == (900, 900, 900)
    assert outage["to_empty_s"] == pytest.approx(27.4)  # by the end of the last sum


def test_a_suspicion_that_passed_is_counted_and_is_no_outage(made: Made) -> None:
    (users,) = (row for row in made.summary.entities if row["entity"] == "users")
    assert (users["suspicions"], users["outages"], users["away_s"]) == (1, 0, 0.0)


def test_a_process_that_was_not_heard_of_again_leaves_an_outage_with_an_unknown_end(made: Made) -> None:
    (outage,) = (row for row in made.summary.outages if row["namespace"] == "fabrikam")
    assert (outage["end"], outage["remarks"]) == ("process vanished", ["1 of 1 processes ended before they returned"])
    assert outage["diverted"] == 7


def test_what_is_wrong_with_a_line_is_told_with_its_file_and_number(made: Made) -> None:
    texts = [path.read_text() for path in (made.config.out / "quarantine").glob("*.json")]
    found = [json.loads(line) for text in texts for line in text.splitlines()]
    reasons = {row["line"]: row["problem"] for row in found if row["file"].endswith("contoso.batch.jsonl")}
    assert reasons.pop(19).startswith("not JSON")
    assert reasons == {20: "'format' must be 1", 21: "not a JSON object"}
    (of_ledger,) = (row for row in found if "sbemulatorns.jsonl.gz" in row["file"])
    assert (of_ledger["line"], of_ledger["text"]) == (3, "not a line")
    (cut,) = (row["problem"] for row in found if row["file"].endswith("packed.jsonl.gz"))
    assert re.fullmatch(r"gzip: the file is cut short, after line \d+; what stands before it is used", cut)
    assert made.summary.set_aside == 5
    assert any("5 lines or files could not be used" in remark for remark in made.summary.remarks)


def test_events_and_ledger_are_compared_on_days_that_both_know(made: Made) -> None:
    told = {(row["entity"], row["what"]): (row["by_events"], row["by_ledger"]) for row in made.summary.checks}
    assert told == {
        ("orders", "pings that were answered"): (2, 2),
        ("bills", "pings that were answered"): (1, 0),
        ("", "messages into the backlog"): (930, 931),
        ("", "messages out of the backlog"): (930, 930),
    }
    assert {row["namespace"] for row in made.summary.checks} == {"contoso"}  # nobody has a ledger of the other


def test_order_and_duplicates_are_those_of_what_was_stored(made: Made) -> None:
    captured, lab = made.summary.delivered
    assert captured == {
        "entity": "orders", "messages": 8, "duplicated": 1, "copies": 1, "without_id": 1, "out_of_order": 2,
    }  # fmt: skip
    assert (lab["messages"], lab["duplicated"], lab["out_of_order"]) == (5, 1, 1)
    assert "--histories: 1 lines could not be used" in made.summary.remarks


def test_the_tables_are_parquet_with_times_that_sql_can_read(made: Made, spark: "SparkSession") -> None:
    tables = {name: spark.read.parquet(str(made.config.out / name)) for name in ("outages", "absences", "backlog")}
    assert tables["outages"].where("began = timestamp'2027-01-15 08:00:00' and namespace = 'contoso'").count() == 1
    assert tables["absences"].where("process = 'batch'").first()["away_s"] == 60.0  # type: ignore[index]
    sums = tables["backlog"].selectExpr("sum(diverted) d", "sum(syphoned) s", "max(waiting_max) m").first()
    assert sums is not None and (sums["d"], sums["s"], sums["m"]) == (967, 930, 900)


def test_the_summary_is_json_and_words(made: Made) -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(made.summary)))["outages_count"] == 5
    words = "\n".join(words_of(made.summary))
    assert "5 outages" in words and "8 messages stored, 1 of them twice, 2 out of order" in words
    assert (made.summary.processes, made.summary.repeated) == (6, 1)
    assert made.summary.namespaces == ["clocks", "contoso", "fabrikam", "twice"]


def test_the_report_needs_nothing_else_and_has_a_picture_of_every_outage(made: Made) -> None:
    assert not re.search(r"(?:src|href)=|url\(|<script", made.page)
    pictures = re.findall(r"<svg.*?</svg>", made.page, re.DOTALL)
    assert len(pictures) == 6  # all of it, and five outages
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "5 outages of 5 entities." in made.page and "37 still wait in the backlog" in made.page


def test_a_clock_that_was_set_in_an_outage_changes_neither_order_nor_length(made: Made) -> None:
    (outage,) = (row for row in made.summary.outages if row["namespace"] == "clocks")
    assert (outage["length_s"], outage["end"]) == (30.0, "recovered")
    assert "the clock of 1 process was set while it ran" in made.summary.remarks


def test_lines_that_are_missing_are_counted_and_a_file_that_is_given_twice_counts_once(made: Made) -> None:
    (outage,) = (row for row in made.summary.outages if row["namespace"] == "twice")
    assert (outage["diverted"], outage["pings"]) == (30, 4)
    assert "5 lines are missing, by the numbers of those that are there" in made.summary.remarks
    (events,) = made.config.events
    written = [line for path in events.rglob("*.jsonl") for line in path.read_text().splitlines()]
    good = [json.loads(line) for line in written if '"number"' in line]
    assert made.summary.events == len({(line["process"], line["number"]) for line in good}) == len(good)


def test_files_without_one_good_line_are_no_dead_query(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "noise.jsonl").write_bytes(b"\xff\xfe\x00noise\n\n{}\n")
    config = AvailabilityConfig(tmp_path / "out", (tmp_path / "events",), report=tmp_path / "report.html")
    summary = run(spark, config, quiet)
    assert (summary.events, summary.outages, summary.set_aside) == (0, [], 2)
    assert "no line of the files can be used" in summary.remarks
    assert "No outage." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_directory_of_an_earlier_run_is_taken_and_one_of_something_else_is_not(tmp_path: Path) -> None:
    check_place(tmp_path / "out")
    (tmp_path / "out" / "events").mkdir()
    check_place(tmp_path / "out")
    (tmp_path / "out" / "availability.json").write_text('{"job": "metering"}')
    with pytest.raises(AvailabilityError, match="holds something else"):
        check_place(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda base: {"events": (base / "nowhere",)}, "--events: .*nowhere is not there"),
        (lambda base: {"events": (base / "empty",)}, "--events: there is no .jsonl file below"),
        (lambda base: {"out": base / "events"}, "--out .*holds something else: give a directory that is empty"),
        (lambda base: {"ledgers": (("", base / "nowhere"),)}, "--ledger: .*nowhere is no directory"),
        (lambda base: {"captured": str(base / "nowhere")}, "--captured .*nowhere"),
        (lambda base: {"captured": str(base / "numbers")}, "it has no column entity, sequence_number.*; it has id"),
        (lambda base: {"histories": base / "empty"}, "there is no \\*.history.jsonl below it"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_before_anything_is_made(
    change: Callable[[Path], dict[str, Any]], problem: str, spark: "SparkSession", tmp_path: Path
) -> None:
    Writer(tmp_path / "events", "web").outage("orders", 0, 30, 30)
    (tmp_path / "empty").mkdir()
    if "numbers" in problem or "it has id" in problem:
        spark.range(3).write.parquet(str(tmp_path / "numbers"))
    options: dict[str, Any] = {"out": tmp_path / "out", "events": (tmp_path / "events",), **change(tmp_path)}
    with pytest.raises(AvailabilityError, match=problem):
        run(spark, AvailabilityConfig(**options), quiet)
    assert not (tmp_path / "out").exists()


def test_an_expression_that_is_no_sql_is_said(spark: "SparkSession", tmp_path: Path, made: Made) -> None:
    config = AvailabilityConfig(
        tmp_path / "out", made.config.events, captured=made.config.captured, position="nothing like it"
    )
    with pytest.raises(AvailabilityError, match="--sender or --position: "):
        run(spark, config, quiet)


def test_a_name_for_a_ledger_is_told_from_a_path() -> None:
    assert parse_ledger("Contoso=data") == ("contoso", Path("data"))
    assert parse_ledger("/data/a=b") == ("", Path("/data/a=b"))


def test_the_module_says_what_it_takes() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "spillway.spark.jobs.availability", "--help"], capture_output=True, text=True, check=True
    )
    assert "--events DIR" in asked.stdout
