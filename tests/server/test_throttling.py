"""What the process tells the core of its memory, and the operator of what is refused."""

import logging
import subprocess
import sys

import pytest

from spillway.broker.commands import Command, MemoryMeasured
from spillway.broker.throttle import MEMORY, OPERATIONS, Throttle
from spillway.model.limits import MIB
from spillway.model.quotas import Quotas
from spillway.server import memory
from spillway.server.throttling import NEAR_PERCENT, ThrottleWatch

LIMIT_MB = 128


class Scene:
    """A watch over a process whose memory the test decides."""

    def __init__(self) -> None:
        quotas = Quotas()
        quotas.set("memory-mb", LIMIT_MB)
        self.throttle = Throttle("test", quotas)
        self.used = 0
        self.freed = 0  # by giving back
        self.given_back = 0
        self.told: list[int] = []
        self.now_ms = 1_000_000
        self.watch = ThrottleWatch("test", self.throttle, self.tell, lambda: self.used, self.give_back)

    def tell(self, command: Command) -> None:
        assert isinstance(command, MemoryMeasured)
        self.told.append(command.bytes_used)

    def give_back(self) -> None:
        self.given_back += 1
        self.used -= self.freed

    def second(self, used: int | None = None) -> None:
        self.now_ms += 1_000
        self.used = self.used if used is None else used
        self.watch.poll(self.now_ms)


def test_the_core_hears_of_memory_only_when_there_is_too_much_and_when_that_is_over() -> None:
    scene = Scene()
    over = LIMIT_MB * MIB
    for used in (0, over - 1, over, over + 1, over - 1, over - 1):
        scene.second(used)
    assert scene.told == [over, over + 1, over - 1]


def test_what_the_c_library_keeps_is_given_back_before_anybody_is_refused() -> None:
    scene = Scene()
    scene.freed = MIB
    scene.second(LIMIT_MB * MIB)
    assert scene.told == []
    assert scene.given_back == 1


def test_giving_back_is_tried_every_ten_seconds_while_there_is_too_much() -> None:
    scene = Scene()
    for _ in range(25):
        scene.second(LIMIT_MB * MIB)
    assert scene.given_back == 3


def test_one_line_says_that_throttling_has_begun_and_one_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene()
    for _ in range(30):
        scene.throttle.refused[OPERATIONS] += 5
        scene.second()
    for _ in range(30):
        scene.second()
    assert [record.message for record in caplog.records] == [
        "namespace=test is throttled (operations-per-second): clients are asked to wait 10 s",
        "namespace=test is no longer throttled (operations-per-second): 150 requests refused",
    ]
    scene.throttle.refused[MEMORY] += 1
    scene.second()
    assert caplog.records[-1].message == "namespace=test is throttled (memory-mb): clients are asked to wait 10 s"


def test_the_memory_of_this_process_is_known() -> None:
    used = memory.resident_bytes()
    assert used is not None
    assert 10 * MIB < used < 100 * 1024 * MIB


def test_freed_memory_goes_back_to_the_system() -> None:
    """In a process of its own: what other tests left in this one would be given back with it."""
    program = """
from spillway.server import memory
before = memory.resident_bytes()
pieces = [bytes(1_000) for _ in range(100_000)]
kept = pieces[-1]
held = memory.resident_bytes()
del pieces
memory.release_free()
print(before, held, memory.resident_bytes())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    before, held, after = (int(number) for number in done.stdout.split())
    assert held - before > 80 * MIB
    assert after - before < 40 * MIB


def test_most_of_the_memory_there_is_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1_000 * MIB)
    monkeypatch.setattr(memory, "resource_bytes", lambda: 0)
    monkeypatch.setattr(memory, "cgroup_bytes", lambda name: 400 * MIB if name.endswith("memory.max") else 0)
    assert memory.memory_mb_default() == 300


def test_the_limit_of_a_container_is_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("cgroup")
    for text, limit in (("268435456\n", 256 * MIB), ("max\n", 0), ("9223372036854771712\n", 0)):
        (directory / "memory.max").write_text(text)
        assert memory.cgroup_bytes(str(directory / "memory.max")) == limit
    assert memory.cgroup_bytes(str(directory / "none")) == 0


def test_near_the_limit_clients_that_hold_much_are_ended_before_anybody_is_refused() -> None:
    scene = Scene()
    relieved: list[int] = []
    trimmed: list[int] = []
    scene.watch.relieve = relieved.append
    scene.watch.trim = lambda: trimmed.append(scene.used)
    near = LIMIT_MB * MIB * NEAR_PERCENT // 100
    scene.second(near - 1)
    assert not trimmed
    scene.second(near + 5)
    scene.second(near + 5)
    assert trimmed == [near + 5]
    assert relieved == [5]
    assert scene.told == []
