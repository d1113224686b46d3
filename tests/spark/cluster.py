"""A standalone Spark cluster on this machine: a master and workers, each a process of its own, as on many machines.

Programs reach it by spark-submit. They run outside of the sources, so that what their processes import is the package
as it is installed. Every process of a node, whoever started it, has the node's mark in its environment: that is how all
of them are found, to be killed as a machine that loses its power kills them, or to be ended when a test is over.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyspark

from spillway.spark.platform.java import find_java
from spillway.spark.platform.spark_home import light_home
from tests.spark.java import QUICK_JAVA

MARK = "SPILLWAY_TEST_NODE"
SPARK_HOME = light_home(Path(pyspark.__file__).parent)
STARTED_S_MAX = 120.0
MIDDLE_S_MAX = 300.0
ENDED_S_MAX = 10.0
EXECUTOR_MEMORY = "512m"

T = TypeVar("T")


def until(what: str, look: Callable[[], T | None], timeout_s: float = STARTED_S_MAX, every_s: float = 0.05) -> T:
    """Other processes take real time: the first answer that is not None."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        found = look()
        if found is not None:
            return found
        time.sleep(every_s)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


class Node:
    """A process that a test started, with all that it started itself."""

    def __init__(
        self,
        name: str,
        line: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        called_in: Path | None = None,
    ) -> None:
        """What it says goes to `directory`, where it is called too, unless told otherwise."""
        self.name = name
        self.mark = f"{uuid.uuid4().hex}-{name}"
        self.log_path = directory / f"{name}.log"
        self.out_path = directory / f"{name}.out"
        with self.log_path.open("wb") as log, self.out_path.open("wb") as out:
            self.process = subprocess.Popen(
                line,
                env={**environment, MARK: self.mark},
                cwd=called_in or directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def said(self, pattern: str) -> str:
        """Wait until its log has it; the answer is the group of the pattern."""

        def look() -> str | None:
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log[-4000:]}"
            found = re.search(pattern, self.log)
            return None if found is None else found[1]

        return until(f"{self.name} says {pattern}", look)

    def pids(self) -> list[int]:
        """Its own first, then those of its descendants, orphans too."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # one that has just ended
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return sorted(found, key=lambda pid: (pid != self.process.pid, pid))

    def programs(self) -> list[str]:
        """The command lines of its processes."""
        return [line for line, _ in self.called()]

    def called(self) -> list[tuple[str, Path]]:
        """The command lines of its processes, each with the directory it runs in."""
        found = []
        for pid in self.pids():
            process = Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((line, (process / "cwd").readlink()))
        return found

    def kill(self) -> list[int]:
        """All at once, without a word, as when a machine loses its power."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(ENDED_S_MAX)
        return pids

    def end(self) -> None:
        """Asked first, then killed, with whatever is left of it."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDED_S_MAX)
        while self.pids():
            self.kill()


class Submitted(Node):
    """A program under way on the cluster."""

    def executors(self) -> dict[str, dict[str, Any]]:
        """As Spark tells of them: by their number, with `activeTasks`, `totalTasks`, `isActive`."""
        found = re.search(r"Successfully started service 'SparkUI' on port (\d+)", self.log)
        if found is None:
            return {}
        base = f"http://127.0.0.1:{found[1]}/api/v1/applications"
        try:
            (application,) = _get(base)
            rows = _get(f"{base}/{application['id']}/executors")
        except (OSError, ValueError):  # not yet, or not any more
            return {}
        return {row["id"]: row for row in rows if row["id"] != "driver"}

    def summary(self, timeout_s: float) -> dict[str, Any]:
        """Wait for its end; what it printed last."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = -1
        assert code == 0, f"{self.name} ended with {code}:\n{self.log[-6000:]}"
        found: dict[str, Any] = json.loads(self.out_path.read_text().splitlines()[-1])
        return found


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return json.load(answer)


def environment_of(directory: Path, home: Path = SPARK_HOME) -> dict[str, str]:
    """Of whatever is started there: Java, Spark, this Python, and nothing of a session of this process."""
    found = {
        **os.environ,
        "JAVA_HOME": str(find_java().home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
    }
    # A session of this process would leave its own way to Java here.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"):
        found.pop(name, None)
    return found


class Cluster:
    """`with Cluster(directory) as cluster:` has a master and two workers, with one core each."""

    def __init__(self, directory: Path, workers: int = 2, home: Path = SPARK_HOME) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.home = home
        self.workers: list[Node] = []
        self._nodes: list[Node] = []
        self._environment = environment_of(directory, home)
        try:
            master = self._start("master", "master.Master", "--port", "0", "--webui-port", "0")
            self.url = master.said(r"Starting Spark master at (spark://\S+)")
            started = [self._worker() for _ in range(workers)]
            for worker in started:
                worker.said(r"(Successfully registered with master)")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Programs first, the master last."""
        for node in reversed(self._nodes):
            node.end()

    def add_worker(self) -> Node:
        """One more machine, as after one has died."""
        worker = self._worker()
        worker.said(r"(Successfully registered with master)")
        return worker

    def _worker(self) -> Node:
        name = f"worker-{len(self._nodes)}"
        options = ["--port", "0", "--webui-port", "0", "--cores", "1", "--memory", EXECUTOR_MEMORY]
        options += ["--work-dir", str(self.directory / name), self.url]
        worker = self._start(name, "worker.Worker", *options)
        self.workers.append(worker)
        return worker

    def _start(self, name: str, kind: str, *options: str) -> Node:
        line = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        node = Node(name, [*line, *options], self._environment, self.directory)
        self._nodes.append(node)
        return node

    def submit(
        self,
        program: Path,
        *arguments: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Submitted:
        """As the guide says: no `--py-files`, because the package is installed where the processes are.

        `options` are spark-submit's own; `environment` and `directory` are where it is called.
        """
        line = [str(self.home / "bin" / "spark-submit"), "--master", self.url, *options]
        line += ["--driver-memory", "512m", "--executor-memory", EXECUTOR_MEMORY, "--executor-cores", "1"]
        line += [
            "--driver-java-options",
            QUICK_JAVA,
            "--conf",
            f"spark.executor.extraJavaOptions={QUICK_JAVA}",
        ]
        line += ["--conf", "spark.ui.port=0", "--conf", "spark.ui.liveUpdate.period=20ms"]
        submitted = Submitted(
            f"{program.stem}-{len(self._nodes)}",
            [*line, str(program), *arguments],
            {**self._environment, **(environment or {})},
            self.directory,
            directory,
        )
        self._nodes.append(submitted)
        return submitted

    def node_of(self, executor: str) -> Node:
        """The worker that has this executor among its processes."""
        option = f"--executor-id {executor} "
        (node,) = [node for node in self.workers if any(option in line for line in node.programs())]
        return node

    def kill_a_busy_worker(
        self, submitted: Submitted, is_middle: Callable[[], bool], just_begun: bool = False
    ) -> list[int]:
        """In the middle of the job, once all workers have had work, one dies that has a task, or has just got one."""
        before: dict[str, int] = {}

        def look() -> str | None:
            assert submitted.process.poll() is None, f"it ended before anything died:\n{submitted.log[-6000:]}"
            executors = {id_: row for id_, row in submitted.executors().items() if row["isActive"]}
            busy = [id_ for id_, row in executors.items() if row["activeTasks"]]
            if just_begun:
                busy = [id_ for id_ in busy if executors[id_]["totalTasks"] > before.get(id_, 0)]
            before.update({id_: row["totalTasks"] for id_, row in executors.items()})
            living = [worker for worker in self.workers if worker.process.poll() is None]
            all_worked = len(executors) == len(living) and all(row["totalTasks"] for row in executors.values())
            return busy[0] if busy and all_worked and is_middle() else None

        node = self.node_of(until("a worker is busy in the middle of the job", look, MIDDLE_S_MAX))
        self.workers.remove(node)
        return node.kill()

    def written(self) -> bytes:
        """All that processes of the cluster have said so far, executors too."""
        return b"".join(path.read_bytes() for path in self.directory.rglob("*") if path.is_file())
