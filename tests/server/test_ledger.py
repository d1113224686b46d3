"""The pump and the ledger: counts are saved within a second, and nothing that is said waits for them."""

import pytest

from spillway.broker.commands import AttachReceiver, AttachSender, CreateEntity, Credit, Peek, ReadLedger, Send
from spillway.broker.effects import Attached, Deliver, LedgerPage, Messages
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.ledger import KIND_NAMES
from spillway.server.pump import TICK_MS
from spillway.testing.core import message
from tests.server.doubles import Bench, RecordedSocket, ScriptedPeer

SENDER, RECEIVER = 101, 102
BEFORE_ALL = (-1, "", -1)
FOR_EVER = 1 << 40


@pytest.fixture
async def bench() -> Bench:
    """A queue with two messages, one of them handed out and counted, but not yet saved."""
    bench = Bench()
    await bench.pump.ask(lambda number: CreateEntity(number, QUEUE, "q", EntitySettings()))
    return bench


async def received(bench: Bench) -> tuple[ScriptedPeer, RecordedSocket]:
    peer, sock = bench.connect()
    bench.bring(sock, AttachSender(SENDER, "q"), link_id=SENDER)
    bench.bring(sock, Send(SENDER, 1, [message(), message()], False, 10))
    bench.bring(sock, AttachReceiver(RECEIVER, "q", False), link_id=RECEIVER)
    await bench.settle()
    bench.bring(sock, Credit(RECEIVER, 1, False))
    await bench.settle()
    assert any(isinstance(effect, Deliver) for effect in peer.performed)
    peer.performed.clear()
    bench.journal.turns.clear()
    return peer, sock


async def counted(bench: Bench) -> dict[str, int]:
    page = await bench.pump.ask(lambda number: ReadLedger(number, 0, FOR_EVER, BEFORE_ALL, 100))
    assert isinstance(page, LedgerPage)
    return {KIND_NAMES[row.kind]: row.operations for row in page.rows}


async def test_what_was_counted_without_a_record_is_saved_when_a_second_has_passed_and_only_once(bench: Bench) -> None:
    await received(bench)
    assert bench.core.has_counted()
    bench.clock.advance(TICK_MS)
    await bench.settle()
    (turn,) = bench.journal.turns
    assert turn.tallies and not turn.needs_ack()
    for _ in range(5):
        bench.clock.advance(TICK_MS)
        await bench.settle()
    assert len(bench.journal.turns) == 1


async def test_an_effect_of_the_turn_that_saves_the_ledger_does_not_wait_for_it(bench: Bench) -> None:
    peer, sock = await received(bench)
    bench.journal.is_held = True
    bench.clock.advance(TICK_MS)
    bench.bring(sock, Credit(RECEIVER, 2, False))
    await bench.settle()
    assert len(bench.journal.turns) == 1
    assert [type(effect) for effect in peer.performed] == [Deliver]


async def test_an_effect_after_it_does_not_wait_for_it_either(bench: Bench) -> None:
    peer, sock = await received(bench)
    bench.journal.is_held = True
    bench.clock.advance(TICK_MS)
    await bench.settle()
    assert len(bench.journal.turns) == 1
    bench.bring(sock, AttachSender(103, "q"), link_id=103)
    await bench.settle()
    assert [type(effect) for effect in peer.performed] == [Attached]


async def test_an_effect_still_waits_for_a_turn_with_records_before_it(bench: Bench) -> None:
    peer, sock = await received(bench)
    bench.journal.is_held = True
    bench.bring(sock, Send(SENDER, 2, [message()], False, 5))
    await bench.settle()
    bench.clock.advance(TICK_MS)
    bench.bring(sock, AttachSender(103, "q"), link_id=103)
    await bench.settle()
    assert peer.performed == []
    bench.journal.let_go()
    await bench.settle()
    assert [type(effect).__name__ for effect in peer.performed] == ["SendSettled", "Attached"]


async def test_whoever_asks_sees_what_was_counted_up_to_now(bench: Bench) -> None:
    await received(bench)
    assert await counted(bench) == {"send": 2, "receive": 1}
    answer = await bench.pump.ask(lambda number: Peek(number, "q", 0, 10))
    assert isinstance(answer, Messages)
    assert await counted(bench) == {"send": 2, "receive": 1, "peek": 2}


async def test_the_last_counts_are_saved_when_the_pump_stops(bench: Bench) -> None:
    await received(bench)
    bench.pump.stop()
    (turn,) = bench.journal.turns
    assert turn.tallies
    bench.pump.stop()
    assert len(bench.journal.turns) == 1


async def test_a_pump_that_has_failed_writes_nothing_more(bench: Bench) -> None:
    await received(bench)
    bench.journal.fail(OSError("the disk is gone"))
    await bench.settle()
    bench.pump.stop()
    assert bench.journal.turns == []


async def test_a_day_is_sealed_when_it_is_over_though_nobody_does_anything(bench: Bench) -> None:
    await received(bench)
    day = bench.clock.now_ms() // 86_400_000
    bench.clock.advance(86_400_000)
    await bench.settle()
    assert {KIND_NAMES[row.kind]: row.operations for row in bench.journal.days.rows(day)} == {"send": 2, "receive": 1}
    assert await counted(bench) == {}
