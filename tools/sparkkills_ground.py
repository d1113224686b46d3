"""Where things are killed: two brokers, a directory, a Spark session for those who need one, and its processes."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.spark.platform.session import SHORT_LIVED_JAVA, build_session
from tests.paired.namespaces import Namespaces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 2_000  # of a trial
LOCK_S = 5
DAEMON = ["pyspark.daemon", "pyspark.worker"]  # what Spark calls the process that forks the workers of tasks


class Ground:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED_JAVA
        self.namespaces = Namespaces(directory)
        self._spark: SparkSession | None = None

    def spark(self) -> "SparkSession":
        """Embedded, on two cores, with four attempts a task; started when it is first asked for."""
        if self._spark is None:
            self._spark = build_session("kills", master="local[2,4]")
        return self._spark

    def stop_spark(self) -> None:
        found, self._spark = self._spark, None
        if found is not None:
            found.stop()

    def close(self) -> None:
        self.stop_spark()
        self.namespaces.close()


def failed_tasks(spark: "SparkSession") -> int:
    """How many attempts Spark has seen fail so far."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(at).failedTasks()) for at in range(executors.size()))


def java_of(pid: int) -> int:
    """The Java machine that this driver started."""
    for child in children_of(pid):
        if "java" in Path(f"/proc/{child}/comm").read_text():
            return child
    raise RuntimeError("the driver has no Java machine")


def workers_of(java: int) -> list[int]:
    """The Python processes that run tasks, idle ones too."""
    daemons = [child for child in children_of(java) if command_of(child)[-2:] == DAEMON]
    return [worker for daemon in daemons for worker in children_of(daemon)]


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
        if parent == pid:
            found.append(int(path.parent.name))
    return found


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []
