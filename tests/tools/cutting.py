"""Power cuts under load, again and again on the same data, and the verdict over what the clients wrote down.

Like `killing`, but the file system under the broker goes too, with all that was not synced. Clients and their histories
live on another one.

The broker is frozen just before the cut. Under a running process, a sync that overlaps the cut may return success with
its bytes gone; the acknowledgement that follows would make a loss that no real power cut can cause, since there the
processor stops as well. A thread inside a sync may stay there: it cannot come back from it.
"""

import contextlib
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import apsw

from spillway.store.check import check
from spillway.store.directory import JOURNAL_NAME
from spillway.store.replay import log_directory
from spillway.store.sqlite import SqliteJournal
from spillway.store.wal import log_of
from tests.tools.broker_process import NAMESPACE, BrokerDied, BrokerProcess
from tests.tools.history import Verdict, judge, read
from tests.tools.killing import PIPELINED, Clients
from tests.tools.loop_disk import LoopDisk

QUEUE: Final = "cuts"
PROGRESS_TIMEOUT_S: Final = 30.0
FREEZE_TIMEOUT_S: Final = 10.0
DRAIN_TIMEOUT_S: Final = 300.0
LOADED_S_MAX: Final = 2.0  # how long a life may work under load before its power is cut
STARTING_S_MAX: Final = 0.8  # a cut in this time after the start mostly falls before "ready"
STARTING_ONE_OF: Final = 5
HUNTED_ONE_OF: Final = 2
HUNT_S_MAX: Final = 1.0  # a broker under load waits for its disk many times in that long
LAST_NUMBERS: Final = "SELECT path, last_sequence_number FROM entity"


@dataclass
class Report:
    """What happened on one file system, for a test to assert on and for the evidence."""

    file_system: str
    seed: int
    cuts: int = 0
    cuts_while_starting: int = 0
    cuts_during_a_disk_call: int = 0
    store_errors: list[str] = field(default_factory=list)
    broker_died: str = ""
    cut_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    last_sequence_numbers: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and not self.store_errors and not self.broker_died

    def summary(self) -> dict[str, Any]:
        return {
            "file_system": self.file_system,
            "cuts": self.cuts,
            "cuts_while_starting": self.cuts_while_starting,
            "cuts_during_a_disk_call": self.cuts_during_a_disk_call,
            "took_s": round(self.took_s, 1),
            "seed": self.seed,
            "freeze_to_remounted_s_median": round(statistics.median(self.cut_s), 3) if self.cut_s else None,
            "ready_s_median": round(statistics.median(self.ready_s), 3) if self.ready_s else None,
            "ready_s_max": round(max(self.ready_s), 3) if self.ready_s else None,
            **self.verdict.summary(),
            "store_errors": len(self.store_errors),
            "store_errors_examples": self.store_errors[:5],
            "broker_died": self.broker_died,
            "last_sequence_numbers": self.last_sequence_numbers,
        }


class SeenNumbers:
    """The highest sequence number of each queue that a client was handed, read from the histories as they grow."""

    def __init__(self) -> None:
        self.highest: dict[str, int] = {}
        self._positions: dict[Path, int] = {}

    def update(self, histories: Iterable[Path]) -> None:
        for path in histories:
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                news = file.read()
            whole = news[: news.rfind(b"\n") + 1]
            self._positions[path] = self._positions.get(path, 0) + len(whole)
            for line in whole.splitlines():
                if b'"sequence_number"' in line:
                    event = json.loads(line)
                    queue = event["queue"].lower()
                    self.highest[queue] = max(self.highest.get(queue, 0), event["sequence_number"])


def run(
    directory: Path,
    kind: str,
    cuts: int,
    *,
    seed: int,
    env: Mapping[str, str] | None = None,
    python_path: Path | None = None,
    deadline: float | None = None,
    said: Callable[[str], None] = print,
) -> Report:
    """Cut the power of a broker on a fresh `kind` file system `cuts` times, drain it, judge.

    `directory` is on a file system that stays. Past the `deadline` (of `time.monotonic`) no further cut is made. `env`
    is for the negative control, which must not come out clean; a broker may die of a store that it has ruined.
    """
    begun = time.monotonic()
    report = Report(kind, seed)
    with LoopDisk(directory, kind) as disk:
        data = disk.root / "data"
        broker = BrokerProcess(data, queues=[QUEUE], log_dir=directory, env=env, python_path=python_path)
        test = PowerCuts(directory, disk, broker, report, random.Random(seed), said)
        try:
            test.cut_again_and_again(cuts, deadline)
            broker.close(allow_traceback=bool(report.broker_died))
        finally:
            test.end()
    report.took_s = time.monotonic() - begun
    report.verdict = judge(read(test.histories))
    return report


class PowerCuts:
    """One disk, one broker on it, clients beside it."""

    def __init__(
        self,
        directory: Path,
        disk: LoopDisk,
        broker: BrokerProcess,
        report: Report,
        dice: random.Random,
        said: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.disk = disk
        self.broker = broker
        self.report = report
        self.dice = dice
        self.said = said
        self.clients: Clients | None = None
        self.seen = SeenNumbers()

    @property
    def histories(self) -> list[Path]:
        return self.clients.histories if self.clients is not None else []

    def cut_again_and_again(self, cuts: int, deadline: float | None) -> None:
        """The first cut falls into the very first start, where the data directory is made."""
        try:
            self._cut_while_starting()
            self.broker.start()
            self.clients = Clients(self.directory, self.broker.connection_string)
            self.clients.start(PIPELINED, "send", "s", QUEUE)
            self.clients.start(PIPELINED, "receive", "r", QUEUE)
            while self.report.cuts < cuts and (deadline is None or time.monotonic() < deadline):
                self._wait_for_progress(self.clients)
                time.sleep(self.dice.uniform(0, LOADED_S_MAX))
                if self.dice.randrange(HUNTED_ONE_OF) == 0:
                    self._wait_for_disk_call()
                self._cut()
                if self.report.cuts < cuts and self.dice.randrange(STARTING_ONE_OF) == 0:
                    self._cut_while_starting()
                self.report.ready_s.append(self.broker.start().ready_s)
                self._say_progress(cuts)
            self._drain(self.clients)
        except BrokerDied as error:
            self.report.broker_died = str(error)

    def end(self) -> None:
        """Nothing of ours may keep the disk busy, whatever has happened."""
        if self.clients is not None:
            self.clients.kill()
        if self.broker.is_running:
            self.broker.kill()

    def _cut_while_starting(self) -> None:
        self.broker.spawn()
        time.sleep(self.dice.uniform(0, STARTING_S_MAX))
        self._cut()
        self.report.cuts_while_starting += 1

    def _wait_for_disk_call(self) -> None:
        """A sync is short beside the work between two: a random moment would seldom fall into one."""
        deadline = time.monotonic() + HUNT_S_MAX
        while "D" not in _states(self.broker.pid) and time.monotonic() < deadline:
            pass

    def _cut(self) -> None:
        self._expect_alive()
        begun = time.monotonic()
        self.broker.pause()
        is_in_disk_call = _wait_until_frozen(self.broker.pid)
        self.disk.cut()
        self.broker.kill()
        self.disk.unmount()
        self.disk.mount()
        self.report.cuts += 1
        self.report.cuts_during_a_disk_call += is_in_disk_call
        self.report.cut_s.append(time.monotonic() - begun)
        self._check_store()

    def _check_store(self) -> None:
        """Before the broker touches it again, and on a copy: every tree, row and counter, and the sequence numbers."""
        assert self.broker.data is not None
        journal = self.broker.data / NAMESPACE / JOURNAL_NAME
        self.seen.update(self.histories)
        if not journal.exists():
            if self.report.last_sequence_numbers:
                self._note_store_errors(["there is no journal any more"])
            return
        with tempfile.TemporaryDirectory(dir=self.directory) as name:
            copy = Path(name) / JOURNAL_NAME
            shutil.copyfile(journal, copy)
            if log_of(journal).exists():
                shutil.copyfile(log_of(journal), log_of(copy))
            if log_directory(journal).exists():
                shutil.copytree(log_directory(journal), log_directory(copy))
            findings = check(copy)
            self._note_store_errors(findings or self._check_sequence_numbers(copy))

    def _check_sequence_numbers(self, copy: Path) -> list[str]:
        """None is forgotten: not one that a client has seen, and not one that an earlier look at the store found."""
        journal = SqliteJournal(copy)  # puts what the log has into the file
        journal.recover()
        journal.close()
        connection = apsw.Connection(str(copy))
        stored = {str(path).lower(): int(str(number)) for path, number in connection.execute(LAST_NUMBERS)}
        connection.close()
        findings = []
        for known, where in ((self.seen.highest, "a client has seen"), (self.report.last_sequence_numbers, "it had")):
            for queue, number in known.items():
                if stored.get(queue, 0) < number:
                    findings.append(f"{queue}: {where} number {number}, now the last is {stored.get(queue)}")
        self.report.last_sequence_numbers = stored
        return findings

    def _note_store_errors(self, findings: list[str]) -> None:
        self.report.store_errors += [f"cut {self.report.cuts}: {finding}" for finding in findings]

    def _wait_for_progress(self, clients: Clients) -> None:
        """Both sides have been answered in this life: the cut to come is one under load."""
        deadline = time.monotonic() + PROGRESS_TIMEOUT_S
        since = clients.marks()
        for prefix, event in (("s", "sent"), ("r", "completed")):
            while not clients.has_news(since, prefix, event):
                self._expect_alive()
                assert time.monotonic() < deadline, f"nothing {event} in {PROGRESS_TIMEOUT_S} s"
                time.sleep(0.01)

    def _say_progress(self, cuts: int) -> None:
        wrong = f", {len(self.report.store_errors)} store errors" if self.report.store_errors else ""
        numbers = self.report.last_sequence_numbers.get(QUEUE, 0)
        self.said(f"{self.disk.kind}: {self.report.cuts} of {cuts} cuts, {numbers} messages stored so far{wrong}")

    def _drain(self, clients: Clients) -> None:
        """Everything that is left; in a new life, so that no lock of a client that has gone stands in the way."""
        clients.stop()
        self.broker.kill()
        self.broker.start()
        # Side by side: the drain completes all it sees, so nothing moves to the dead letters any more.
        drains = [
            clients.start(PIPELINED, "receive", "drain", QUEUE, "--drain"),
            clients.start(PIPELINED, "receive", "drain-dead", QUEUE, "--drain", "--dead-letters"),
        ]
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while any(process.poll() is None for process in drains):
            self._expect_alive()
            assert time.monotonic() < deadline, f"not drained in {DRAIN_TIMEOUT_S} s"
            time.sleep(0.05)
        assert [process.returncode for process in drains] == [0, 0], "the drains ended well"

    def _expect_alive(self) -> None:
        if not self.broker.is_running:
            raise BrokerDied(f"the broker died by itself:\n{self.broker.stderr}")


def _wait_until_frozen(pid: int) -> bool:
    """Until no thread can come back to its program: each is stopped (T), or in the kernel waiting for the disk (D).

    Returns whether one was waiting for the disk. The first that stops has told all the others, so a thread in D stops
    before it returns; its call has no effect that anybody sees.
    """
    deadline = time.monotonic() + FREEZE_TIMEOUT_S
    while True:
        states = _states(pid)
        if "T" in states and states <= {"T", "D"}:
            return "D" in states
        assert time.monotonic() < deadline, f"the broker does not stop: {states}"


def _states(pid: int) -> set[str]:
    """Of its threads, in the letters of proc(5)."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states
