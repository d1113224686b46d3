"""Many message sessions at a time: received and browsed on executors, without Spark around it."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spillway.cli.control import RunningBroker
from spillway.client import Connection, OutgoingMessage, ReceivedMessage, Receiver, SessionCannotBeLocked, connect
from spillway.spark.platform.connection_pool import connection_pool
from spillway.spark.platform.operations import CountedPool, Operations
from spillway.spark.source import lock_handover, parallel, session_pages, session_walk
from spillway.spark.source import locked as source_locked
from spillway.spark.source.browse import BrowseReader, BrowseStreamReader
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer, lock_renewer_of
from spillway.spark.source.locked import LockedPartition, LockedReader, LockedStreamReader, Reception, plan
from spillway.spark.source.options import ReadOptions, read_options
from spillway.spark.source.renewal_pace import RenewalPace
from spillway.spark.source.sequence_bounds import sessions_of
from spillway.spark.source.session_holder import HeldSession
from spillway.spark.source.session_pages import tasks_by_sessions
from spillway.spark.source.session_reception import SESSIONS_AT_A_TIME, SESSIONS_HELD_MAX
from spillway.spark.source.settle import settle_groups, settle_on_executor
from tests.spark.bus import Bus, run
from tests.tools.broker_process import BrokerProcess

SOON_S = 20.0
COLUMNS = StructType(
    [
        StructField("session_id", StringType()),
        StructField("sequence_number", LongType()),
        StructField("lock_token", StringType()),
    ]
)


@pytest.fixture(autouse=True)
def without_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are received and held by this process, as the keeper does it for workers."""
    monkeypatch.setattr(lock_handover, "keeper_client", lambda: None)


def options(bus: Bus, entity: str, **given: str) -> ReadOptions:
    return read_options({**bus.options, "entity": entity, "sessions": "*", "maxWaitSeconds": "0.2", **given})


def locked(bus: Bus, entity: str, **given: str) -> ReadOptions:
    return options(bus, entity, mode="peeklock", **given)


def with_sessions(bus: Bus, sessions: int, messages: int) -> str:
    """Message by message in turn: no session has two in a row."""
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage("x", session_id=f"s{at % sessions:04d}") for at in range(sessions * messages)])
    return queue


def receive(chosen: ReadOptions, part: LockedPartition) -> list[ReceivedMessage]:
    return [message for chunk in Reception(connection_pool(), chosen, part).chunks() for message in chunk]


def planned(chosen: ReadOptions, count: int = 0) -> list[LockedPartition]:
    counted = CountedPool(connection_pool(), Operations())
    return connection_pool().run(plan(counted, chosen, chosen.entities, count))


def rows_of(reader: Any, parts: Sequence[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def settle(chosen: ReadOptions, messages: Sequence[ReceivedMessage]) -> int:
    """How many locks were lost."""
    groups: dict[tuple[str, str | None], list[Any]] = {}
    for message in messages:
        groups.setdefault((chosen.entities[0], message.session_id), []).append(message.lock_token)
    return sum(gone.lost for gone in settle_groups(chosen.access, groups).values())


def in_order(rows: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["session_id"], []).append(row["sequence_number"])
    return found


def wait_until_nothing_is_held() -> None:
    renewer, until_s = lock_renewer_of(connection_pool()), time.monotonic() + SOON_S
    while renewer.count:
        assert time.monotonic() < until_s, "sessions are held on"
        time.sleep(0.05)


def test_every_message_of_many_sessions_is_received_once_and_in_the_order_of_its_session(bus: Bus) -> None:
    queue = with_sessions(bus, 150, 20)
    chosen = locked(bus, queue, maxMessages="5000", partitions="4")
    reader = LockedReader(chosen, COLUMNS)
    parts = reader.partitions()
    assert len(parts) == 4
    rows = rows_of(reader, parts)
    assert in_order(rows) == {f"s{at:04d}": list(range(at + 1, 3001, 150)) for at in range(150)}
    groups: dict[tuple[str, str | None], list[Any]] = {}
    for row in rows:
        groups.setdefault((queue, row["session_id"]), []).append(uuid.UUID(row["lock_token"]))
    assert sum(gone.lost for gone in settle_groups(chosen.access, groups).values()) == 0
    assert bus.peek(queue) == []
    wait_until_nothing_is_held()


def test_a_task_has_a_range_of_sessions(bus: Bus) -> None:
    queue = with_sessions(bus, 100, 1)
    names = tuple(f"s{at:04d}" for at in range(100))
    assert [part.sessions for part in planned(locked(bus, queue, partitions="4"))] == [
        names[:25],
        names[25:50],
        names[50:75],
        names[75:],
    ]
    assert [part.sessions for part in planned(locked(bus, queue, partitions="2"))] == [names[:50], names[50:]]
    assert len(planned(locked(bus, queue, partitions="200"))) == 100
    assert [part.sessions_max for part in planned(locked(bus, queue, partitions="4"))] == [SESSIONS_HELD_MAX // 4] * 4
    some = locked(bus, queue, sessions="s0001,s0007,s0009", partitions="4")
    assert [part.sessions for part in planned(some)] == [("s0001",), ("s0007",), ("s0009",)]


@pytest.mark.parametrize(
    ("sessions", "tasks"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (3_000, 3), (3_001, 4), (50_000, 4)]
)
def test_a_task_for_every_thousand_sessions_but_no_more_than_four(sessions: int, tasks: int) -> None:
    assert tasks_by_sessions(sessions) == tasks


def test_sessions_are_received_by_as_many_tasks_as_there_is_work_for(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = with_sessions(bus, 40, 1)
    assert len(planned(locked(bus, queue))) == len(planned(locked(bus, queue, partitions="1"))) == 1
    monkeypatch.setattr(session_pages, "SESSIONS_A_TASK", 15)  # then they are many
    assert [len(part.sessions or ()) for part in planned(locked(bus, queue))] == [13, 13, 14]


def test_few_sessions_with_many_messages_are_received_by_several_tasks(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_sessions(bus, 6, 10)
    monkeypatch.setattr(parallel, "MESSAGES_A_TASK", 20)
    monkeypatch.setattr(parallel, "core_count", lambda: 8)
    chosen = locked(bus, queue)
    assert [len(part.sessions or ()) for part in planned(chosen, 40)] == [3, 3]
    assert [len(part.sessions or ()) for part in planned(chosen, 10_000)] == [2, 2, 2]
    assert [len(part.sessions or ()) for part in planned(chosen, 20)] == [6]
    assert len(planned(locked(bus, queue, sessions="s0001"), 10_000)) == 1  # a session is one task's


def test_each_batch_of_a_stream_begins_with_other_sessions(bus: Bus) -> None:
    queue = with_sessions(bus, 8, 1)
    stream = LockedStreamReader(locked(bus, queue, partitions="2", settle="manual"), COLUMNS)
    firsts = []
    for number in range(1, 5):
        parts = stream.partitions({"batch": number - 1, "messages": 0}, {"batch": number, "messages": 9})
        firsts.append([part.sessions[0] for part in parts if isinstance(part, LockedPartition) and part.sessions])
        assert sorted(name for part in parts for name in part.sessions) == [f"s{at:04d}" for at in range(8)]  # type: ignore[attr-defined]
    assert firsts == [["s0002", "s0006"], ["s0000", "s0004"]] * 2


def test_a_stream_walks_through_more_sessions_than_a_batch_may_hold_and_lists_them_once(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_sessions(bus, 20, 1)
    lists: list[int] = []

    async def counted(management: Any) -> list[str]:
        found = await sessions_of(management)
        lists.append(len(found))
        return found

    monkeypatch.setattr(session_walk, "sessions_of", counted)
    monkeypatch.setattr(source_locked, "SESSIONS_HELD_MAX", 8)
    stream = LockedStreamReader(locked(bus, queue, settle="manual"), COLUMNS)
    names = [f"s{at:04d}" for at in range(20)]
    slices = []
    for number in (1, 1, 2, 3, 4):  # the first one is planned twice
        parts = stream.partitions({"batch": number - 1, "messages": 0}, {"batch": number, "messages": 100})
        slices.append(sorted(name for part in parts for name in part.sessions))  # type: ignore[attr-defined]
    assert slices == [names[:8], names[:8], names[8:16], names[16:], names[:8]]
    assert lists == [20, 20]


def test_a_run_that_takes_what_is_there_goes_past_sessions_that_others_hold_and_ends(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_sessions(bus, 20, 3)
    monkeypatch.setattr(source_locked, "SESSIONS_HELD_MAX", 4)
    chosen = locked(bus, queue, settle="manual")
    held = ["s0000", "s0004", "s0005", "s0006", "s0007"]  # the second slice has none but these

    async def hold() -> Connection:
        connection = await connect(bus.broker.connection_string)
        for name in held:
            await connection.session_receiver(queue, name)
        return connection

    loop = asyncio.new_event_loop()
    other = loop.run_until_complete(hold())
    try:
        stream = LockedStreamReader(chosen, COLUMNS)
        stream.prepareForTriggerAvailableNow()
        rows: list[dict[str, Any]] = []
        at, batches = stream.initialOffset(), 0
        while (end := stream.latestOffset(at, ReadMaxRows(100))) != at:
            found = rows_of(stream, stream.partitions(at, end))
            groups: dict[tuple[str, str | None], list[Any]] = {}
            for row in found:
                groups.setdefault((queue, row["session_id"]), []).append(uuid.UUID(row["lock_token"]))
            assert sum(gone.lost for gone in settle_groups(chosen.access, groups).values()) == 0
            wait_until_nothing_is_held()
            rows, at, batches = rows + found, end, batches + 1
        assert in_order(rows) == {
            f"s{at:04d}": [at + 1, at + 21, at + 41] for at in range(20) if f"s{at:04d}" not in held
        }
        assert batches <= 12  # a walk that finds what there is, and one that finds nothing
    finally:
        loop.run_until_complete(other.close())
        loop.close()


def test_a_read_that_locks_holds_a_bounded_number_of_sessions_and_says_what_it_leaves(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = with_sessions(bus, 60, 2)
    chosen = locked(bus, queue)
    (part,) = planned(locked(bus, queue, partitions="2"))[:1]
    part.sessions_max = 12
    first = receive(chosen, part)
    assert Counter(message.session_id for message in first) == {f"s{at:04d}": 2 for at in range(12)}
    assert f"18 sessions of '{queue}' left: a read that locks holds at most" in capsys.readouterr().err
    assert settle(chosen, first) == 0
    wait_until_nothing_is_held()
    second = receive(chosen, part)
    assert Counter(message.session_id for message in second) == {f"s{at:04d}": 2 for at in range(12, 24)}
    assert settle(chosen, second) == 0


def test_links_to_sessions_are_few_at_a_time(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = with_sessions(bus, 600, 1)
    counts: list[int] = []
    ask = Connection.ask_session

    async def counted(self: Connection, *given: Any, **named: Any) -> Receiver:
        receiver = await ask(self, *given, **named)
        counts.append(sum(1 for end in self._wire.ends() if isinstance(end, Receiver) and end.label == queue))
        return receiver

    monkeypatch.setattr(Connection, "ask_session", counted)
    chosen = options(bus, queue, mode="receiveanddelete", allowLoss="true", partitions="2")
    messages = [message for part in planned(chosen) for message in receive(chosen, part)]
    assert len({message.session_id for message in messages}) == len(messages) == len(counts) == 600
    assert 1 < max(counts) <= SESSIONS_AT_A_TIME
    assert bus.peek(queue) == []


def test_a_batch_has_no_more_messages_than_it_may_whoever_of_its_sessions_has_them(bus: Bus) -> None:
    queue = with_sessions(bus, 40, 10)
    chosen = locked(bus, queue)
    for count in (7, 40, 123):
        (part,) = planned(locked(bus, queue, partitions="2"), count)[:1]
        messages = receive(chosen, part)
        assert len(messages) == count // 2
        assert settle(chosen, messages) == 0
        wait_until_nothing_is_held()


def test_a_session_that_another_receiver_holds_is_passed_over_and_it_is_said(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = with_sessions(bus, 20, 1)
    chosen = locked(bus, queue)

    async def held(names: Sequence[str]) -> tuple[Connection, list[Receiver]]:
        connection = await connect(bus.broker.connection_string)
        return connection, [await connection.session_receiver(queue, name) for name in names]

    loop = asyncio.new_event_loop()
    connection, _ = loop.run_until_complete(held(["s0003", "s0004"]))
    try:
        part = LockedPartition(queue, 0, tuple(f"s{at:04d}" for at in range(20)))
        messages = receive(chosen, part)
        assert sorted(message.session_id or "" for message in messages) == [
            f"s{at:04d}" for at in range(20) if at not in (3, 4)
        ]
        said = capsys.readouterr().err
        assert f"2 sessions of '{queue}' passed over, among them 's0003': another receiver holds them" in said
        assert settle(chosen, messages) == 0
        wait_until_nothing_is_held()
        assert receive(chosen, part) == []
        assert capsys.readouterr().err == ""  # the same is not said again
    finally:
        loop.run_until_complete(connection.close())
        loop.close()
    assert {message.session_id for message in receive(chosen, part)} == {"s0003", "s0004"}


def test_a_task_that_wants_no_more_gives_back_sessions_that_nobody_has_seen(bus: Bus) -> None:
    queue = with_sessions(bus, 80, 30)
    chosen = locked(bus, queue)
    part = LockedPartition(queue, 0, tuple(f"s{at:04d}" for at in range(80)))
    chunks = Reception(connection_pool(), chosen, part).chunks()
    first = next(chunks)
    chunks.close()
    seen = {message.session_id for message in first}
    assert 0 < len(seen) < 80
    rest = receive(chosen, part)
    assert {message.session_id for message in rest} == {f"s{at:04d}" for at in range(80)} - seen
    assert all(message.delivery_count == 0 for message in rest)  # to be given back is no failed delivery
    assert settle(chosen, first) + settle(chosen, rest) == 0


@pytest.mark.parametrize("mode", ["peeklock", "receiveanddelete"])
def test_a_read_goes_on_over_another_connection_and_leaves_nothing_out(bus: Bus, mode: str) -> None:
    queue = with_sessions(bus, 120, 10)
    chosen = options(bus, queue, mode=mode, allowLoss="true")
    part = LockedPartition(queue, 0, tuple(f"s{at:04d}" for at in range(120)))
    pool = connection_pool()
    chunks = Reception(pool, chosen, part).chunks()
    seen = [next(chunks)]

    async def lose_the_connection() -> None:
        (await pool.connection(chosen.access))._wire.abort()

    pool.run(lose_the_connection())
    seen += list(chunks)
    count = Counter(message.sequence_number for chunk in seen for message in chunk)
    if mode == "receiveanddelete":
        assert bus.peek(queue) == []
        assert max(count.values()) == 1 and len(count) > 600  # what was under way is lost, as the option says
        return
    assert set(count) == set(range(1, 1201))
    assert settle(chosen, [message for chunk in seen[2:] for message in chunk]) == 0
    left = {message.sequence_number for message in bus.peek(queue)}
    assert left <= {message.sequence_number for chunk in seen[:2] for message in chunk}


@pytest.mark.parametrize("count_max", [0, 250, 500])
def test_sessions_that_are_received_and_deleted_leave_nothing_out(bus: Bus, count_max: int) -> None:
    """At the end of a task's share single messages are asked for, each with a drain close behind the last."""
    for _ in range(8):
        queue = with_sessions(bus, 100, 5)
        chosen = options(bus, queue, mode="receiveanddelete", allowLoss="true")
        names = tuple(f"s{at:04d}" for at in range(100))
        got = receive(chosen, LockedPartition(queue, count_max, names))
        left = [message.sequence_number or 0 for message in bus.peek(queue)]
        assert len(got) == (count_max or 500)
        assert sorted([*left, *(message.sequence_number or 0 for message in got)]) == list(range(1, 501))


def test_sessions_that_are_settled_are_free_for_others_and_the_rest_is_held_on(bus: Bus) -> None:
    queue = with_sessions(bus, 3, 1)
    chosen = locked(bus, queue)
    part = LockedPartition(queue, 0, ("s0000", "s0001", "s0002"))
    messages = {message.session_id: message for message in receive(chosen, part)}
    assert settle(chosen, [messages["s0000"], messages["s0002"]]) == 0

    async def accept(name: str) -> bool:
        async with await connect(bus.broker.connection_string) as connection:
            try:
                await connection.session_receiver(queue, name, max_wait=1)
            except SessionCannotBeLocked:
                return False
            return True

    until_s = time.monotonic() + SOON_S
    while not (run(accept("s0000")) and run(accept("s0002"))):
        assert time.monotonic() < until_s
    assert not run(accept("s0001"))
    assert settle(chosen, [messages["s0001"]]) == 0


def test_one_session_that_is_settled_is_free_although_the_last_is_not(bus: Bus) -> None:
    queue = with_sessions(bus, 3, 1)
    chosen = locked(bus, queue)
    messages = receive(chosen, LockedPartition(queue, 0, ("s0000", "s0001", "s0002")))
    by_name = {message.session_id: message for message in messages}
    first = messages[0].session_id or ""  # the one that is asked about
    assert settle(chosen, [by_name[first]]) == 0

    async def accept(name: str) -> bool:
        async with await connect(bus.broker.connection_string) as connection:
            try:
                await connection.session_receiver(queue, name, max_wait=1)
            except SessionCannotBeLocked:
                return False
            return True

    until_s = time.monotonic() + SOON_S
    while not run(accept(first)):
        assert time.monotonic() < until_s
    assert not any(run(accept(name or "")) for name in by_name if name != first)
    assert settle(chosen, [message for name, message in by_name.items() if name != first]) == 0


class MovedPace(RenewalPace):
    """Time passes for the broker and for whoever renews as fast as they wait."""

    def __init__(self, broker: BrokerProcess, stop_s: float) -> None:
        self.broker = RunningBroker(broker.connection_string, None)
        self.stop_s = stop_s
        self.passed_s = 0.0
        self.started = asyncio.Event()

    def now_s(self) -> float:
        return self.passed_s

    async def wait(self, released: asyncio.Event, seconds: float) -> bool:
        await self.started.wait()
        if self.passed_s + seconds > self.stop_s:
            await released.wait()
            return False
        await asyncio.to_thread(self.broker.ask, "POST", "clock", {"advance_s": seconds})
        self.passed_s += seconds
        return True


@pytest.mark.parametrize(("renew_s", "is_held"), [(300.0, True), (90.0, False), (0.0, False)])
def test_sessions_are_renewed_for_as_long_as_renew_seconds_says(tmp_path: Path, renew_s: float, is_held: bool) -> None:
    """Three minutes and a half, with locks of one."""
    with BrokerProcess(tmp_path / "data", options=["--movable-clock"]) as broker:
        given = {"connectionString": broker.connection_string, "entity": "slow", "mode": "peeklock", "sessions": "*"}
        chosen = read_options(given)
        pool = connection_pool()
        pace = MovedPace(broker, 210.0)

        async def work() -> list[int]:
            connection = await pool.connection(chosen.access)
            sender = await connection.sender("slow")
            held = LockRenewer(pool, pace).holding(chosen.access, "slow", renew_s)
            messages = []
            for name in ("a", "b"):
                await sender.send(OutgoingMessage("one", session_id=name))
                receiver = await connection.session_receiver("slow", name)
                (message,) = await receiver.receive(1, 5)
                messages.append(message)
                number = message.sequence_number or 0
                await held.add(HeldSession(receiver, (number, number), 1, message.locked_until_ms or 0))
            held.complete()
            pace.started.set()
            for _ in range(1_000):
                if held.released.is_set() or pace.passed_s > 205.0:
                    break
                await asyncio.sleep(0.01)
            return [
                await asyncio.to_thread(
                    settle_on_executor, chosen.access, "slow", [message.lock_token], session_id=message.session_id
                )
                for message in messages
                if message.lock_token is not None
            ]

        _make_session_queue(broker, "slow")
        assert pool.run(work()) == ([0, 0] if is_held else [1, 1])
        assert is_held or max(renew_s, 50.0) <= pace.passed_s <= max(renew_s, 60.0) + 4.0


def _make_session_queue(broker: BrokerProcess, name: str) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    ) as client:
        client.create_queue(name, requires_session=True)


# -- browsing ----------------------------------------------------------------------------------------------------------


def test_all_sessions_are_browsed_as_one_range_of_numbers(bus: Bus) -> None:
    queue = with_sessions(bus, 300, 4)
    reader = BrowseReader(options(bus, queue), COLUMNS)
    (part,) = reader.partitions()
    assert [row["sequence_number"] for row in rows_of(reader, [part])] == list(range(1, 1201))
    parts = BrowseReader(options(bus, queue, partitions="3"), COLUMNS).partitions()
    assert len(parts) == 3
    rows = rows_of(reader, parts)
    assert in_order(rows) == {f"s{at:04d}": list(range(at + 1, 1201, 300)) for at in range(300)}


def test_named_sessions_are_browsed_many_at_a_time_in_ranges(bus: Bus) -> None:
    queue = with_sessions(bus, 100, 12)
    names = [f"s{at:04d}" for at in range(0, 100, 2)]
    chosen = options(bus, queue, sessions=",".join(names))
    reader = BrowseReader(chosen, COLUMNS)
    parts = reader.partitions()
    assert len(parts) == 4
    expected = {f"s{at:04d}": list(range(at + 1, 1201, 100)) for at in range(0, 100, 2)}
    assert in_order(rows_of(reader, parts)) == expected
    limited = BrowseReader(options(bus, queue, sessions="s0001,s0002", maxMessages="10"), COLUMNS)
    assert len(rows_of(limited, limited.partitions())) == 10
    one = BrowseReader(options(bus, queue, sessions="s0007", partitions="2"), COLUMNS)
    assert len(one.partitions()) == 2  # then it is its numbers that are shared out
    assert in_order(rows_of(one, one.partitions())) == {"s0007": list(range(8, 1201, 100))}


@pytest.mark.parametrize("sessions", ["*", ",".join(f"s{at:04d}" for at in range(50))])
def test_a_browsing_stream_of_many_sessions_is_complete_and_reads_a_batch_again(bus: Bus, sessions: str) -> None:
    queue = with_sessions(bus, 50, 6)
    chosen = read_options({**bus.options, "entity": queue, "sessions": sessions}, is_streaming=True)
    at: Any = {queue: 0}
    rows: list[dict[str, Any]] = []
    batches = 0
    while True:
        stream = BrowseStreamReader(chosen, COLUMNS)  # started again with each batch
        end = stream.latestOffset(at, ReadMaxRows(70))
        if end == at:
            break
        assert set(end) == {queue} and set(end[queue]) == {"next", "passed"}
        batch = rows_of(stream, stream.partitions(at, end))
        again = BrowseStreamReader(chosen, COLUMNS)
        assert in_order(rows_of(again, again.partitions(at, end))) == in_order(batch)
        rows, at, batches = rows + batch, end, batches + 1
    assert batches == 5
    assert in_order(rows) == {f"s{at:04d}": list(range(at + 1, 301, 50)) for at in range(50)}


def test_a_session_of_an_earlier_batch_is_given_back_to_the_next(bus: Bus) -> None:
    queue = with_sessions(bus, 40, 2)
    chosen = locked(bus, queue, holder="a")
    names = tuple(f"s{at:04d}" for at in range(40))
    assert len(receive(chosen, LockedPartition(queue, 0, names, LockBatch("a", (1, 1))))) == 80
    again = receive(chosen, LockedPartition(queue, 0, names, LockBatch("a", (1, 2))))
    assert len(again) == 80 and settle(chosen, again) == 0


def test_a_read_that_may_be_of_few_rows_locks_few_messages_before_it_is_asked_for_more(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(1_000)])
    chosen = read_options({**bus.options, "entity": queue, "mode": "peeklock", "maxWaitSeconds": "0.2"})
    divided = with_sessions(bus, 100, 10)
    all_of = LockedPartition(divided, 0, tuple(f"s{at:04d}" for at in range(100)))
    for read, part in ((chosen, LockedPartition(queue, 1_000, None)), (locked(bus, divided), all_of)):
        chunks = Reception(connection_pool(), read, part).chunks()
        first = next(chunks)
        time.sleep(0.3)  # more than it takes to receive all of them
        assert len(first) <= 60 and 1_000 - len(unlocked(bus, part.entity, part.sessions is not None)) <= 150
        chunks.close()
        assert settle(read, first) == 0 if part.sessions else True


def unlocked(bus: Bus, queue: str, has_sessions: bool) -> list[int | None]:
    """What another receiver gets at once; it gives everything back."""

    async def of(connection: Connection, name: str | None) -> list[int | None]:
        try:
            receiver = await (connection.session_receiver(queue, name) if name else connection.receiver(queue))
        except SessionCannotBeLocked:
            return []
        found: list[ReceivedMessage] = []
        while some := await receiver.receive(1_000, 0.1):
            found += some
        for message in found:
            receiver.release(message)
        await receiver.close()
        return [message.sequence_number for message in found]

    async def work() -> list[int | None]:
        async with await connect(bus.broker.connection_string) as connection:
            names = [f"s{at:04d}" for at in range(100)] if has_sessions else [None]
            return [number for name in names for number in await of(connection, name)]

    return run(work())
