"""spark-submit with a packed environment: nodes that have Spark and a Python, and nothing of ours."""

from pathlib import Path

import pyspark
import pytest

from tests.spark.bus import Bus
from tests.spark.cluster import Cluster, until
from tests.spark.packed import ARCHIVE, DISTRIBUTION, environment_in
from tests.spark.test_cluster import once, secret

pytestmark = pytest.mark.spark_processes

MESSAGES = 200
JOB_S_MAX = 200.0
KEY = b"SAS_KEY_VALUE"
PYTHON = "./environment/bin/python"
ARCHIVES = f"{ARCHIVE}#environment"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_guide_says_what_is_run_here() -> None:
    said = GUIDE.read_text(encoding="utf-8").split("\n### A packed environment\n")[1].split("\n### ")[0]
    assert f"export PYSPARK_PYTHON={PYTHON}\n" in said
    assert f"--archives {ARCHIVES} " in said
    assert f"tar -czf {ARCHIVE} -C environment .\n" in said
    assert f"pip install {DISTRIBUTION} " in said


@pytest.mark.timeout(600)
def test_a_capture_runs_from_a_packed_environment_on_nodes_that_have_only_spark(bus: Bus, tmp_path: Path) -> None:
    here = tmp_path / "here"  # where spark-submit is called
    here.mkdir()
    packages = environment_in(here)
    assert not (packages / "pyspark").exists()
    queue = bus.queue(*(f"body {number}" for number in range(MESSAGES)))
    out = tmp_path / "lake"
    with Cluster(tmp_path / "nodes", workers=1, home=Path(pyspark.__file__).parent) as cluster:
        capture = cluster.submit(
            (packages / "spillway" / "spark" / "jobs" / "capture.py").relative_to(here),
            *("--secret", secret(tmp_path, "bus", bus.broker.connection_string), "--entity", queue),
            *("--out", str(out), "--json"),
            options=["--archives", ARCHIVES],
            environment={"PYSPARK_PYTHON": PYTHON},
            directory=here,
        )
        (worker,) = cluster.workers

        def of_workers() -> list[tuple[str, Path]] | None:
            assert capture.process.poll() is None, f"it ended before it worked:\n{capture.log[-4000:]}"
            return [(line, cwd) for line, cwd in worker.called() if "pyspark.daemon" in line] or None

        calls = until("a worker runs Python", of_workers, JOB_S_MAX)
        for line, cwd in calls:
            assert line.startswith(f"{PYTHON} ")
            assert cluster.directory / worker.name in cwd.parents  # so it is the unpacked one, not that of `here`
            assert list((cwd / PYTHON).parents[1].glob("lib/python*/site-packages/spillway/__init__.py")) != []
        summary = capture.summary(JOB_S_MAX)
        said = [
            path for path in cluster.directory.rglob("*") if path.suffix in (".log", ".out") or path.name == "stderr"
        ]
        assert len(said) >= 3
        assert not any(KEY in path.read_bytes() for path in said)
    assert (summary["messages"], summary["settled"], summary["left"]) == (MESSAGES, MESSAGES, [])
    assert sum(once(out, queue).values()) == MESSAGES
    assert bus.peek(queue) == []
