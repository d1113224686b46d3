"""The standing syphon: what it holds, what it costs, how it waits and comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from spillway.client import Connection, ConnectionLost, OutgoingMessage, ReceivedMessage, Receiver
from spillway.client.faults import Fault, RemoteFaults
from spillway.syphon import standing
from spillway.syphon.destinations import Destinations
from spillway.syphon.openers import opener_of_string
from spillway.syphon.reconnecting import Reconnecting
from spillway.syphon.standing import Reported, StandingLane, StandingSyphon
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog
from tests.syphon.drivers import Heard, until
from tests.syphon.test_contract import filled, made, until_at_home, until_left


@contextlib.asynccontextmanager
async def running(
    namespaces: Namespaces, backlog: Backlog, heard: Heard, long_poll_s: float = 30.0, timeout_s: float = 10.0
) -> AsyncIterator[StandingSyphon]:
    home, away = (
        opener_of_string(broker.connection_string, operation_timeout_s=timeout_s)
        for broker in (namespaces.primary, namespaces.secondary)
    )
    syphon = StandingSyphon(home, away, backlog.paths, heard, long_poll_s=long_poll_s, operation_timeout_s=timeout_s)
    syphon.start()
    try:
        yield syphon
    finally:
        await syphon.close()


class Scripted:
    """A receive that is answered by a script: so many seconds after it was asked, nothing."""

    def __init__(self, takes_s: float, calls_max: int) -> None:
        self.takes_s = takes_s
        self.calls_max = calls_max
        self.now_s = 0.0
        self.calls = 0

    def clock(self) -> float:
        return self.now_s

    async def receive(self, max_count: int = 1, max_wait: float | None = None) -> list[ReceivedMessage]:
        self.calls += 1
        if self.calls > self.calls_max:
            raise ConnectionLost("the script is over")
        self.now_s += self.takes_s
        return []


async def nowhere() -> Connection:
    raise ConnectionLost("nobody is sent to")


def lane_of(heard: Heard, long_poll_s: float = 900.0) -> StandingLane:
    nothing = cast(Any, None)
    return StandingLane("b", Destinations(nowhere), heard, nothing, nothing, "restart", long_poll_s, Reported())


async def test_a_receive_that_returns_at_once_with_nothing_is_no_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service does that cannot be read: it is asked less and less often, and others of the loop get their turn."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float, result: object = None) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    heard, script = Heard(), Scripted(0.0, 50)
    with pytest.raises(ConnectionLost):
        await lane_of(heard).receive_for_ever(script, script.clock)
    pauses = [seconds for seconds in slept if seconds]
    assert heard.operations["empty_receive"] == 50
    assert pauses == sorted(pauses) and len(pauses) == 50 and pauses[-1] == 30.0


async def test_an_idle_lane_makes_one_long_poll_after_the_other() -> None:
    heard, script = Heard(), Scripted(900.0, 96)
    with pytest.raises(ConnectionLost):
        await lane_of(heard).receive_for_ever(script, script.clock)
    assert (script.now_s, heard.polls) == (24 * 3600.0, 96)


async def test_messages_behind_more_than_it_may_hold_are_reached_and_memory_stays_bounded(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "HELD_MAX", 50)
    backlog = await made(namespaces)
    blocked, well = f"nowhere-{backlog.name}", backlog.destination()
    await asyncio.to_thread(filled, backlog, blocked, 600, "blocked")
    ids = await asyncio.to_thread(filled, backlog, well, 40, "well")
    heard = Heard()
    async with running(namespaces, backlog, heard) as syphon:
        await until_at_home(namespaces, well, ids, 20.0)
        (queue,) = syphon.queues
        lane = queue.lane
        assert lane is not None
        # What was on its way when the first refusal came is held too.
        assert lane.held_count <= 50 + standing.ACTIVE_MAX
        assert lane.held_count + len(lane.aside) + lane.active <= 640
        assert all(each.message.raw == b"" for each in lane.aside)
        later = await asyncio.to_thread(filled, backlog, well, 10, "later")
        await until_at_home(namespaces, well, ids + later, 30.0)
        with namespaces.administration(namespaces.primary) as client:
            client.create_queue(blocked, requires_duplicate_detection=True)
        await until_at_home(namespaces, blocked, [f"blocked{number}" for number in range(600)], 40.0)
        await until_left(backlog, 0)
        await until(lambda: lane.outstanding == 0 and not lane.aside and not lane.held)
        assert (lane.held_count, lane.held_bytes, lane.outstanding_bytes) == (0, 0, 0)


async def test_what_is_kept_for_what_it_is_is_reported_once_although_it_is_tried_again(
    own: Namespaces,
) -> None:
    backlog = await made(own, lock="PT5S")
    queue = await asyncio.to_thread(own.queue, requires_session=True)
    bad = OutgoingMessage(b"x", message_id="bad", application_properties={"x-ms-path": queue})
    await asyncio.to_thread(backlog.put, [bad])
    told: list[int] = []

    class Counting(Heard):
        def message_kept(self, queue: str, error: Any, sequence_number: int) -> None:
            told.append(sequence_number)

    heard = Counting()
    async with running(own, backlog, heard):
        await until(lambda: heard.operations["receive"] >= 3)
    assert len(told) == 1
    (left,) = await own.peek(own.secondary, backlog.paths[0])
    assert left.message_id == "bad"


async def test_locks_are_renewed_while_a_destination_keeps_them_waiting_and_let_go_after_a_while(
    own: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "HOLD_S", 8.0)
    backlog = await made(own, lock="PT5S")
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 3)
    faults = RemoteFaults(own.primary.connection_string)
    fault = faults.add(Fault("disabled", queue, ["send"]))
    heard = Heard()
    async with running(own, backlog, heard):
        await until(lambda: heard.operations["renew"] >= 3)
        assert heard.operations["receive"] == 3  # nobody else was handed them, nor were we again
        await until(lambda: heard.operations["receive"] >= 6)  # let go, they come once more
        faults.remove(fault.number)
        await until_at_home(own, queue, ids)
    assert heard.repeats == 0


async def test_what_cannot_be_settled_is_reported_and_sent_once_more(namespaces: Namespaces) -> None:
    backlog = await made(namespaces)
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 5)
    faults = RemoteFaults(namespaces.secondary.connection_string)
    faults.add(Fault("lock-lost", backlog.paths[0], ["settle"], count=1))
    heard = Heard()
    async with running(namespaces, backlog, heard):
        await until_at_home(namespaces, queue, ids)
        await until(lambda: heard.repeats == 1)
        await until_left(backlog, 0)
    assert heard.interruptions == []  # a lock that is gone is no reason to leave


async def test_a_link_that_the_service_detaches_is_attached_again(namespaces: Namespaces) -> None:
    backlog = await made(namespaces)
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 5)
    faults = RemoteFaults(namespaces.secondary.connection_string)
    faults.add(Fault("detach", backlog.paths[0], ["settle"], count=1))
    heard = Heard()
    async with running(namespaces, backlog, heard):
        await until(lambda: bool(heard.interruptions))
        await until_at_home(namespaces, queue, ids)
        await asyncio.to_thread(backlog.advance, 61.0)
        await until_left(backlog, 0)


async def test_the_first_try_says_whether_the_key_may_listen(namespaces: Namespaces) -> None:
    backlog = await made(namespaces)
    home = opener_of_string(namespaces.primary.connection_string)
    for rule, is_refused in (("sends", True), ("listens", False)):
        away = opener_of_string(namespaces.secondary_with(rule))
        syphon = StandingSyphon(home, away, backlog.paths, Heard())
        syphon.start()
        refusal = await syphon.tried()
        assert (refusal is not None) is is_refused
        await syphon.close()
        await syphon.close()  # once more is nothing


async def test_links_to_destinations_that_are_not_used_any_more_are_closed_and_forgotten(
    namespaces: Namespaces,
) -> None:
    backlog = await made(namespaces)
    queues = [backlog.destination() for _ in range(3)]
    for queue in queues:
        await asyncio.to_thread(filled, backlog, queue, 2, queue)
    await asyncio.to_thread(filled, backlog, f"nowhere-{backlog.name}", 1)
    async with running(namespaces, backlog, Heard()) as syphon:
        destinations = syphon.destinations
        await until(lambda: len(destinations.by_path) == 4 and syphon.outstanding_count == 1)
        senders = [each.sender for each in destinations.by_path.values() if each.sender is not None]
        assert len(senders) == 3
        now_s = asyncio.get_running_loop().time()
        destinations.tidy(now_s, idle_s=1_000.0)
        assert len(destinations.by_path) == 4
        destinations.tidy(now_s, idle_s=0.0)
        assert list(destinations.by_path) == [f"nowhere-{backlog.name}"]  # something is held for it
        assert all(sender.error is not None for sender in senders)
        more = await asyncio.to_thread(filled, backlog, queues[0], 2, "more")
        await until_at_home(namespaces, queues[0], [f"{queues[0]}{number}" for number in range(2)] + more)


class Closing:
    """A connection that only ends."""

    error = None

    async def close(self) -> None:
        await asyncio.sleep(60)


async def test_a_namespace_that_is_away_is_tried_now_and_then_and_not_by_everyone() -> None:
    tries = 0

    async def opener() -> Connection:
        nonlocal tries
        tries += 1
        raise OSError("no route to host")

    way = Reconnecting(opener, 5.0)
    for _ in range(10):
        with pytest.raises(ConnectionLost, match="no route to host"):
            await way.connection()
    assert tries == 1


async def test_a_connection_that_says_nothing_when_it_is_closed_or_opened_is_not_waited_for() -> None:
    async def opener() -> Connection:
        return cast(Connection, Closing())

    way = Reconnecting(opener, 5.0)
    assert await way.connection() is await way.connection()
    async with asyncio.timeout(2.0):
        await way.close(0.1)

    async def silent() -> Connection:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(Exception, match=r"no answer within 0\.1 s"):
        await Reconnecting(silent, 0.1).connection()


async def test_an_error_that_nobody_thought_of_ends_the_receiver_and_not_the_syphon(
    own: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = await made(own, lock="PT5S")
    queue = backlog.destination()
    complete_all = Receiver.complete_all
    calls = 0

    def failing(self: Receiver, messages: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a fault of ours")
        return complete_all(self, messages)

    monkeypatch.setattr(Receiver, "complete_all", failing)
    ids = await asyncio.to_thread(filled, backlog, queue, 5)
    heard = Heard()
    async with running(own, backlog, heard):
        await until(lambda: bool(heard.interruptions))
        await until_at_home(own, queue, ids)
        await until_left(backlog, 0)
    assert "a fault of ours" in heard.interruptions[0]
