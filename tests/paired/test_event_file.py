"""The events of a pairing in files: complete, cheap for whoever sends, and harmless when the disk is not."""

import datetime
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.paired import EventFile, event_file, sync
from spillway.paired.events import DIVERTED, FAILED_OVER, PINGED, RECOVERED, SYPHONED, Event
from tests.paired.namespaces import Namespaces

MORNING_NS = 1_800_000_000_000_000_000  # 2027-01-15T08:00:00Z
SECOND_NS = 1_000_000_000
DAY_NS = 24 * 3600 * SECOND_NS


def lines_of(directory: Path) -> list[dict[str, Any]]:
    texts = itertools.chain(*(path.read_text().splitlines() for path in sorted(directory.rglob("*.jsonl"))))
    return [json.loads(text) for text in texts if text]


def until(holds: Callable[[], bool]) -> None:
    """The file has a thread of its own."""
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_every_event_is_a_line_with_its_time_process_and_number(tmp_path: Path) -> None:
    with EventFile(tmp_path, "contoso", process="web 1", now_ns=lambda: MORNING_NS, host="contoso.example") as file:
        file(Event(FAILED_OVER, "orders", error=OSError("no\nroute"), details={"before": "suspect"}))
    opened, away, closed = lines_of(tmp_path)
    assert (opened["event"], opened["host"], closed["event"]) == ("opened", "contoso.example", "closed")
    assert away.pop("clock_us") > 0
    assert away == {
        "before": "suspect",
        "error": "OSError: no route",
        "format": 1,
        "time": "2027-01-15T08:00:00.000000Z",
        "epoch_us": MORNING_NS // 1000,
        "namespace": "contoso",
        "process": file.process,
        "number": 2,
        "event": "failed-over",
        "entity": "orders",
        "count": 1,
    }
    assert file.process.startswith("web_1-")
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == [f"contoso.{file.process}.jsonl"]


def test_a_day_has_a_file_of_its_own(tmp_path: Path) -> None:
    now_ns = MORNING_NS
    with EventFile(tmp_path, "contoso", now_ns=lambda: now_ns) as file:
        file(Event(FAILED_OVER, "orders"))
        now_ns += DAY_NS
        file(Event(RECOVERED, "orders"))
    found = {path.parent.name: path.read_text().count("\n") for path in tmp_path.rglob("*.jsonl")}
    assert found == {"day=2027-01-15": 2, "day=2027-01-16": 2}


def test_what_happens_very_often_is_summed_up_by_entity_and_queue(tmp_path: Path) -> None:
    times = itertools.count(MORNING_NS, 1_000_000)
    file = EventFile(tmp_path, "contoso", now_ns=lambda: next(times))
    with file._ready:  # the thread waits meanwhile, or it would write in between
        for at in range(1000):
            file(Event(DIVERTED, "orders", 2, details={"queue": f"contoso/x-servicebus-transfer/{at % 2}"}))
        file(Event(SYPHONED, "orders", 7, details={"queue": "contoso/x-servicebus-transfer/0"}))
    file.close()
    summed = [line for line in lines_of(tmp_path) if line["event"] in (DIVERTED, SYPHONED)]
    assert [(line["event"], line["queue"][-1], line["count"]) for line in summed] == [
        ("diverted", "0", 1000),
        ("diverted", "1", 1000),
        ("syphoned", "0", 7),
    ]
    assert summed[0]["until_epoch_us"] - summed[0]["epoch_us"] == 998_000
    assert sorted(line["number"] for line in lines_of(tmp_path)) == [1, 2, 3, 4, 5]


def test_a_change_of_state_does_not_wait_for_the_sums(tmp_path: Path) -> None:
    with EventFile(tmp_path, "contoso") as file:
        file(Event(FAILED_OVER, "orders"))
        until(lambda: [line["event"] for line in lines_of(tmp_path)] == ["opened", "failed-over"])


def test_a_disk_that_fails_is_a_line_in_the_log_and_nothing_is_missing_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "events"
    directory.write_text("in the way")
    with caplog.at_level(logging.WARNING, "spillway.paired"), EventFile(directory, "contoso") as file:
        file(Event(FAILED_OVER, "orders"))
        until(lambda: "event=events-not-written" in caplog.text)
        file(Event(RECOVERED, "orders"))
        directory.unlink()
    assert caplog.text.count("event=events-not-written") == 1
    assert [line["event"] for line in lines_of(directory)] == ["opened", "failed-over", "recovered", "closed"]


def test_what_a_full_buffer_does_not_take_is_counted_and_told(tmp_path: Path) -> None:
    directory = tmp_path / "events"
    directory.write_text("in the way")
    with EventFile(directory, "contoso", buffer_max=4) as file:
        for _ in range(10):
            file(Event(PINGED, "orders", details={"answered": False}))
        directory.unlink()
    told = [line["event"] for line in lines_of(directory)]
    assert told.count("pinged") == 3  # after `opened`
    (lost,) = (line for line in lines_of(directory) if line["event"] == "events-lost")
    assert lost["count"] == 8  # seven pings and `closed`


def test_a_disk_that_is_back_is_written_to_without_another_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_file, "RETRY_S", 0.02)
    directory = tmp_path / "events"
    directory.write_text("in the way")
    with caplog.at_level(logging.WARNING, "spillway.paired"), EventFile(directory, "contoso") as file:
        file(Event(FAILED_OVER, "orders"))
        until(lambda: "event=events-not-written" in caplog.text and not file._lines)
        directory.unlink()
        until(lambda: [line["event"] for line in lines_of(directory)] == ["opened", "failed-over"])


def test_a_disk_that_is_away_for_long_costs_no_more_memory_than_the_buffer_and_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_file, "RETRY_S", 0.005)
    monkeypatch.setattr(event_file, "SUM_S", 0.005)
    directory = tmp_path / "events"
    directory.write_text("in the way")
    waiting: list[int] = []
    append = EventFile._append

    def watched(file: EventFile, day: str, data: bytes) -> None:
        waiting.append(len(file._unwritten))
        append(file, day, data)

    monkeypatch.setattr(EventFile, "_append", watched)
    with EventFile(directory, "contoso", buffer_max=4) as file:
        for _ in range(20):
            tries = len(waiting)
            file(Event(DIVERTED, "orders", 3, details={"queue": "backlog"}))
            file(Event(PINGED, "orders", details={"answered": False}))
            until(lambda tries=tries: len(waiting) > tries)  # type: ignore[misc]
        directory.unlink()
    assert max(waiting) == 4
    told = lines_of(directory)
    assert sum(line["count"] for line in told if line["event"] == "diverted") == 60
    (lost,) = (line for line in told if line["event"] == "events-lost")
    pinged = sum(line["event"] == "pinged" for line in told)
    assert lost["count"] + pinged == 20 + (not any(line["event"] == "closed" for line in told))


def test_a_program_that_ends_without_a_word_still_writes(tmp_path: Path) -> None:
    file = EventFile(tmp_path, "contoso")
    assert isinstance(file._thread, threading.Thread) and file._thread.daemon
    file.close()
    file.close()
    file(Event(FAILED_OVER, "too late"))
    assert [line["event"] for line in lines_of(tmp_path)] == ["opened", "closed"]


def test_a_buffer_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="buffer_max must be 1 at least, not 0"):
        EventFile(tmp_path, "contoso", buffer_max=0)


def test_a_blocking_program_records_a_pairing_that_fails_over_and_returns_and_no_key_is_written(
    namespaces: Namespaces, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "spillway")
    path, name = namespaces.queue(), namespaces.unique_name()
    primary = sync.MessagingFactory.from_connection_string(
        namespaces.primary.connection_string, namespace_name=name, operation_timeout=10
    )
    secondary = sync.MessagingFactory.from_connection_string(namespaces.secondary.connection_string)
    manager = sync.NamespaceManager.from_connection_string(
        namespaces.secondary.connection_string, ca_file=namespaces.secondary.ca_file
    )
    with primary, secondary, manager:
        primary.record_events(tmp_path, process="blocking")
        options = sync.SendAvailabilityPairedNamespaceOptions(
            manager, secondary, 1, datetime.timedelta(0), ping_primary_interval=datetime.timedelta(seconds=1)
        )
        primary.pair_namespace(options)
        faults = namespaces.refuse(path)
        primary.create_message_sender(path).send_messages(ServiceBusMessage("around"))
        faults.clear()
        until(lambda: primary.counters[RECOVERED] == 1)
    told = [line for line in lines_of(tmp_path) if line["event"] not in ("backlog-queue-created", "pinged")]
    assert [line["event"] for line in told] == ["opened", "paired", "failed-over", "diverted", "recovered", "closed"]
    paired, away, diverted, back = told[1:5]
    assert (paired["backlog_queues"], paired["failover_interval_s"], paired["is_syphon"]) == (1, 0.0, False)
    assert (away["entity"], away["before"]) == (path, "healthy") and "ServiceBusQuotaExceeded" in away["error"]
    assert (diverted["count"], diverted["queue"]) == (1, f"{name}/x-servicebus-transfer/0")
    assert back["before"] == "failed over" and back["clock_us"] > away["clock_us"]
    written = "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    assert "failed-over" in written and "event=failed-over" in caplog.text
    key = re.findall("SharedAccessKey=([^;]+)", namespaces.secondary.connection_string)[0]
    assert key not in written + caplog.text
