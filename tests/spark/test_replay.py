"""Replay on real Spark: what was captured arrives as it was sent, in order, and once where duplicates are dropped."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.amqp.types import Int, Timestamp
from spillway.client import OutgoingMessage
from spillway.spark.jobs import capture
from spillway.spark.jobs.replay import ReplayConfig, ReplayError, check, main, ranges, run, text_of
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.job_directory import JobDirectoryError
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 20
PROPERTIES = {"n": Int(7), "when": Timestamp(1_700_000_000_000), "none": None, "id": uuid.UUID(int=5), "b": b"\x00"}


class Lake:
    """A queue and a dead-letter queue, captured."""

    def __init__(self, spark: "SparkSession", bus: Bus, path: Path) -> None:
        self.path = str(path)
        self.queue, dead = bus.queue(), bus.queue("bad")
        self.dead = f"{dead}/$deadletterqueue"
        sent = [
            OutgoingMessage(
                f"body {index}",
                message_id=f"id {index}",
                session_id=f"s{index % 2}",
                subject="even" if index % 2 == 0 else "odd",
                correlation_id="c",
                content_type="text/plain",
                time_to_live_ms=3_600_000,
                application_properties=PROPERTIES,
            )
            for index in range(COUNT)
        ]
        bus.send(self.queue, sent)
        bus.dead_letter(dead, "bad")
        access = bus.options["connectionString"]
        config = capture.CaptureConfig((self.queue, self.dead), self.path, connection_string=access, patience_s=0.0)
        assert capture.run(spark, config).settled == COUNT + 1


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", bus: Bus, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(spark, bus, tmp_path_factory.mktemp("lake"))


def config_for(bus: Bus, lake: Lake, to: str, **options: Any) -> ReplayConfig:
    return ReplayConfig(lake.path, to, **{"connection_string": bus.options["connectionString"], **options})


def test_messages_arrive_as_they_were_in_their_order_and_a_run_goes_on_from_its_checkpoint(
    spark: "SparkSession", bus: Bus, lake: Lake, tmp_path: Path
) -> None:
    to = bus.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(hours=1))
    config = config_for(bus, lake, to, entities=(lake.queue,), step_messages=8, checkpoint=str(tmp_path))
    summary = run(spark, config)
    assert (summary.planned, summary.sent, summary.steps) == (COUNT, COUNT, 3)
    arrived = bus.peek(to)
    assert [message.body.decode() for message in arrived] == [f"body {index}" for index in range(COUNT)]
    first = arrived[0]
    assert (first.message_id, first.session_id, first.properties.subject) == ("id 0", "s0", "even")
    assert (first.properties.correlation_id, first.properties.content_type) == ("c", "text/plain")
    assert first.header.ttl_ms == 3_600_000
    assert first.application_properties == PROPERTIES
    assert [type(value) for value in first.application_properties.values()] == [type(v) for v in PROPERTIES.values()]
    # A run that died after the second step had been sent, and before that was written down.
    (tmp_path / "done" / "000001.json").unlink()
    again = run(spark, config)
    assert (again.sent, again.steps, again.steps_before) == (7, 1, 2)  # numbers 7 to 13
    assert len(bus.peek(to)) == COUNT  # duplicates were dropped
    assert run(spark, config).sent == 0
    with pytest.raises(JobDirectoryError, match='its where is "", and here it is "true"'):
        run(spark, config_for(bus, lake, to, entities=(lake.queue,), where="true", checkpoint=str(tmp_path)))


def test_a_dry_run_counts_what_filters_choose_and_sends_nothing(spark: "SparkSession", bus: Bus, lake: Lake) -> None:
    to = bus.queue()
    summary = run(spark, config_for(bus, lake, to, dry_run=True))
    assert {line["entity"]: line["messages"] for line in summary.lines} == {lake.queue: COUNT, lake.dead: 1}
    assert f"{COUNT + 1} messages would be sent to {to}" in text_of(summary)
    day = summary.lines[0]["day"]
    odd = run(spark, config_for(bus, lake, to, dry_run=True, where="subject = 'odd'", day=f"2000-01-01..{day}"))
    assert odd.planned == COUNT // 2
    late = run(
        spark,
        config_for(
            bus,
            lake,
            to,
            dry_run=True,
            since=f"{day}T00:00:00",
            until="2999-01-02T00:00:00+00:00",
        ),
    )
    assert late.planned == COUNT + 1
    assert run(spark, config_for(bus, lake, to, dry_run=True, day="2000-01-01")).planned == 0
    with pytest.raises(OptionError, match="where: .*no_such_column"):
        run(spark, config_for(bus, lake, to, dry_run=True, where="no_such_column = 1"))
    assert bus.peek(to) == []


def test_a_replay_may_run_in_a_thread_of_pythons_own(spark: "SparkSession", bus: Bus, lake: Lake) -> None:
    to = bus.queue()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run, spark, config_for(bus, lake, to, entities=(lake.dead,))).result().sent == 1
    assert bus.bodies(to) == ["bad"]


def test_a_stamp_tells_where_a_message_was_and_the_dead_letters_words_are_left_out(
    spark: "SparkSession", bus: Bus, lake: Lake
) -> None:
    to = bus.queue()
    assert run(spark, config_for(bus, lake, to, entities=(lake.dead,), stamp=True, partitions=2)).sent == 1
    (message,) = bus.peek(to)
    properties = message.application_properties
    assert (message.body, message.message_id) == (b"bad", "m0")
    assert set(properties) == {
        f"x-spillway-captured-{name}" for name in ("namespace", "entity", "sequence-number", "enqueued-time")
    }
    assert properties["x-spillway-captured-entity"] == lake.dead
    assert properties["x-spillway-captured-sequence-number"] == 1
    assert type(properties["x-spillway-captured-enqueued-time"]) is Timestamp


def test_what_is_wrong_is_said_before_anything_is_sent(
    spark: "SparkSession", bus: Bus, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = bus.queue()
    for wrong, said in (
        ({"day": "yesterday"}, "day: 2026-11-16"),
        ({"day": "2026-02-30"}, "day: 2026-11-16"),
        ({"day": "2026-11-02..2026-11-01"}, "lies before"),
        ({"since": "noon"}, "since: a time in ISO 8601"),
        ({"since": "2026-11-16", "until": "2026-11-16"}, "until has to be later"),
        ({"partitions": 0}, "partitions"),
        ({"step_messages": 0}, "step-messages"),
        ({"dry_run": True, "checkpoint": "x"}, "dry-run"),
    ):
        with pytest.raises(OptionError, match=said):
            check(config_for(bus, lake, to, **wrong))
    with pytest.raises(NamespaceError, match="there is no entity 'nowhere'"):
        check(config_for(bus, lake, "nowhere"))
    with pytest.raises(NamespaceError, match="needs the right to send"):
        check(config_for(bus, lake, to, connection_string=bus.key(to, ["Listen"])))
    access = bus.options["connectionString"]
    with pytest.raises(ReplayError, match="no capture has written there"):
        run(spark, ReplayConfig(str(tmp_path), to, connection_string=access))
    secret = tmp_path / "bus"
    secret.write_text(access)
    line = ["--secret", f"file:{secret}", "--to", to, "--json"]
    assert main([*line, "--captured", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("no capture has written there")
    assert main([*line, "--captured", lake.path, "--entity", lake.dead, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["planned"] == 1
    assert main([*line, "--captured", lake.path, "--dry-run", "--where", "nothing = 1"]) == 2
    err = capsys.readouterr().err
    assert "replay: where: " in err and "Traceback" not in err and "stacktrace" not in err


def test_ranges_cover_every_number_once() -> None:
    assert ranges(1, 20, 20, 8) == [(1, 6), (7, 13), (14, 20)]
    assert ranges(5, 5, 1, 50_000) == [(5, 5)]
    assert ranges(1, 1_000_000, 3, 2) == [(1, 500_000), (500_001, 1_000_000)]
