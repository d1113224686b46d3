"""The mover without Spark, between two real brokers."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from azure.servicebus.management import EntityStatus

from spillway.amqp.types import ULong
from spillway.client import OutgoingMessage, connect
from spillway.client.faults import Fault, RemoteFaults
from spillway.syphon.move import BacklogShare, Moved, MoveOptions, move
from spillway.syphon.outcomes import DEAD_LETTERED, KEPT, MOVED, REPEATED, OutcomeCount
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog


def run(
    namespaces: Namespaces,
    shares: Sequence[BacklogShare],
    told: list[OutcomeCount] | None = None,
    timeout_s: float = 60.0,
    **options: object,
) -> Moved:
    chosen = MoveOptions(**{"idle_s": 0.2, **options})  # type: ignore[arg-type]

    async def both() -> Moved:
        async with (
            await connect(namespaces.primary.connection_string, operation_timeout=timeout_s) as primary,
            await connect(namespaces.secondary.connection_string) as secondary,
        ):
            return await move(primary, secondary, shares, chosen, None if told is None else told.append)

    return asyncio.run(both())


def all_of(backlog: Backlog) -> list[BacklogShare]:
    return [BacklogShare(path) for path in backlog.paths]


def reasons(moved: Moved, outcome: str) -> dict[str, str]:
    """Why, by destination."""
    return {count.destination: count.reason for count in moved.outcomes.counts() if count.outcome == outcome}


@pytest.mark.contract("F8")
def test_every_message_comes_home_once_in_its_order_and_the_backlog_is_empty(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    first, second = backlog.destination(), backlog.destination()
    of_first, of_second = backlog.fill(first, 2_500, "a"), backlog.fill(second, 700, "b")
    told: list[OutcomeCount] = []
    moved = run(namespaces, all_of(backlog), told)
    assert (backlog.ids_at(first), backlog.ids_at(second)) == (of_first, of_second)
    assert backlog.left() == 0
    assert (moved.outcomes.total(MOVED), moved.received, moved.error) == (3_200, 3_200, None)
    assert sum(count.messages for count in told) == 3_200
    by_destination = {count.destination: count.messages for count in moved.outcomes.counts()}
    assert by_destination == {first: 2_500, second: 700}


def test_a_share_is_never_exceeded_and_leaves_nothing_locked_behind_it(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    ids = backlog.fill(queue, 900)
    for taken in (500, 900):
        moved = run(namespaces, [BacklogShare(backlog.paths[0], 500)])
        assert backlog.ids_at(queue) == ids[:taken]
    assert moved.outcomes.total(MOVED) == 400


def test_messages_of_sessions_and_with_a_due_time_are_as_they_were(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = namespaces.queue(requires_session=True)
    due_ms = 4_000_000_000_000
    backlog.put(
        [
            OutgoingMessage(
                f"{number}",
                message_id=f"{number}",
                application_properties={"x-ms-path": queue, "x-ms-sessionid": f"s{number % 3}"},
            )
            for number in range(30)
        ]
        + [
            OutgoingMessage(
                "later",
                message_id="later",
                application_properties={
                    "x-ms-path": queue,
                    "x-ms-sessionid": "s0",
                    "x-ms-scheduledenqueuetimeutc": due_ms,
                    "x-ms-timetolive": 60_000,
                },
            )
        ]
    )
    moved = run(namespaces, all_of(backlog))
    assert moved.outcomes.total(MOVED) == 31
    found = asyncio.run(namespaces.peek(namespaces.primary, queue))
    by_session = {f"s{part}": [str(number) for number in range(30) if number % 3 == part] for part in range(3)}
    now = [message for message in found if message.message_id != "later"]
    assert {key: [m.message_id for m in now if m.session_id == key] for key in by_session} == by_session
    (later,) = [message for message in found if message.message_id == "later"]
    assert (later.scheduled_enqueue_time_ms, later.header.ttl_ms, later.session_id) == (due_ms, 60_000, "s0")
    assert dict(later.application_properties) == {}


def test_a_destination_that_refuses_keeps_its_messages_with_the_reason_and_the_others_go_on(
    namespaces: Namespaces,
) -> None:
    backlog = Backlog(namespaces, queues=2)
    well, full, disabled = (backlog.destination() for _ in range(3))
    for path in (well, "nowhere", full, disabled):
        backlog.fill(path, 60, path)
    with namespaces.administration(namespaces.primary) as administration:
        properties = administration.get_queue(disabled)
        properties.status = EntityStatus.DISABLED
        administration.update_queue(properties)
    faults = namespaces.refuse(full, "quota")
    moved = run(namespaces, all_of(backlog))
    faults.clear()
    assert sorted(backlog.ids_at(well)) == sorted(f"{well}{number}" for number in range(60))
    assert (moved.outcomes.total(MOVED), moved.outcomes.total(KEPT)) == (60, 180)
    why = reasons(moved, KEPT)
    assert why["nowhere"].startswith("amqp:not-found")
    assert why[full].startswith("amqp:resource-limit-exceeded")
    assert why[disabled].startswith("com.microsoft:entity-disabled")
    assert all("TrackingId" not in reason for reason in why.values())
    # They were given back: a second pass gets them at once, and now two destinations are well.
    with namespaces.administration(namespaces.primary) as administration:
        properties.status = EntityStatus.ACTIVE
        administration.update_queue(properties)
    again = run(namespaces, all_of(backlog))
    assert (again.outcomes.total(MOVED), again.outcomes.total(KEPT)) == (120, 60)
    assert backlog.left() == 60


def test_messages_for_a_missing_entity_in_front_do_not_hide_those_behind_them(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill("nowhere", 100, "lost")
    ids = backlog.fill(queue, 50)
    first = run(namespaces, [BacklogShare(backlog.paths[0], 100)])
    assert (first.outcomes.total(KEPT), first.outcomes.total(MOVED)) == (100, 0)
    second = run(namespaces, [BacklogShare(backlog.paths[0], 100)])
    assert second.outcomes.total(MOVED) == 50
    assert backlog.ids_at(queue) == ids


def test_one_message_that_is_refused_does_not_keep_the_others_of_its_batch(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = namespaces.queue(requires_session=True)
    paths = {"x-ms-path": queue}
    messages = [
        OutgoingMessage(b"x", message_id=f"{number}", application_properties={**paths, "x-ms-sessionid": "s"})
        for number in range(20)
    ]
    messages.insert(7, OutgoingMessage(b"x", message_id="without", application_properties=paths))
    messages.insert(9, OutgoingMessage(b"x", message_id="without too", application_properties=paths))
    backlog.put(messages)
    moved = run(namespaces, all_of(backlog))
    assert (moved.outcomes.total(MOVED), moved.outcomes.total(KEPT)) == (20, 2)
    assert backlog.ids_at(queue) == [f"{number}" for number in range(20)]


def test_what_no_paired_sender_writes_is_dead_lettered_with_a_reason(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    wrong: list[dict[str, object]] = [
        {"x-ms-path": 7},
        {"x-ms-path": queue, "x-ms-scheduledenqueuetimeutc": ULong(2**63)},
        {"x-ms-path": queue, "x-ms-scheduledenqueuetimeutc": 253_402_300_800_000},  # the year 10000
        {"x-ms-path": queue, "x-ms-timetolive": ULong(2**64 - 1)},
    ]
    nowhere = OutgoingMessage(b"x", message_id="lost")
    backlog.put([nowhere, *(OutgoingMessage(b"x", application_properties=each) for each in wrong)])
    ids = backlog.fill(queue, 5)
    moved = run(namespaces, all_of(backlog))
    assert {count.reason: count.messages for count in moved.outcomes.counts() if count.outcome == DEAD_LETTERED} == {
        "PathMissing": 1,
        "AliasOfWrongType": len(wrong),
    }
    assert backlog.ids_at(queue) == ids
    dead = asyncio.run(namespaces.peek(namespaces.secondary, f"{backlog.paths[0]}/$deadletterqueue"))
    assert [message.dead_letter_reason for message in dead] == ["PathMissing"] + ["AliasOfWrongType"] * len(wrong)


def test_a_busy_destination_is_tried_again_while_there_is_patience(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    ids = backlog.fill(queue, 10)
    faults = RemoteFaults(namespaces.primary.connection_string)
    faults.add(Fault("quota", queue, ["send"], count=1))
    moved = run(namespaces, all_of(backlog), patience_s=20.0)
    assert (moved.outcomes.total(MOVED), moved.outcomes.total(KEPT)) == (10, 0)
    assert sorted(backlog.ids_at(queue)) == sorted(ids)


def of_many_keys(queue: str, count: int, **more: str) -> list[OutgoingMessage]:
    """Each is a batch of its own."""
    return [
        OutgoingMessage(
            b"x", message_id=f"{number}", partition_key=f"{number}", application_properties={"x-ms-path": queue, **more}
        )
        for number in range(count)
    ]


def test_a_destination_that_falls_silent_keeps_all_of_its_batches_also_those_that_were_not_sent(
    namespaces: Namespaces,
) -> None:
    backlog = Backlog(namespaces)
    silent, well = backlog.destination(), backlog.destination()
    backlog.put(of_many_keys(silent, 200))  # more than are under way at a time
    ids = backlog.fill(well, 20)
    faults = RemoteFaults(namespaces.primary.connection_string)
    with faults.planted(Fault("timeout", silent, ["send"])):
        moved = run(namespaces, all_of(backlog), timeout_s=1.0)
    assert (moved.outcomes.total(MOVED), moved.outcomes.total(KEPT), moved.error) == (20, 200, None)
    assert backlog.ids_at(well) == ids
    again = run(namespaces, all_of(backlog))
    assert again.outcomes.total(MOVED) == 200
    assert backlog.left() == 0


def test_what_was_refused_is_tried_again_although_something_behind_it_was_accepted(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.put(of_many_keys(queue, 30))
    RemoteFaults(namespaces.primary.connection_string).add(Fault("quota", queue, ["send"], count=1))
    moved = run(namespaces, all_of(backlog), patience_s=20.0)
    assert (moved.outcomes.total(MOVED), moved.outcomes.total(KEPT)) == (30, 0)
    assert Counter(backlog.ids_at(queue)) == Counter(f"{number}" for number in range(30))


def test_a_message_that_is_refused_for_what_it_is_is_not_tried_again_and_again(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    queue = namespaces.queue(requires_session=True)
    backlog.put([OutgoingMessage(b"x", message_id="without", application_properties={"x-ms-path": queue})])
    RemoteFaults(namespaces.primary.connection_string).add(Fault("quota", queue, ["send"], count=1))
    moved = run(namespaces, all_of(backlog), patience_s=120.0)
    assert (moved.outcomes.total(KEPT), moved.received) == (1, 2)  # once for the quota, once for its session
    assert moved.seconds < 60


def test_locks_are_renewed_while_the_primary_takes_longer_than_a_lock_lasts(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces, lock="PT5S")
    queue = backlog.destination()
    ids = backlog.fill(queue, 300)
    faults = RemoteFaults(namespaces.primary.connection_string)
    faults.add(Fault("slow", queue, ["send"], delay_ms=7_000))
    moved = run(namespaces, all_of(backlog))
    faults.clear()
    assert (moved.outcomes.total(MOVED), moved.outcomes.total(REPEATED)) == (300, 0)
    assert backlog.ids_at(queue) == ids
    assert backlog.left() == 0


def test_a_pass_ends_at_its_deadline_and_gives_back_what_it_holds(namespaces: Namespaces) -> None:
    backlog = Backlog(namespaces)
    backlog.fill("nowhere", 10)
    moved = run(namespaces, all_of(backlog), idle_s=60.0, deadline_s=0.5)
    assert moved.outcomes.total(KEPT) == 10
    assert moved.seconds < 30


def test_a_missing_backlog_queue_is_an_error_that_says_so(namespaces: Namespaces) -> None:
    moved = run(namespaces, [BacklogShare("contoso/x-servicebus-transfer/99")])
    assert moved.error is not None
    assert moved.error.condition == "amqp:not-found"


PROGRAM = """
import asyncio, sys
from spillway.client import connect
from spillway.syphon.move import MoveOptions, BacklogShare, move

async def main():
    async with await connect(sys.argv[1]) as primary, await connect(sys.argv[2]) as secondary:
        await move(primary, secondary, [BacklogShare(sys.argv[3])], MoveOptions(idle_s=0.2))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("place", "at_home", "in_backlog"), [("received", 0, 300), ("sent", 300, 300), ("completed", 300, 0)]
)
def test_a_crash_at_each_place_loses_nothing_and_duplicates_nothing(
    namespaces: Namespaces, tmp_path: Path, place: str, at_home: int, in_backlog: int
) -> None:
    """The place is what its name says: the other process dies there, by kill -9."""
    backlog = Backlog(namespaces, lock="PT5S")
    queue = backlog.destination()
    ids = backlog.fill(queue, 300)
    marker = tmp_path / "crashed"
    line = [sys.executable, "-c", PROGRAM, namespaces.primary.connection_string, namespaces.secondary.connection_string]
    environment = {**os.environ, "SPILLWAY_CRASH_AT": place, "SPILLWAY_CRASH_ONCE": str(marker)}
    died = subprocess.run([*line, backlog.paths[0]], env=environment, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    assert marker.exists()
    assert len(backlog.ids_at(queue)) == at_home
    assert backlog.left() == in_backlog
    backlog.advance(6.0)  # locks of the dead end by themselves
    again = subprocess.run([*line, backlog.paths[0]], env=environment, timeout=60, check=False)
    assert again.returncode == 0
    assert sorted(backlog.ids_at(queue)) == sorted(ids)
    assert backlog.left() == 0
