"""The process that keeps the locks of an executor, without Spark around it."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spillway.cli.control import RunningBroker
from spillway.client import MessageLockLost, OutgoingMessage, ReceivedMessage
from spillway.spark.platform.connection_pool import ConnectionPool, connection_pool
from spillway.spark.platform.processes import ProcessId, machine, owner, process_id
from spillway.spark.source import lock_handover
from spillway.spark.source.keeper_client import KeeperClient, start_keeper
from spillway.spark.source.keeper_place import KeeperPlace, KeeperUnavailable
from spillway.spark.source.lock_keeper import LockKeeper
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer, interval
from spillway.spark.source.locked import LockedPartition, Reception
from spillway.spark.source.options import ReadOptions, read_options
from spillway.spark.source.renewal_pace import RenewalPace
from spillway.spark.source.settle import settle_groups, settle_on_executor
from tests.spark.bus import Bus
from tests.tools.broker_process import BrokerProcess

SOON_S = 20.0
# What a Python process of Spark has in its environment: its parent is the JVM, here the process of this test.
OF_SPARK = {"PYTHON_WORKER_FACTORY_SECRET": "x"}
WORKER = """
import os, signal, sys
from spillway.spark.platform.connection_pool import connection_pool
from spillway.spark.source.locked import LockedPartition, Reception
from spillway.spark.source.options import read_options
chosen = read_options(dict(zip(sys.argv[1::2], sys.argv[2::2])))
for chunk in Reception(connection_pool(), chosen, LockedPartition(chosen.entities[0], 0, None)).chunks():
    print(*[message.lock_token for message in chunk], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The path of a socket has a hundred bytes, and those of pytest's directories are longer with several processes."""
    with tempfile.TemporaryDirectory(prefix="keeper") as directory:
        yield Path(directory)


def options(bus: Bus, entity: str, **given: str) -> ReadOptions:
    return read_options(given_options(bus, entity, **given))


def given_options(bus: Bus, entity: str, **given: str) -> dict[str, str]:
    return {**bus.options, "entity": entity, "mode": "peeklock", "maxWaitSeconds": "0.2", **given}


def receive(chosen: ReadOptions, batch: LockBatch | None = None) -> list[ReceivedMessage]:
    part = LockedPartition(chosen.entities[0], 0, None, batch)
    return [message for chunk in Reception(connection_pool(), chosen, part).chunks() for message in chunk]


def received_raw(chosen: ReadOptions) -> list[ReceivedMessage]:
    """Received by somebody whose locks nobody keeps."""
    pool = connection_pool()

    async def work() -> list[ReceivedMessage]:
        receiver = await (await pool.connection(chosen.access)).receiver(chosen.entities[0])
        return await receiver.receive(100, 5)

    return pool.run(work())


def tokens_of(messages: list[ReceivedMessage]) -> list[uuid.UUID]:
    return [message.lock_token for message in messages if message.lock_token is not None]


def wait_for(happened: Callable[[], bool]) -> None:
    until_s = time.monotonic() + SOON_S
    while not happened():
        assert time.monotonic() < until_s, "it has not happened"
        time.sleep(0.1)


@pytest.fixture
def executor() -> "Iterator[subprocess.Popen[bytes]]":
    """Stands for a JVM: it only lives."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_locks_are_renewed_after_the_worker_that_received_them_was_killed(bus: Bus) -> None:
    queue = bus.queue("one", "two", lock_s=5)
    words = [word for pair in given_options(bus, queue).items() for word in pair]
    ended = subprocess.run(
        [sys.executable, "-c", WORKER, *words], env={**os.environ, **OF_SPARK}, capture_output=True, text=True
    )
    assert ended.returncode == -9, ended.stderr
    time.sleep(7)  # longer than the lock, which is the broker's, and real
    assert receive(options(bus, queue)) == []
    tokens = [uuid.UUID(word) for word in ended.stdout.split()]
    assert len(tokens) == 2
    assert settle_on_executor(options(bus, queue).access, queue, tokens) == 0


SESSION_WORKER = """
import os, signal, sys
from spillway.spark.platform.connection_pool import connection_pool
from spillway.spark.source.locked import LockedPartition, Reception
from spillway.spark.source.options import read_options
chosen = read_options(dict(zip(sys.argv[1::2], sys.argv[2::2])))
part = LockedPartition(chosen.entities[0], 0, tuple(f"s{at}" for at in range(12)))
for chunk in Reception(connection_pool(), chosen, part).chunks():
    for message in chunk:
        print(message.session_id, message.lock_token, message.body.decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sessions_are_held_after_the_worker_that_received_them_was_killed(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_s=5)
    bus.send(queue, [OutgoingMessage(str(at), session_id=f"s{at % 12}") for at in range(60)])
    words = [word for pair in {**given_options(bus, queue), "sessions": "*"}.items() for word in pair]
    environment = {**os.environ, **OF_SPARK}
    line = [sys.executable, "-c", SESSION_WORKER, *words]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert ended.returncode == -9, ended.stderr
    rows = [row.split() for row in ended.stdout.splitlines()]
    for at in range(12):
        assert [row[2] for row in rows if row[0] == f"s{at}"] == [str(number) for number in range(at, 60, 12)]
    time.sleep(7)  # longer than the lock, which is the broker's, and real
    again = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert again.stdout == "" and f"12 sessions of '{queue}' passed over" in again.stderr
    groups: dict[tuple[str, str | None], list[uuid.UUID]] = {}
    for session_id, token, _ in rows:
        groups.setdefault((queue, session_id), []).append(uuid.UUID(token))
    lost = settle_groups(options(bus, queue).access, groups).values()
    assert [gone.lost for gone in lost] == [0] * 12
    assert bus.peek(queue) == []


def test_a_worker_that_wants_no_more_gives_sessions_back_through_the_keeper(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage("x", session_id=f"s{at % 60:02d}") for at in range(1_200)])
    chosen = read_options({**given_options(bus, queue), "sessions": "*"})
    part = LockedPartition(queue, 0, tuple(f"s{at:02d}" for at in range(60)))
    chunks = Reception(connection_pool(), chosen, part).chunks()
    first = next(chunks)
    chunks.close()
    seen = {message.session_id for message in first}
    rest: list[ReceivedMessage] = []

    def has_the_rest() -> bool:
        rest.extend(message for chunk in Reception(connection_pool(), chosen, part).chunks() for message in chunk)
        return {message.session_id for message in rest} | seen == {f"s{at:02d}" for at in range(60)}

    wait_for(has_the_rest)
    assert 0 < len(seen) < 60 and all(message.delivery_count == 0 for message in rest)


def test_what_the_keeper_holds_of_an_earlier_batch_is_received_by_the_next(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage("x", session_id=f"s{at}") for at in range(9)])
    chosen = read_options({**given_options(bus, queue), "sessions": "*"})

    def batch(number: int) -> list[ReceivedMessage]:
        part = LockedPartition(queue, 0, tuple(f"s{at}" for at in range(9)), LockBatch("of sessions", (1, number)))
        return [message for chunk in Reception(connection_pool(), chosen, part).chunks() for message in chunk]

    assert (len(batch(1)), len(batch(1)), len(batch(2))) == (9, 0, 9)


def test_where_there_is_no_keeper_the_worker_receives_sessions_itself_and_says_so(
    bus: Bus, short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = KeeperPlace(process_id(), str(short_path))
    place.directory.mkdir()
    place.directory.chmod(0o755)
    monkeypatch.setattr(lock_handover, "keeper_client", lambda: KeeperClient(place))
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage("x", session_id="s")])
    chosen = read_options({**given_options(bus, queue), "sessions": "*"})
    part = LockedPartition(queue, 0, ("s",))
    assert len([message for chunk in Reception(connection_pool(), chosen, part).chunks() for message in chunk]) == 1
    assert "the Python worker holds sessions itself" in capsys.readouterr().err


def test_the_keeper_ends_with_the_jvm_and_its_locks_run_out(
    bus: Bus, executor: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    queue = bus.queue("one", lock_s=5)
    chosen = options(bus, queue)
    place = KeeperPlace(process_id(executor.pid))
    tokens = tokens_of(received_raw(chosen))
    connection_pool().run(KeeperClient(place).renew(chosen.access, queue, tokens, 1.0, 300.0, None))
    assert place.socket.exists()
    executor.kill()
    executor.wait()
    wait_for(lambda: not place.socket.exists())
    wait_for(lambda: len(receive(chosen)) == 1)


def test_what_a_query_held_can_be_received_soon_after_its_end(bus: Bus, executor: "subprocess.Popen[bytes]") -> None:
    queue = bus.queue("one", "two")
    chosen = options(bus, queue)
    held = receive(chosen, LockBatch("a", (1, 1), process_id(executor.pid)))
    assert len(held) == 2 and receive(chosen) == []
    executor.kill()
    executor.wait()
    again: list[ReceivedMessage] = []

    def has_both() -> bool:
        again.extend(receive(chosen))
        return len(again) == 2

    wait_for(has_both)
    assert settle_on_executor(chosen.access, queue, tokens_of(again)) == 0


def test_no_key_is_where_others_could_read_it(bus: Bus, executor: "subprocess.Popen[bytes]") -> None:
    queue = bus.queue("one")
    chosen = options(bus, queue)
    place = KeeperPlace(process_id(executor.pid))
    tokens = tokens_of(received_raw(chosen))
    connection_pool().run(KeeperClient(place).renew(chosen.access, queue, tokens, 1.0, 300.0, None))
    assert place.directory.stat().st_mode & 0o777 == 0o700
    assert [path for path in place.directory.iterdir() if path.is_file()] == []  # sockets alone
    lines = subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in lines.splitlines() if "lock_keeper" in line and f" {executor.pid} " in line]
    assert bus.broker.connection_string not in lines and "SharedAccessKey" not in line


def test_a_directory_that_others_may_enter_is_not_used_and_the_worker_renews_itself(
    bus: Bus, short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = KeeperPlace(process_id(), str(short_path))
    place.directory.mkdir()
    place.directory.chmod(0o755)
    with pytest.raises(KeeperUnavailable, match="is not a directory that this user alone may enter"):
        place.make()
    queue = bus.queue("one", lock_s=5)
    chosen = options(bus, queue)
    monkeypatch.setattr(lock_handover, "keeper_client", lambda: KeeperClient(place))
    held = receive(chosen)
    time.sleep(7)
    assert settle_on_executor(chosen.access, queue, tokens_of(held)) == 0
    assert "the Python worker renews locks itself" in capsys.readouterr().err


def serving(place: KeeperPlace, pool: ConnectionPool, **bounds: float) -> object:
    place.make()
    with place.mutex():
        listening = place.listen()
    assert listening is not None
    return pool.start(LockKeeper(place, pool, **bounds).serve(listening))  # type: ignore[arg-type]


def test_a_keeper_with_nothing_to_keep_ends_and_the_next_locks_start_another(bus: Bus, short_path: Path) -> None:
    place = KeeperPlace(process_id(), str(short_path))
    pool = connection_pool()
    serving(place, pool, idle_s_max=0.0)
    wait_for(lambda: not place.socket.exists())
    chosen = options(bus, bus.queue("one"))
    tokens = tokens_of(received_raw(chosen))
    pool.run(KeeperClient(place).renew(chosen.access, chosen.entities[0], tokens, 1.0, 300.0, None))
    start_keeper(place)  # one that answers is not replaced
    with place.mutex():
        assert place.listen() is None


def test_a_keeper_takes_only_so_many_locks(bus: Bus, short_path: Path) -> None:
    place = KeeperPlace(process_id(), str(short_path))
    pool = connection_pool()
    serving(place, pool, locks_max=2)
    tokens = [uuid.uuid4() for _ in range(3)]
    access = options(bus, "none").access
    with pytest.raises(KeeperUnavailable, match="renews at most 2 locks"):
        pool.run(KeeperClient(place).renew(access, "none", tokens, 60.0, 300.0, None))
    pool.run(KeeperClient(place).renew(access, "none", tokens[:2], 60.0, 300.0, None))


def test_the_owner_is_the_jvm_of_a_worker_and_otherwise_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert owner() == process_id() and not owner().has_ended()
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    assert owner().pid == os.getppid()
    assert ProcessId(machine(), os.getpid(), "1").has_ended()  # another one had this number
    assert not ProcessId("elsewhere", os.getpid(), "1").has_ended()  # nobody here can say


class MovedPace(RenewalPace):
    """Time passes for the broker and for whoever renews as fast as they wait."""

    def __init__(self, broker: BrokerProcess, stop_s: float) -> None:
        self.broker = RunningBroker(broker.connection_string, None)
        self.stop_s = stop_s
        self.passed_s = 0.0

    def now_s(self) -> float:
        return self.passed_s

    async def wait(self, released: asyncio.Event, seconds: float) -> bool:
        if self.passed_s + seconds > self.stop_s:
            await released.wait()
            return False
        await asyncio.to_thread(self.broker.ask, "POST", "clock", {"advance_s": seconds})
        self.passed_s += seconds
        return True


@pytest.mark.parametrize(("renew_s", "batch_s", "is_held"), [(900.0, 600.0, True), (300.0, 600.0, False)])
def test_a_batch_may_take_as_long_as_renew_seconds_says(
    tmp_path: Path, renew_s: float, batch_s: float, is_held: bool
) -> None:
    """Ten minutes, with locks of one."""
    with BrokerProcess(tmp_path / "data", queues=["slow"], options=["--movable-clock"]) as broker:
        chosen = read_options({"connectionString": broker.connection_string, "entity": "slow", "mode": "peeklock"})
        pool = connection_pool()
        pace = MovedPace(broker, batch_s)

        async def work() -> bool:
            connection = await pool.connection(chosen.access)
            sender, receiver = await connection.sender("slow"), await connection.receiver("slow")
            await sender.send(OutgoingMessage("one"))
            messages = await receiver.receive(1, 5)
            renewer, tokens = LockRenewer(pool, pace), tokens_of(messages)
            every_s = interval(messages)
            renewer.renew(chosen.access, "slow", tokens, every_s, renew_s)
            for _ in range(3_000):
                if not renewer.count or pace.passed_s + every_s > batch_s:
                    break
                await asyncio.sleep(0.01)
            if pace.passed_s < batch_s:
                rest = {"advance_s": batch_s - pace.passed_s}
                await asyncio.to_thread(pace.broker.ask, "POST", "clock", rest)
            try:
                await pool.management(connection, "slow").settle(tokens)
                return True
            except MessageLockLost:
                return False

        assert pool.run(work()) is is_held
        assert is_held or 280.0 <= pace.passed_s <= 300.0
