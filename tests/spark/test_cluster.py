"""Jobs on a real cluster, by spark-submit: a machine of it dies in the middle, and nothing is missing, nothing twice.

This process has no session: what runs are the processes of the cluster, of the two brokers and of the jobs.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from spillway.client.faults import Fault, RemoteFaults
from spillway.spark import jobs
from spillway.spark.source.lake import BATCH, DAY, ENTITY
from tests.paired.namespaces import Namespaces
from tests.spark.bus import Bus
from tests.spark.cluster import Cluster
from tests.syphon.backlogs import Backlog
from tests.tools.broker_process import BrokerProcess

pytestmark = pytest.mark.spark_processes

JOBS = Path(jobs.__file__).parent
MESSAGES = 2_000
BATCH_MESSAGES = 500
LOCK_S = 5
JOB_S_MAX = 200.0
TEST_S_MAX = 600  # six Java machines start, on a machine that may be busy
KEY = b"SAS_KEY_VALUE"
DIED_WITH_A_TASK = "failed because while it was being computed, its executor exited"  # what Spark says then


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def secret(directory: Path, name: str, connection_string: str) -> str:
    """A file that every machine has, as Kubernetes mounts one."""
    path = directory / name
    path.write_text(connection_string)
    return f"file:{path}"


def count(namespaces: Namespaces, broker: BrokerProcess, path: str) -> int:
    """Messages of a queue, locked ones too, as the broker counts them."""
    with namespaces.administration(broker) as client:
        return client.get_queue_runtime_properties(path).active_message_count or 0


@pytest.mark.timeout(TEST_S_MAX)
def test_a_worker_dies_while_the_syphon_runs_and_everything_comes_home_once(
    cluster: Cluster, namespaces: Namespaces, tmp_path: Path
) -> None:
    backlog = Backlog(namespaces, queues=2, lock=f"PT{LOCK_S}S")
    queue = backlog.destination()
    ids = backlog.fill(queue, MESSAGES)
    faults = RemoteFaults(namespaces.primary.connection_string)
    faults.add(Fault("slow", queue, ["send"], delay_ms=1_500))  # so that there is a middle
    syphon = cluster.submit(
        JOBS / "syphon.py",
        *("--primary", secret(tmp_path, "primary", namespaces.primary.connection_string)),
        *("--secondary", secret(tmp_path, "secondary", namespaces.secondary.connection_string)),
        *("--namespace-name", backlog.name, "--batch-messages", str(BATCH_MESSAGES)),
        *("--checkpoint", str(tmp_path / "checkpoint"), "--json"),
    )

    def is_middle() -> bool:
        """A batch is done, and more than half of another is in both places: both tasks have sent, none completed."""
        home = count(namespaces, namespaces.primary, queue)
        left = sum(count(namespaces, namespaces.secondary, path) for path in backlog.paths)
        return 0 < left <= MESSAGES - BATCH_MESSAGES and home + left > MESSAGES + BATCH_MESSAGES // 2

    killed = cluster.kill_a_busy_worker(syphon, is_middle)
    faults.clear()
    summary = syphon.summary(JOB_S_MAX)
    assert len(killed) >= 3  # the worker, its executor, and the Python that moved messages
    assert DIED_WITH_A_TASK in syphon.log
    assert Counter(backlog.ids_at(queue)) == Counter(ids)
    assert backlog.left() == 0
    assert (summary["before"], summary["after"], summary["kept"]) == (MESSAGES, 0, 0)
    assert summary["tasks_lost"] >= 1
    assert len(summary["processes"]) >= 2
    assert KEY not in cluster.written()


@pytest.mark.timeout(TEST_S_MAX)
def test_a_worker_dies_while_capture_runs_and_every_message_is_in_the_files(
    cluster: Cluster, bus: Bus, tmp_path: Path
) -> None:
    if len(cluster.workers) < 2:
        cluster.add_worker()
    bodies = [f"body {number}" for number in range(MESSAGES)]
    queue = bus.queue(*bodies, lock_s=LOCK_S)
    faults = RemoteFaults(bus.broker.connection_string)
    faults.add(Fault("slow", queue, ["receive"], delay_ms=500))
    faults.add(Fault("slow", queue, ["settle"], delay_ms=1_500))
    out = tmp_path / "lake"
    capture = cluster.submit(
        JOBS / "capture.py",
        *("--secret", secret(tmp_path, "bus", bus.broker.connection_string), "--entity", queue),
        *("--out", str(out), "--max-messages", str(BATCH_MESSAGES), "--json"),
    )

    def is_middle() -> bool:
        return BATCH_MESSAGES < count(bus.namespaces, bus.broker, queue) <= MESSAGES - BATCH_MESSAGES

    killed = cluster.kill_a_busy_worker(capture, is_middle, just_begun=True)
    faults.clear()
    summary = capture.summary(JOB_S_MAX)
    assert len(killed) >= 3
    assert DIED_WITH_A_TASK in capture.log
    assert bus.peek(queue) == []
    assert summary["left"] == []
    assert once(out, queue) == Counter(bodies)
    assert KEY not in cluster.written()


def once(out: Path, entity: str) -> Counter[str]:
    """The bodies of the view of docs/pipeline.md, without Spark: of each message the copy that was written first."""
    first: dict[tuple[str, str, int, str], tuple[str, str, str]] = {}
    for path in out.rglob("*.parquet"):
        where = dict(part.split("=", 1) for part in path.relative_to(out).parts[:-1])
        assert where[ENTITY] == entity
        for row in parquet.ParquetFile(path).read().to_pylist():
            key = (row["namespace"], where[DAY], row["sequence_number"], str(row["enqueued_time"]))
            copy = (where[BATCH], row["lock_token"], row["body"].decode())
            first[key] = min(first.get(key, copy), copy)
    return Counter(body for _, _, body in first.values())
