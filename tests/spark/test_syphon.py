"""The syphon on real Spark, between two real brokers: everything comes home once, whoever dies on the way."""

import json
import os
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spillway.client import OutgoingMessage
from spillway.client.faults import Fault, RemoteFaults
from spillway.spark.jobs.syphon import Summary, SyphonConfig, SyphonRun, main, run, text_of
from spillway.spark.platform.access import Access, OptionError
from spillway.spark.platform.connection_pool import backlogs_of, connection_pool
from spillway.spark.platform.operations import PollPace
from spillway.spark.platform.queries import stopped_by_signals
from spillway.spark.source.syphon_source import SyphonPlan, SyphonReader, share_out
from spillway.syphon.depths import Depth, SecondaryError
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "SAS_KEY_VALUE"


def config_for(backlog: Backlog, **options: Any) -> SyphonConfig:
    namespaces = backlog.namespaces
    return SyphonConfig(
        primary=namespaces.primary.connection_string,
        secondary=namespaces.secondary.connection_string,
        namespace_name=backlog.name,
        **{"patience_s": 0.0, "idle_s": 0.3, **options},
    )


def came_home(events: Path) -> Counter[str]:
    """By destination, as the lines of events tell it."""
    told: Counter[str] = Counter()
    for path in events.rglob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["event"] == "syphoned":
                told[line["entity"]] += line["count"]
    return told


@pytest.mark.contract("F8", "E7")
def test_the_whole_backlog_comes_home_in_two_processes_and_no_message_passes_the_driver(
    spark: "SparkSession", namespaces: Namespaces, tmp_path: Path
) -> None:
    backlog = Backlog(namespaces, queues=3)
    first, second = backlog.destination(), backlog.destination()
    ids = backlog.fill(first, 2_000, "a"), backlog.fill(second, 1_000, "b")
    events = tmp_path / "events"
    summary = run(spark, config_for(backlog, batch_messages=1_000, checkpoint=str(tmp_path), events=str(events)))
    assert (Counter(backlog.ids_at(first)), Counter(backlog.ids_at(second))) == (Counter(ids[0]), Counter(ids[1]))
    assert backlog.left() == 0
    assert (summary.moved, summary.kept, summary.dead_lettered, summary.tasks_lost) == (3_000, 0, 0, 0)
    assert (summary.before, summary.after, summary.broker_counted) == (3_000, 0, 3_000)
    assert summary.batches >= 3  # the last one is settled like any other
    assert len(summary.processes) >= 2
    assert f"{socket.gethostname()}:{os.getpid()}" not in summary.processes  # the driver moves nothing
    assert came_home(events) == {first: 2_000, second: 1_000}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    # Once more, from the same checkpoint: nothing is there, and nothing is done.
    again = run(spark, config_for(backlog, batch_messages=1_000, checkpoint=str(tmp_path)))
    assert (again.moved, again.batches) == (0, 0)


@pytest.mark.parametrize("place", ["received", "sent", "completed"])
def test_a_worker_that_dies_at_any_place_loses_nothing_and_duplicates_nothing(
    spark: "SparkSession", namespaces: Namespaces, tmp_path: Path, place: str
) -> None:
    backlog = Backlog(namespaces, lock="PT5S")
    queue = backlog.destination()
    ids = backlog.fill(queue, 600)
    marker = tmp_path / "crashed"
    environment = {"SPILLWAY_CRASH_AT": place, "SPILLWAY_CRASH_ONCE": str(marker)}
    summary = run(spark, config_for(backlog, environment=environment))
    assert marker.exists()
    assert Counter(backlog.ids_at(queue)) == Counter(ids)
    assert backlog.left() == 0
    assert summary.tasks_lost == 1
    assert summary.broker_counted == 600
    # What a task did between its last report and its death is only known to the broker.
    assert summary.moved <= 600


def test_what_a_destination_refuses_is_kept_with_the_reason(spark: "SparkSession", namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill("nowhere", 40, "lost")
    backlog.put([OutgoingMessage(b"x", message_id="malformed")])
    ids = backlog.fill(queue, 60)
    summary = run(spark, config_for(backlog))
    assert sorted(backlog.ids_at(queue)) == sorted(ids)
    assert (summary.moved, summary.kept, summary.dead_lettered, summary.after) == (60, 40, 1, 40)
    (kept,) = [line for line in summary.lines if line["outcome"] == "kept"]
    assert kept["destination"] == "nowhere"
    assert kept["reason"].startswith("amqp:not-found")
    said = text_of(summary)
    assert "40 kept: nowhere: amqp:not-found" in said
    assert "1 dead-lettered" in said
    assert "PathMissing" in said


def test_without_any_backlog_queue_there_is_nothing_to_do(spark: "SparkSession", namespaces: Namespaces) -> None:
    config = SyphonConfig(
        primary=namespaces.primary.connection_string,
        secondary=namespaces.secondary.connection_string,
        namespace_name="no-such-namespace",
    )
    assert run(spark, config).backlogs == 0


def test_with_a_key_that_may_only_listen_the_backlog_queues_are_found_by_looking_for_them(
    spark: "SparkSession", namespaces: Namespaces
) -> None:
    backlog = Backlog(namespaces, queues=3)
    queue = backlog.destination()
    ids = backlog.fill(queue, 30)
    config = replace(config_for(backlog, backlog_queues=5), secondary=namespaces.secondary_with("listens"))
    summary = run(spark, config)
    assert (summary.backlogs, summary.before, summary.moved) == (3, None, 30)
    assert Counter(backlog.ids_at(queue)) == Counter(ids)
    assert backlog.left() == 0


def test_a_watch_waits_for_backlog_queues_that_nobody_has_made_yet_and_stops_when_told(
    spark: "SparkSession", namespaces: Namespaces, capfd: pytest.CaptureFixture[str]
) -> None:
    name = namespaces.unique_name()
    config = SyphonConfig(
        namespaces.primary.connection_string,
        namespaces.secondary.connection_string,
        namespace_name=name,
        watch=True,
        idle_s=0.3,
    )
    job = SyphonRun(spark, config)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(job.run)
        said = ""
        while "no backlog queue of" not in said:
            said += capfd.readouterr().err
            time.sleep(0.05)
        backlog = Backlog(namespaces, name=name)
        queue = backlog.destination()
        ids = backlog.fill(queue, 20)
        while len(backlog.ids_at(queue)) < 20:
            time.sleep(0.1)
        job.stop()
        summary = running.result(60)
    assert (summary.moved, summary.after) == (20, 0)
    assert Counter(backlog.ids_at(queue)) == Counter(ids)


def test_a_watch_forgets_reports_that_are_counted_and_messages_that_went_home_and_ends_by_ctrl_c(
    spark: "SparkSession", namespaces: Namespaces, tmp_path: Path
) -> None:
    """PySpark would cancel the batch under way."""
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill(queue, 20)
    config = config_for(backlog, watch=True, checkpoint=str(tmp_path), again_s=1.0)
    job = SyphonRun(spark, config)
    assert job.reports is not None
    reports = job.reports
    faults = RemoteFaults(namespaces.primary.connection_string)
    fault = faults.add(Fault("disabled", queue, ["attach"], count=1))

    def interrupt() -> None:
        try:
            while not faults.get(fault.number).hit:  # it is for the syphon, not for whoever looks
                time.sleep(0.05)
            while len(backlog.ids_at(queue)) < 20:
                time.sleep(0.1)
            while list(reports.glob("*.jsonl")):
                time.sleep(0.02)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as threads, stopped_by_signals(job.stop):
        interrupting = threads.submit(interrupt)
        summary = job.run()
    interrupting.result()
    assert signal.getsignal(signal.SIGINT) == before
    assert (summary.moved, summary.kept, summary.after, summary.tasks_lost) == (20, 0, 0, 0)


def test_a_drain_that_is_stopped_ends_after_the_batch_under_way_and_leaves_nothing_locked(
    spark: "SparkSession", namespaces: Namespaces
) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    ids = backlog.fill(queue, 2_000)
    job = SyphonRun(spark, config_for(backlog, batch_messages=100))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(job.run)
        while job.summary.batches < 2:
            assert not running.done()
            time.sleep(0.01)
        job.stop()
        summary = running.result(60)
    assert summary.batches < 10  # of twenty
    assert summary.moved == 2_000 - (summary.after or 0) == len(backlog.ids_at(queue))
    # Within the time of a lock the rest can be had.
    assert run(spark, config_for(backlog)).rounds == 1
    assert Counter(backlog.ids_at(queue)) == Counter(ids)


def test_backlog_queues_that_stay_empty_are_looked_at_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    access, now_s, looks, active = Access(connection_string=""), 1_000.0, 0, 0

    def depths(reader: SyphonReader) -> list[Depth]:
        nonlocal looks
        looks += 1
        return [Depth("a", active)]

    monkeypatch.setattr(SyphonReader, "_depths", depths)
    monkeypatch.setattr("spillway.spark.source.syphon_source.time.monotonic", lambda: now_s)
    reader = SyphonReader(SyphonPlan(access, access, "n", ("a",), is_watch=True))
    reader.pace = PollPace(lambda: now_s)
    start = reader.initialOffset()
    found = []
    for _ in range(20):  # minutes, in each of which Spark asks every second
        looks = 0
        for _ in range(60):
            assert reader.latestOffset(start, ReadAllAvailable()) == start
            now_s += 1.0
        found.append(looks)
    assert found[0] > 20 and found[-1] == 4
    active, since_s = 5, now_s
    while reader.latestOffset(start, ReadAllAvailable()) == start:
        now_s += 1.0
    assert now_s - since_s <= 15
    active, looks = 0, 0
    reader.latestOffset(start, ReadAllAvailable())
    assert looks == 1  # it has just had something: at once


@pytest.mark.parametrize("more", ["UseDevelopmentEmulator=true", ""])
def test_a_secondary_that_does_not_answer_is_said_so_in_one_line(more: str) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        at = f"Endpoint=sb://127.0.0.1:{taken.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=a2V5;{more}"
        backlogs = backlogs_of(Access(connection_string=at), "nobody", 2)
        with pytest.raises(SecondaryError, match="cannot be asked about its backlog queues: [^\n]+$") as told:
            connection_pool().run(backlogs.depths())
    assert "a2V5" not in str(told.value)


def test_a_batch_is_shared_out_to_all_tasks_and_a_deep_queue_to_several() -> None:
    access = Access(connection_string="")
    plan = SyphonPlan(access, access, "n", ("a", "b"), batch_messages=100, partitions=4)
    assert share_out([Depth("a", 1_000), Depth("b", 0)], plan) == [[["a", 25]]] * 4
    tasks = share_out([Depth("a", 300), Depth("b", 100)], plan)
    assert [sum(count for _, count in task) for task in tasks] == [25] * 4
    assert Counter(path for task in tasks for path, count in task for _ in range(count)) == {"a": 75, "b": 25}
    # All there is: then a share is a bound, and the queues are emptied.
    assert share_out([Depth("a", 4), Depth("b", 4)], plan) == [[["a", 25]], [["a", 25]], [["b", 25]], [["b", 25]]]
    assert share_out([Depth("a", None)], plan) == [[["a", 25]]] * 4
    assert SyphonPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"primary": "Endpoint=sb://h;SharedAccessKey=topsecret"}, "primary"),
        ({"secondary": "env:NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
        ({"batch_messages": 0}, "batch-messages"),
        ({"partitions": -1}, "partitions"),
        ({"backlog_queues": 0}, "backlog-queues"),
        ({"ttl": "never"}, "ttl"),
    ],
)
def test_bad_options_are_refused_by_name_and_without_the_secret(
    spark: "SparkSession", namespaces: Namespaces, options: dict[str, Any], said: str
) -> None:
    given: dict[str, Any] = {
        "primary": namespaces.primary.connection_string,
        "secondary": namespaces.secondary.connection_string,
    }
    with pytest.raises(OptionError, match=said) as refused:
        run(spark, SyphonConfig(**{**given, **options}))
    assert "topsecret" not in str(refused.value)
    assert "SharedAccessKey=" not in repr(SyphonConfig(**given))


def test_the_module_prints_its_summary_as_the_last_line(
    spark: "SparkSession",
    namespaces: Namespaces,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill(queue, 10)
    primary, secondary = tmp_path / "primary", tmp_path / "secondary"
    primary.write_text(namespaces.primary.connection_string)
    secondary.write_text(namespaces.secondary.connection_string)
    arguments = ["--primary", f"file:{primary}", "--secondary", f"file:{secondary}"]
    arguments += ["--namespace-name", backlog.name, "--json"]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert Summary(**said).moved == 10
    assert main([*arguments, "--partitions", "-5"]) == 2
    capsys.readouterr()
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        at = f"Endpoint=sb://127.0.0.1:{taken.getsockname()[1]}"
        secondary.write_text(f"{at};SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true")
        assert main(arguments) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("syphon: the secondary namespace cannot be asked")
