"""What jobs count is among Spark's own metrics, and Prometheus finds it with the settings of the guide."""

import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.spark import jobs
from spillway.spark.jobs import capture, syphon
from spillway.spark.jobs.capture import CaptureConfig
from spillway.spark.jobs.syphon import SyphonConfig
from spillway.spark.platform import job_metrics
from spillway.spark.platform.job_metrics import NUMBERS, PREFIX, JobMetrics, accumulators_of
from tests.paired.namespaces import Namespaces
from tests.spark.bus import Bus
from tests.spark.cluster import MIDDLE_S_MAX, SPARK_HOME, Submitted, environment_of, until
from tests.spark.java import QUICK_JAVA
from tests.syphon.backlogs import Backlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"
MESSAGES = 30
OURS = "metrics_spillway_driver_AccumulatorSource_spillway"


def section() -> str:
    return GUIDE.read_text(encoding="utf-8").split("\n## Prometheus\n")[1].split("\n## ")[0]


def registered(spark: "SparkSession") -> dict[str, int]:
    """What the gauges of Spark's source of accumulators read."""
    return {f"{PREFIX}.{name}": int(each.value()) for name, each in accumulators_of(spark).items()}


def risen(spark: "SparkSession", before: dict[str, int], job: str) -> dict[str, int]:
    """By how much, those that did."""
    change = {name: now - before[name] for name, now in registered(spark).items() if now != before[name]}
    return {name.removeprefix(f"{PREFIX}.{job}."): by for name, by in change.items()}


def test_counters_go_on_from_run_to_run_and_what_rises_and_falls_ends_with_its_run(spark: "SparkSession") -> None:
    first = JobMetrics(spark, "capture")
    before = registered(spark)
    first.tell(messages=5, lag_seconds=2.6)
    first.tell(messages=7, lag_seconds=None, lag_messages=3)
    assert risen(spark, before, "capture") == {"messages": 7, "lag_seconds": 3, "lag_messages": 3}
    first.tell(lag_messages=1)
    first.close()
    second = JobMetrics(spark, "capture")
    second.tell(messages=2, lag_messages=4)
    assert risen(spark, before, "capture") == {"messages": 9, "lag_messages": 4}
    second.close()
    assert risen(spark, before, "capture") == {"messages": 9}
    with pytest.raises(AssertionError, match="declared before it is told"):
        second.tell(speed=1)


def test_a_job_works_without_metrics_where_python_may_not_touch_spark_s_java(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(session: "SparkSession") -> None:
        java: Any = session.sparkContext._jvm
        java.java.lang.System.forbidden()

    monkeypatch.setattr(job_metrics, "accumulators_of", forbidden)
    metrics = JobMetrics(spark, "capture")
    metrics.tell(messages=5)
    metrics.close()
    said = capsys.readouterr().err
    assert re.fullmatch(r"spillway: no numbers for Spark's metrics: .*forbidden does not exist.*\n", said)


def test_a_syphon_and_a_capture_tell_what_they_have_done(
    spark: "SparkSession", namespaces: Namespaces, tmp_path: Path
) -> None:
    backlog = Backlog(namespaces, queues=2)
    queue = backlog.destination()
    backlog.fill(queue, MESSAGES)
    primary, secondary = namespaces.primary.connection_string, namespaces.secondary.connection_string
    JobMetrics(spark, "syphon")
    before = registered(spark)
    syphon.run(spark, SyphonConfig(primary, secondary, namespace_name=backlog.name))
    found = risen(spark, before, "syphon")
    assert (found.pop("batches") >= 1, found) == (True, {"moved": MESSAGES})
    before = registered(spark)
    capture.run(spark, CaptureConfig((queue,), str(tmp_path / "lake"), connection_string=primary))
    found = risen(spark, before, "capture")
    assert (found.pop("batches") >= 1, found) == (True, {"messages": MESSAGES, "settled": MESSAGES})


@pytest.mark.spark_processes
@pytest.mark.timeout(600)
def test_prometheus_finds_the_numbers_of_a_capture_with_the_settings_of_the_guide(bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue(*(f"body {number}" for number in range(MESSAGES)))
    settings = re.findall(r"--conf '?([^\s']+)'?", section())
    assert len(settings) >= 4
    line = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2,4]", "--driver-java-options", QUICK_JAVA]
    for setting in [*settings, "spark.ui.port=0"]:
        line += ["--conf", setting]
    (tmp_path / "bus").write_text(bus.broker.connection_string)
    line += [str(Path(jobs.__file__).parent / "capture.py"), "--secret", f"file:{tmp_path / 'bus'}"]
    line += ["--entity", queue, "--out", str(tmp_path / "lake"), "--watch", "--interval", "1", "--min-messages", "1"]
    job = Submitted("capture", [*line, "--json"], environment_of(tmp_path), tmp_path)
    try:
        port = job.said(r"Successfully started service 'SparkUI' on port (\d+)")
        pages = {path: f"http://127.0.0.1:{port}{path}" for path in re.findall(r"`(/metrics/[a-z/]+)`", section())}
        assert len(pages) == 2
        driver, executors = pages
        until(
            "the page has the messages",
            lambda: value(pages[driver], "capture_settled", job) == MESSAGES or None,
            MIDDLE_S_MAX,
        )
        assert value(pages[driver], "capture_messages", job) == MESSAGES
        until("the page has operations", lambda: (value(pages[driver], "capture_operations", job) or 0) > 0 or None)
        # What the batch took away waits no more, as soon as Spark tells of the idle query.
        until("the page has no lag", lambda: value(pages[driver], "capture_lag_messages", job) == 0 or None)
        of_executors = until("the page of executors answers", lambda: fetch(pages[executors]) or None)
        assert "metrics_executor_completedTasks_total{" in of_executors
        text = until("the page answers", lambda: fetch(pages[driver]) or None) + of_executors
        ours = [f"{OURS}_{name}_{number}_Value" for name, numbers in NUMBERS.items() for number in numbers]
        sparks = re.findall(r"^\| `(metrics_\S+)` \|", section(), re.MULTILINE)
        assert len(sparks) >= 3
        told = {line.partition("{")[0] for line in text.splitlines()}
        missing = [name for name in ours + sparks if not any(re.fullmatch(pattern(name), each) for each in told)]
        assert missing == []
    finally:
        job.end()


def pattern(name: str) -> str:
    """RUN is the end of the name of a capture's query."""
    return re.escape(name).replace("RUN", "[0-9a-f]+")


def value(url: str, name: str, job: Submitted) -> int | None:
    assert job.process.poll() is None, f"it ended:\n{job.log[-4000:]}"
    found = re.search(rf"^{OURS}_{name}_Value\S* (\d+)$", fetch(url), re.MULTILINE)
    return None if found is None else int(found[1])


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=20.0) as answer:
            return str(answer.read().decode())
    except OSError:  # not yet, or the first time, which on a busy machine takes long
        return ""
