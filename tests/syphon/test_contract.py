"""What both drivers promise, between two real brokers."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from azure.servicebus.management import EntityStatus

from spillway.amqp.types import Symbol
from spillway.client import OutgoingMessage, ReceivedMessage
from spillway.client.faults import Fault, RemoteFaults
from spillway.client.message import AmqpValue
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog
from tests.syphon.drivers import DRIVERS, Driver, until

REFUSALS = {
    "missing": "amqp:not-found",
    "disabled": "com.microsoft:entity-disabled",
    "full": "amqp:resource-limit-exceeded",
    "busy": "com.microsoft:server-busy",
    "unauthorised": "amqp:unauthorized-access",
    "silent": "com.microsoft:timeout",
}


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


def at_home(namespaces: Namespaces, path: str) -> "asyncio.Task[list[ReceivedMessage]]":
    return asyncio.create_task(namespaces.peek(namespaces.primary, path))


async def ids_at(namespaces: Namespaces, path: str) -> list[str]:
    return [str(message.message_id) for message in await at_home(namespaces, path)]


async def until_at_home(namespaces: Namespaces, path: str, ids: Sequence[str], timeout_s: float = 60.0) -> None:
    """All of them, and none twice: the queue detects duplicates."""
    async with asyncio.timeout(timeout_s):
        while Counter(await ids_at(namespaces, path)) != Counter(ids):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def until_left(backlog: Backlog, count: int, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while sum(await backlog._left()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def filled(backlog: Backlog, destination: str, count: int, prefix: str = "m") -> list[str]:
    """From a thread, since the loop is ours."""
    return backlog.fill(destination, count, prefix)


async def made(namespaces: Namespaces, queues: int = 1, lock: str = "PT1M") -> Backlog:
    return await asyncio.to_thread(Backlog, namespaces, queues, lock)


@pytest.mark.contract("F8")
async def test_everything_comes_home_once_and_the_backlog_is_empty(namespaces: Namespaces, driver: Driver) -> None:
    backlog = await made(namespaces, queues=3)
    first, second = backlog.destination(), backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, first, 1_200, "a")
    others = await asyncio.to_thread(filled, backlog, second, 300, "b")
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths) as heard:
        await until_at_home(namespaces, first, ids)
        await until_at_home(namespaces, second, others)
        await until_left(backlog, 0)
        later = await asyncio.to_thread(filled, backlog, second, 50, "c")  # while it runs
        await until_at_home(namespaces, second, others + later)
        await until(lambda: heard.syphoned_counts[second] >= 350)
    assert heard.syphoned_counts == {first: 1_200, second: 350}
    assert (heard.kept_reasons, heard.dead, heard.repeats) == ({}, {}, 0)


@pytest.mark.parametrize("refusal", list(REFUSALS))
async def test_a_destination_that_refuses_holds_nobody_up_and_its_messages_come_home_when_it_is_well(
    namespaces: Namespaces, driver: Driver, refusal: str
) -> None:
    backlog = await made(namespaces)
    well = backlog.destination()
    bad = f"missing-{backlog.name}" if refusal == "missing" else backlog.destination()
    faults = RemoteFaults(namespaces.primary.connection_string)
    if refusal == "disabled":
        await asyncio.to_thread(set_status, namespaces, bad, EntityStatus.DISABLED)
    elif refusal != "missing":
        kind = {"full": "quota", "busy": "server-busy", "unauthorised": "refuse", "silent": "timeout"}[refusal]
        condition = "amqp:unauthorized-access" if kind == "refuse" else ""
        faults.add(Fault(kind, bad, ["send"], condition=condition))
    held = await asyncio.to_thread(filled, backlog, bad, 120, "bad")
    ids = await asyncio.to_thread(filled, backlog, well, 80, "well")
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths, timeout_s=2.0) as heard:
        await until_at_home(namespaces, well, ids, 20.0)
        await until(lambda: REFUSALS[refusal] in heard.said_of(bad))
        await until_left(backlog, len(held))
        if refusal == "missing":
            with namespaces.administration(namespaces.primary) as client:
                client.create_queue(bad, requires_duplicate_detection=True)
        elif refusal == "disabled":
            await asyncio.to_thread(set_status, namespaces, bad, EntityStatus.ACTIVE)
        else:
            faults.clear()
        await until_at_home(namespaces, bad, held)
        await until_left(backlog, 0)
    assert set(heard.kept_reasons) == {bad}


def set_status(namespaces: Namespaces, path: str, status: EntityStatus) -> None:
    with namespaces.administration(namespaces.primary) as client:
        properties = client.get_queue(path)
        properties.status = status
        client.update_queue(properties)


async def test_one_bad_message_among_good_ones_stays_behind_alone(namespaces: Namespaces, driver: Driver) -> None:
    backlog = await made(namespaces)
    queue = await asyncio.to_thread(namespaces.queue, requires_session=True, requires_duplicate_detection=True)
    good = [of_session(queue, f"{number}", "s") for number in range(30)]
    bad = [OutgoingMessage(b"x", message_id="bad", application_properties={"x-ms-path": queue})]
    await asyncio.to_thread(backlog.put, good[:10] + bad + good[10:])
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths) as heard:
        await until_at_home(namespaces, queue, [f"{number}" for number in range(30)])
        await until_left(backlog, 1)
        await until(lambda: "amqp:not-allowed" in heard.said_of("") + heard.said_of(queue))
        more = await asyncio.to_thread(filled_sessions, backlog, queue, 5)  # it holds up nobody later either
        await until_at_home(namespaces, queue, [f"{number}" for number in range(30)] + more)


def of_session(queue: str, message_id: str, session_id: str) -> OutgoingMessage:
    own: dict[str, object] = {"x-ms-path": queue, "x-ms-sessionid": session_id}
    return OutgoingMessage(b"x", message_id=message_id, application_properties=own)


def filled_sessions(backlog: Backlog, queue: str, count: int) -> list[str]:
    ids = [f"later {number}" for number in range(count)]
    backlog.put([of_session(queue, each, "t") for each in ids])
    return ids


async def test_what_no_paired_sender_wrote_is_dead_lettered_with_a_reason(
    namespaces: Namespaces, driver: Driver
) -> None:
    backlog = await made(namespaces)
    queue = backlog.destination()
    wrong: list[dict[str, object]] = [{}, {"x-ms-path": 7}, {"x-ms-path": queue, "x-ms-timetolive": "soon"}]
    await asyncio.to_thread(backlog.put, [OutgoingMessage(b"x", application_properties=each) for each in wrong])
    ids = await asyncio.to_thread(filled, backlog, queue, 20)
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths) as heard:
        await until_at_home(namespaces, queue, ids)
        await until(lambda: sum(heard.dead.values()) == 3)
    assert heard.dead == {"PathMissing": 1, "AliasOfWrongType": 2}
    dead = await namespaces.peek(namespaces.secondary, f"{backlog.paths[0]}/$deadletterqueue")
    assert [message.dead_letter_reason for message in dead] == ["PathMissing", "AliasOfWrongType", "AliasOfWrongType"]
    assert all("property" in str(message.dead_letter_description) for message in dead)


@pytest.mark.parametrize("is_away", [False, True])
async def test_messages_of_a_session_keep_their_order_also_when_their_queue_was_away(
    namespaces: Namespaces, driver: Driver, is_away: bool
) -> None:
    backlog = await made(namespaces)
    queue = await asyncio.to_thread(namespaces.queue, requires_session=True, requires_duplicate_detection=True)
    faults = RemoteFaults(namespaces.primary.connection_string)
    if is_away:
        faults.add(Fault("quota", queue, ["send"]))
    ids = [f"{number}" for number in range(300)]
    await asyncio.to_thread(backlog.put, [of_session(queue, each, f"s{int(each) % 3}") for each in ids])
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths) as heard:
        if is_away:
            await until(lambda: bool(heard.said_of(queue)))
            faults.clear()
        await until_at_home(namespaces, queue, ids)
        found = await at_home(namespaces, queue)
    for part in range(3):
        mine = [message.message_id for message in found if message.session_id == f"s{part}"]
        assert mine == ids[part::3]


async def test_session_life_and_due_time_are_restored(namespaces: Namespaces, driver: Driver) -> None:
    backlog = await made(namespaces)
    queue = await asyncio.to_thread(namespaces.queue, requires_session=True)
    due_ms = 4_000_000_000_000
    own: dict[str, object] = {"x-ms-path": queue, "x-ms-sessionid": "s", "mine": 7}
    later: dict[str, object] = {**own, "x-ms-scheduledenqueuetimeutc": due_ms}
    lives: dict[str, object] = {**own, "x-ms-timetolive": 3_600_000}
    await asyncio.to_thread(
        backlog.put,
        [
            OutgoingMessage(b"x", message_id=name, application_properties=each)
            for name, each in (("later", later), ("lives", lives))
        ],
    )
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths, "remaining"):
        await until_at_home(namespaces, queue, ["later", "lives"])
    found = {message.message_id: message for message in await at_home(namespaces, queue)}
    assert found["later"].scheduled_enqueue_time_ms == due_ms
    assert 3_000_000 < (found["lives"].header.ttl_ms or 0) < 3_600_000
    for message in found.values():
        assert (message.session_id, dict(message.application_properties)) == ("s", {"mine": 7})


async def test_a_queue_that_has_nothing_costs_the_others_nothing(namespaces: Namespaces, driver: Driver) -> None:
    backlog, empty = await made(namespaces), await made(namespaces, queues=2)
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 40)
    paths = [*empty.paths, *backlog.paths]
    async with driver.running(namespaces.primary, namespaces.secondary, paths) as heard:
        await until_at_home(namespaces, queue, ids)
    assert heard.syphoned_counts == {queue: 40}


POISON: dict[str, OutgoingMessage] = {
    "a node of the service": OutgoingMessage(b"x", application_properties={"x-ms-path": "$cbs"}),
    "requests": OutgoingMessage(b"x", application_properties={"x-ms-path": "orders/$management"}),
    "a path that is far too long": OutgoingMessage(b"x", application_properties={"x-ms-path": "p" * 30_000}),
    "a path that is no name": OutgoingMessage(b"x", application_properties={"x-ms-path": "a\x00b\n"}),
    "a subscription": OutgoingMessage(b"x", application_properties={"x-ms-path": "topic/Subscriptions/all"}),
    "a value that is no value": OutgoingMessage(
        AmqpValue({b"\xff\xfe": None, 7: [b"\x00" * 100]}), application_properties={"x-ms-path": "poison-nowhere"}
    ),
}


@pytest.mark.parametrize("kind", list(POISON))
async def test_nothing_that_a_message_contains_stops_it(namespaces: Namespaces, driver: Driver, kind: str) -> None:
    backlog = await made(namespaces)
    queue = backlog.destination()
    await asyncio.to_thread(backlog.put, [POISON[kind]])
    ids = await asyncio.to_thread(filled, backlog, queue, 30)
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths) as heard:
        await until_at_home(namespaces, queue, ids, 20.0)
        later = await asyncio.to_thread(filled, backlog, queue, 10, "later")
        await until_at_home(namespaces, queue, ids + later, 20.0)
        await until(lambda: len(heard.kept_reasons) == 1)
        await until_left(backlog, 1)
    assert heard.interruptions == []


async def test_annotations_of_every_kind_of_key_and_value_come_home(namespaces: Namespaces, driver: Driver) -> None:
    backlog = await made(namespaces)
    queue = backlog.destination()
    annotations = {"x-own": [1, Symbol("s"), {"deep": b"\xff"}]}
    message = OutgoingMessage(
        b"x", message_id="m", annotations=annotations, application_properties={"x-ms-path": queue, "n": None}
    )
    await asyncio.to_thread(backlog.put, [message])
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths):
        await until_at_home(namespaces, queue, ["m"])
    (home,) = await at_home(namespaces, queue)
    assert home.annotations["x-own"] == annotations["x-own"]


# -- brokers that end and come back -----------------------------------------------------------------------------------


async def test_a_secondary_that_is_killed_in_the_middle_and_started_again_loses_nothing(
    own: Namespaces, driver: Driver
) -> None:
    backlog = await made(own, lock="PT5S")
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 2_000)
    with RemoteFaults(own.primary.connection_string).planted(Fault("slow", queue, ["send"], delay_ms=300)):
        async with driver.running(own.primary, own.secondary, backlog.paths) as heard:
            async with asyncio.timeout(60):
                while not await ids_at(own, queue):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(own.secondary.kill)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(own.secondary.start)
            await until_at_home(own, queue, ids)
            await until_left(backlog, 0)
    assert heard.dead == {}


async def test_a_primary_that_is_killed_in_the_middle_and_started_again_loses_nothing(
    own: Namespaces, driver: Driver
) -> None:
    backlog = await made(own, lock="PT5S")
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 2_000)
    RemoteFaults(own.primary.connection_string).add(Fault("slow", queue, ["send"], delay_ms=300))
    async with driver.running(own.primary, own.secondary, backlog.paths):
        async with asyncio.timeout(60):
            while not await ids_at(own, queue):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.to_thread(own.primary.kill)
        await asyncio.sleep(1.5)
        await asyncio.to_thread(own.primary.start)
        await until_at_home(own, queue, ids)
        await until_left(backlog, 0)


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_a_namespace_that_was_frozen_for_a_while_is_gone_on_with(
    own: Namespaces, driver: Driver, side: str
) -> None:
    backlog = await made(own, lock="PT5S")
    queue = backlog.destination()
    broker = getattr(own, side)
    first = await asyncio.to_thread(filled, backlog, queue, 20, "first")
    async with driver.running(own.primary, own.secondary, backlog.paths, timeout_s=2.0):
        await until_at_home(own, queue, first)
        more = await asyncio.to_thread(filled, backlog, queue, 200, "more") if side == "primary" else []
        broker.pause()
        await asyncio.sleep(4.0)  # longer than a call may take
        broker.resume()
        more += await asyncio.to_thread(filled, backlog, queue, 200, "later")
        await until_at_home(own, queue, first + more)
        await until_left(backlog, 0)


STATES = ["idle", "at work", "held", "primary frozen", "secondary frozen", "primary dead", "secondary dead"]


@pytest.mark.parametrize("state", STATES)
async def test_it_is_closed_within_five_seconds_whatever_it_does(own: Namespaces, driver: Driver, state: str) -> None:
    backlog = await made(own)
    queue = backlog.destination()
    faults = RemoteFaults(own.primary.connection_string)
    if state == "held":
        faults.add(Fault("quota", queue, ["send"]))
    elif state == "at work":
        faults.add(Fault("slow", queue, ["send"], delay_ms=20_000))
    if state != "idle":
        await asyncio.to_thread(filled, backlog, queue, 500)
    broker = own.primary if state.startswith("primary") else own.secondary
    loop = asyncio.get_running_loop()
    try:
        if state.endswith("dead"):
            await asyncio.to_thread(broker.kill)
        async with driver.running(own.primary, own.secondary, backlog.paths) as heard:
            if state.endswith("frozen"):
                broker.pause()
            if state == "held":
                await until(lambda: bool(heard.said_of(queue)) or heard.operations["receive"] > 0)
            await asyncio.sleep(1.0)
            began_s = loop.time()
        assert loop.time() - began_s < 5.0
    finally:
        if state.endswith("frozen"):
            broker.resume()
        if state.endswith("dead"):
            await asyncio.to_thread(broker.start)
        faults.clear()
    # What it had is there for the next one: at once where it could still say so.
    if state in ("at work", "held"):
        async with DRIVERS["standing"].running(own.primary, own.secondary, backlog.paths):
            await until_at_home(own, queue, [f"m{number}" for number in range(500)], 20.0)
