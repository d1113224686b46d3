"""The line from commands to spoken effects, with the real core and a real journal."""

import asyncio
import base64

import pytest

from spillway.broker.commands import AttachReceiver, AttachSender, Command, CreateEntity, Credit, DetachLink, Peek, Send
from spillway.broker.effects import Attached, Deliver, Done, Failed, Messages, SendSettled
from spillway.model import limits
from spillway.model.access import SEND, AccessRule
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.errors import EntityAlreadyExists, ServerBusy
from spillway.testing.core import message
from tests.server.doubles import Bench, RecordedSocket, ScriptedPeer

SENDER, RECEIVER = 101, 102
KEY = base64.b64encode(b"1" * 32).decode()


@pytest.fixture
async def bench() -> Bench:
    """A namespace with one queue `q`."""
    bench = Bench()
    await create(bench, "q")
    bench.journal.order.clear()
    return bench


async def create(bench: Bench, name: str) -> None:
    answer = await bench.pump.ask(lambda number: CreateEntity(number, QUEUE, name, EntitySettings()))
    assert isinstance(answer, Done), answer


async def sender(bench: Bench, link_id: int = SENDER) -> tuple[ScriptedPeer, RecordedSocket]:
    peer, sock = bench.connect()
    bench.bring(sock, AttachSender(link_id, "q"), link_id=link_id)
    await bench.settle()
    assert [type(effect) for effect in peer.performed] == [Attached]
    peer.performed.clear()
    sock.writes.clear()
    return peer, sock


async def receiver(bench: Bench, credit: int, link_id: int = RECEIVER) -> tuple[ScriptedPeer, RecordedSocket]:
    peer, sock = bench.connect()
    bench.bring(sock, AttachReceiver(link_id, "q", False), Credit(link_id, credit, False), link_id=link_id)
    await bench.settle()
    return peer, sock


def send(delivery_id: int, link_id: int = SENDER, body: bytes = b"hello") -> Send:
    return Send(link_id, delivery_id, [message(body)], False, len(body))


async def test_shared_access_rules_act_only_when_they_are_durable_and_before_the_answer(bench: Bench) -> None:
    """A right that a power cut would take away again was never given."""
    heard: list[str] = []
    bench.pump.on_access_changed = lambda scope, rules: heard.append(f"{scope} {[rule.name for rule in rules]}")
    settings = EntitySettings()
    settings.access_rules = [AccessRule("own", SEND, KEY, KEY)]
    bench.journal.is_held = True
    asked = asyncio.ensure_future(bench.pump.ask(lambda number: CreateEntity(number, QUEUE, "ruled", settings)))
    await bench.settle()
    assert heard == []
    bench.journal.let_go()
    asked.add_done_callback(lambda _: heard.append("answered"))
    await bench.settle()
    assert heard == ["ruled ['own']", "answered"]


async def test_a_send_is_answered_only_when_its_turn_is_durable(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.is_held = True
    bench.bring(sock, send(1))
    await bench.settle()
    assert peer.performed == []
    bench.journal.let_go()
    await bench.settle()
    assert [type(effect) for effect in peer.performed] == [SendSettled]


async def test_an_effect_without_records_waits_behind_earlier_turns(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.is_held = True
    bench.bring(sock, send(1))
    await bench.settle()
    bench.bring(sock, AttachSender(103, "q"), link_id=103)
    await bench.settle()
    assert peer.performed == []
    bench.journal.let_go()
    await bench.settle()
    assert [(type(effect), effect.to) for effect in peer.performed] == [(SendSettled, SENDER), (Attached, 103)]


async def test_an_effect_without_records_passes_at_once_when_nothing_is_waiting(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.is_held = True
    bench.bring(sock, AttachSender(103, "q"), link_id=103)
    await bench.settle()
    assert [type(effect) for effect in peer.performed] == [Attached]


async def test_effects_of_several_turns_leave_in_the_order_they_were_decided(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.is_held = True
    for number in range(5):
        bench.bring(sock, send(number))
        await bench.settle()
    bench.journal.let_go()
    await bench.settle()
    assert [effect.delivery_id for effect in peer.performed if isinstance(effect, SendSettled)] == [0, 1, 2, 3, 4]


async def test_what_one_turn_says_to_a_connection_is_one_write(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.bring(sock, *(send(number) for number in range(20)))
    await bench.settle()
    assert len(peer.performed) == 20
    assert len(sock.writes) == 1


async def test_a_peer_brings_a_bounded_share_into_a_turn_and_is_not_read_until_the_rest_is_taken(bench: Bench) -> None:
    peer, sock = await sender(bench)
    other, other_sock = await sender(bench, 201)
    bench.journal.turns.clear()
    bench.bring(sock, *(send(number) for number in range(3 * limits.COMMANDS_PER_TURN_MAX)))
    bench.bring(other_sock, send(1, 201))
    await asyncio.sleep(0)
    assert len(bench.journal.turns) == 1
    assert len(peer.commands) == 2 * limits.COMMANDS_PER_TURN_MAX
    assert other.commands == []
    assert not sock.is_reading
    assert other_sock.is_reading
    await bench.settle()
    assert len(peer.performed) == 3 * limits.COMMANDS_PER_TURN_MAX
    assert sock.is_reading


async def test_a_delivery_to_a_link_that_has_gone_returns_to_the_queue_uncounted(bench: Bench) -> None:
    _, sending = await sender(bench)
    first, first_sock = await receiver(bench, credit=1)
    bench.pump.delivers_early = False
    bench.journal.is_held = True
    bench.bring(sending, send(1))
    await bench.settle()
    first.gone.add(RECEIVER)  # its socket broke while the turn was being written
    bench.bring(first_sock, DetachLink(RECEIVER))
    first.forgotten.append(RECEIVER)
    await bench.settle()
    bench.journal.is_held = False
    bench.journal.let_go()
    await bench.settle()
    assert [type(effect) for effect in first.performed] == [Attached]
    second, _ = await receiver(bench, credit=1, link_id=301)
    delivered = [effect for effect in second.performed if isinstance(effect, Deliver)]
    assert [effect.stored.delivery_count for effect in delivered] == [0]


async def test_a_load_is_asked_right_behind_the_turn_that_decided_it(bench: Bench) -> None:
    peer, sock = await sender(bench)
    peer.registered.append(401)
    bench.bring(sock, send(1), Peek(401, "q", 1, 10))
    await bench.settle()
    assert bench.journal.order[:2] == ["turn", "load"]
    answers = [effect for effect in peer.performed if isinstance(effect, Messages)]
    assert [len(answer.messages) for answer in answers] == [1]


async def test_a_request_from_inside_gets_the_answer_of_the_core(bench: Bench) -> None:
    answer = await bench.pump.ask(lambda number: CreateEntity(number, QUEUE, "q", EntitySettings()))
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, EntityAlreadyExists)
    assert bench.pump.asked == {}


async def test_reading_stops_when_too_much_waits_for_the_disk_and_goes_on_at_half(bench: Bench) -> None:
    _, sock = await sender(bench)
    _, idle_sock = bench.connect()
    bench.journal.is_held = True
    bench.journal.pending_bytes = limits.PENDING_BYTES_PAUSE
    bench.bring(sock, send(1))
    await bench.settle()
    assert not sock.is_reading
    assert not idle_sock.is_reading
    _, late_sock = bench.connect()
    assert not late_sock.is_reading
    bench.bring(sock, send(2))
    bench.journal.pending_bytes = limits.PENDING_BYTES_PAUSE // 2 + 1
    await bench.settle()
    bench.journal.let_go(1)
    await bench.settle()
    assert not sock.is_reading
    bench.journal.pending_bytes = limits.PENDING_BYTES_PAUSE // 2
    bench.journal.let_go()
    await bench.settle()
    assert sock.is_reading
    assert idle_sock.is_reading
    assert late_sock.is_reading


@pytest.mark.parametrize("who", ["the journal", "the clock"])
async def test_reading_goes_on_when_the_journal_has_less_without_a_turn(bench: Bench, who: str) -> None:
    """What is in the log and not in the file counts too, and becomes less when nothing else happens."""
    _, sock = await sender(bench)
    bench.journal.pending_bytes = limits.PENDING_BYTES_PAUSE
    bench.pump.wake()
    await bench.settle()
    assert not sock.is_reading
    bench.journal.pending_bytes = 0
    if who == "the journal":
        bench.pump.on_copied()
    else:
        bench.clock.advance(2_000)
    await bench.settle()
    assert sock.is_reading


async def test_what_waits_for_an_answer_of_the_store_before_it_is_decided_stops_reading_too(bench: Bench) -> None:
    _, sock = await sender(bench)
    budget = bench.core.directory.id_budget
    budget.held_bytes = limits.PENDING_BYTES_PAUSE
    bench.bring(sock, send(1))
    await bench.settle()
    assert not sock.is_reading
    assert not bench.pump.is_idle()
    budget.held_bytes = 0
    bench.pump.wake()
    await bench.settle()
    assert sock.is_reading


async def test_one_connection_is_not_read_further_before_what_it_brought_was_taken(bench: Bench) -> None:
    _, sock = await sender(bench)
    _, other_sock = bench.connect()
    await bench.settle()
    bench.pump.on_read(sock, limits.COMMAND_BYTES_PER_TURN_MAX - 1)
    assert sock.is_reading
    bench.pump.on_read(sock, 1)
    assert not sock.is_reading
    assert other_sock.is_reading
    await bench.settle()
    assert sock.is_reading
    assert bench.pump.held_bytes == 0


async def test_nothing_more_is_read_when_all_of_them_brought_too_much_before_the_next_turn(bench: Bench) -> None:
    socks = [bench.connect()[1] for _ in range(65)]
    await bench.settle()
    for sock in socks[:63]:
        bench.pump.on_read(sock, limits.PENDING_BYTES_PAUSE // 64)
    assert socks[64].is_reading
    bench.pump.on_read(socks[63], limits.PENDING_BYTES_PAUSE // 64)
    assert not any(sock.is_reading for sock in socks)
    await bench.settle()
    assert all(sock.is_reading for sock in socks)


async def test_sends_are_refused_below_the_disk_reserve_and_taken_again_above_it(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.free_bytes = limits.DISK_RESERVE_BYTES - 1
    bench.clock.advance(1_000)
    bench.bring(sock, send(1))
    await bench.settle()
    bench.journal.free_bytes = limits.DISK_RESERVE_BYTES
    bench.clock.advance(1_000)
    bench.bring(sock, send(2))
    await bench.settle()
    errors = [effect.error for effect in peer.performed if isinstance(effect, SendSettled)]
    assert [type(error) for error in errors] == [ServerBusy, type(None)]


async def test_the_disk_is_looked_at_before_every_turn_and_not_once_a_second(bench: Bench) -> None:
    """A client writes more than the reserve in a second."""
    peer, sock = await sender(bench)
    bench.journal.free_bytes = limits.DISK_RESERVE_BYTES - 1
    bench.bring(sock, send(1))
    await bench.settle()
    (settled,) = [effect for effect in peer.performed if isinstance(effect, SendSettled)]
    assert isinstance(settled.error, ServerBusy)


async def test_a_failed_journal_aborts_every_socket_and_says_nothing_more(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.is_held = True
    bench.bring(sock, send(1))
    await bench.settle()
    error = OSError(5, "Input/output error")
    bench.journal.fail(error)
    await bench.settle()
    assert bench.fatal == [error]
    assert sock.is_aborted
    bench.journal.let_go()  # even news that comes late
    bench.bring(sock, send(2))
    await bench.settle()
    assert peer.performed == []
    assert sock.writes == []
    assert len(bench.journal.turns) == 2  # the queue, the first send


async def test_a_command_at_which_the_core_breaks_its_own_rules_stops_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    peer, sock = await sender(bench)
    bench.bring(sock, Command(), send(1))  # of no known kind, and one behind it
    await bench.settle()
    assert bench.fatal == []
    assert [type(effect) for effect in peer.performed] == [SendSettled]
    assert "incident" in caplog.text and "a command of no known kind" in caplog.text


async def test_a_fault_in_what_follows_a_turn_stops_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def raise_fault(now_ms: int) -> None:
        raise ValueError("a fault of ours")

    peer, sock = await sender(bench)
    bench.pump.on_turn.append(raise_fault)
    bench.bring(sock, send(1))
    await bench.settle()
    assert bench.fatal == []
    assert [type(effect) for effect in peer.performed] == [SendSettled]
    assert "a fault of the broker after a turn" in caplog.text


async def test_a_fault_in_one_peer_ends_that_connection_alone(bench: Bench) -> None:
    peer, sock = await sender(bench)
    other, other_sock = await sender(bench, 201)
    peer.fault = ValueError("a fault of ours")
    bench.bring(sock, send(1))
    bench.bring(other_sock, send(1, 201))
    await bench.settle()
    assert sock.faults == [peer.fault]
    assert [type(effect) for effect in other.performed] == [SendSettled]
    assert bench.fatal == []


async def test_a_fault_at_one_effect_of_many_costs_that_one_and_what_comes_after_it_is_handed_over(
    bench: Bench,
) -> None:
    _, sending = await sender(bench)
    peer, sock = await receiver(bench, credit=3)
    peer.faulty_kinds = [Deliver]  # of the first only
    bench.bring(sending, send(1), send(2), send(3))
    await bench.settle()
    assert len(sock.faults) == 1
    delivered = [effect.stored.sequence_number for effect in peer.performed if isinstance(effect, Deliver)]
    assert delivered == [2, 3]


async def test_time_alone_makes_a_turn_when_something_is_due(bench: Bench) -> None:
    _, sending = await sender(bench)
    peer, _ = await receiver(bench, credit=2)
    bench.bring(sending, send(1))
    await bench.settle()
    bench.clock.advance(limits.LOCK_DURATION_MS_DEFAULT)
    await bench.settle()
    delivered = [effect for effect in peer.performed if isinstance(effect, Deliver)]
    assert [effect.stored.delivery_count for effect in delivered] == [0, 1]


async def test_a_namespace_has_two_timers_however_many_peers_it_has(bench: Bench) -> None:
    _, sending = await sender(bench)
    for number in range(50):
        peer, _ = await receiver(bench, credit=1, link_id=500 + number)
        peer.due_ms = bench.clock.now_ms() + 30_000
    bench.bring(sending, *(send(number) for number in range(50)))
    await bench.settle()
    bench.clock.advance(1)
    assert len(bench.clock.timers) == 2


async def test_a_peer_that_is_due_is_ticked_and_what_it_says_is_written(bench: Bench) -> None:
    peer, sock = await sender(bench)
    peer.due_ms = bench.clock.now_ms() + 2_500
    bench.clock.advance(2_000)
    assert peer.ticks == []
    bench.clock.advance(1_000)
    await bench.settle()
    assert len(peer.ticks) == 1
    assert sock.writes == [b"heartbeat\n"]


async def test_a_clock_that_was_moved_ends_a_lock_at_once_and_no_connection(bench: Bench) -> None:
    _, sending = await sender(bench)
    peer, _ = await receiver(bench, credit=2)
    peer.due_ms = bench.clock.real_ms() + 60_000  # a heartbeat, a token's end
    bench.bring(sending, send(1))
    await bench.settle()
    bench.clock.leap(limits.LOCK_DURATION_MS_DEFAULT)
    bench.pump.pass_time()
    await bench.settle()
    delivered = [effect for effect in peer.performed if isinstance(effect, Deliver)]
    assert [effect.stored.delivery_count for effect in delivered] == [0, 1]
    assert peer.ticks == []
    assert bench.journal.recover().clock_ms == bench.clock.now_ms()


async def test_after_a_move_the_timer_runs_at_what_is_left_of_its_time(bench: Bench) -> None:
    _, sending = await sender(bench)
    peer, _ = await receiver(bench, credit=2)
    bench.bring(sending, send(1))
    await bench.settle()
    bench.clock.leap(limits.LOCK_DURATION_MS_DEFAULT - 700)
    bench.pump.pass_time()
    await bench.settle()
    assert [type(effect) for effect in peer.performed] == [Attached, Deliver]
    bench.clock.advance(700)
    await bench.settle()
    assert [type(effect) for effect in peer.performed] == [Attached, Deliver, Deliver]


async def test_waiting_for_rest_waits_for_what_the_store_has_still_to_say(bench: Bench) -> None:
    bench.journal.is_held = True
    peeking = asyncio.ensure_future(bench.pump.ask(lambda number: Peek(number, "q", 0, 10)))
    await bench.settle()
    assert bench.pump.is_idle()
    waiting = asyncio.ensure_future(bench.pump.until(bench.pump.is_at_rest, timeout_s=5))
    await bench.settle()
    assert not waiting.done()
    bench.journal.let_go()
    await bench.settle()
    assert waiting.result() is True
    assert isinstance(peeking.result(), Messages)


async def test_a_peer_that_has_closed_is_closed_after_its_last_words(bench: Bench) -> None:
    peer, sock = await sender(bench)
    peer.close(None)
    bench.pump.mark_dirty(sock)
    await bench.settle()
    assert sock.writes == [b"close\n"]
    assert sock.is_closed


async def test_a_lost_connection_leaves_no_trace(bench: Bench) -> None:
    peer, sock = await sender(bench)
    sock.is_lost = True
    peer.forgotten.append(SENDER)
    bench.bring(sock, DetachLink(SENDER))
    await bench.settle()
    assert sock not in bench.pump.connections
    assert bench.pump.owners == {}
    assert bench.pump.dirty == {}


async def test_waiting_for_idleness_waits_for_the_disk(bench: Bench) -> None:
    peer, sock = await sender(bench)
    bench.journal.is_held = True
    bench.bring(sock, send(1))
    waiting = asyncio.ensure_future(bench.pump.until(bench.pump.is_idle, timeout_s=5))
    await bench.settle()
    assert not waiting.done()
    bench.journal.let_go()
    await bench.settle()
    assert waiting.result() is True
    assert len(sock.writes) == 1
    assert len(peer.performed) == 1


async def test_nothing_is_decided_after_the_stop(bench: Bench) -> None:
    _, sock = await sender(bench)
    count = len(bench.journal.turns)
    bench.pump.stop()
    bench.bring(sock, send(1))
    bench.clock.advance(10_000)
    await bench.settle()
    assert len(bench.journal.turns) == count
    assert bench.clock.timers == []


class FloodingPeer(ScriptedPeer):
    """Has received so many frames; those that are read count, and bring nothing."""

    def __init__(self, frames: int, is_authorised: bool = True) -> None:
        super().__init__()
        self.frames_kept = frames
        self.is_authorised = is_authorised
        self.visits: list[int] = []

    def receive(self, data: bytes, now_ms: int, frames_max: int = 1 << 62) -> None:
        self.frames_kept += len(data)  # a frame a byte
        count = min(self.frames_kept, frames_max)
        self.frames_kept -= count
        self.frames_count += count
        self.has_unread = self.frames_kept > 0
        self.unread_bytes = self.frames_kept
        self.visits.append(count)


def flood(bench: Bench, frames: int, is_authorised: bool = True) -> tuple[FloodingPeer, RecordedSocket]:
    peer = FloodingPeer(0, is_authorised)
    sock = RecordedSocket(peer)
    bench.pump.add(sock)
    bench.pump.read(sock, bytes(frames))
    return peer, sock


async def test_a_flood_of_frames_is_read_a_turns_worth_at_a_time_and_a_neighbour_is_heard_between(bench: Bench) -> None:
    flooders = [flood(bench, 5_000) for _ in range(10)]
    assert all(len(peer.visits) == 1 and peer.visits[0] <= limits.FRAMES_PER_VISIT_MAX for peer, _ in flooders)
    assert not any(sock.is_reading for _, sock in flooders)
    for _ in range(5):
        before = sum(peer.frames_count for peer, _ in flooders)
        bench.pump.turn()
        read = sum(peer.frames_count for peer, _ in flooders) - before
        assert read <= limits.FRAMES_PER_TURN_MAX
        neighbour, _ = flood(bench, 3)
        assert neighbour.visits == [3]
    counts = [peer.frames_count for peer, _ in flooders]
    assert max(counts) - min(counts) <= 2 * limits.FRAMES_PER_VISIT_MAX, "they take turns"
    await bench.settle()
    assert [peer.frames_count for peer, _ in flooders] == [5_000] * 10
    assert all(sock.is_reading for _, sock in flooders)


async def test_strangers_share_few_frames_of_a_turn(bench: Bench) -> None:
    strangers = [flood(bench, 1_000, is_authorised=False) for _ in range(50)]
    at_once = limits.FRAMES_PER_TURN_MAX // limits.UNAUTHENTICATED_FRAME_WEIGHT
    assert sum(peer.frames_count for peer, _ in strangers) <= at_once
    before = sum(peer.frames_count for peer, _ in strangers)
    bench.pump.turn()
    read = sum(peer.frames_count for peer, _ in strangers) - before
    assert 0 < read <= at_once
    neighbour, _ = flood(bench, 3)
    assert neighbour.visits == [3]


async def test_what_a_slowed_connection_has_sent_waits_with_it(bench: Bench) -> None:
    peer, sock = flood(bench, 1_000)
    sock.is_slowed = True
    before = peer.frames_count
    await bench.settle()
    assert peer.frames_count == before
    sock.is_slowed = False
    bench.pump.read_later(sock)
    await bench.settle()
    assert peer.frames_count == 1_000


async def test_what_a_connection_had_sent_and_was_not_read_is_held_until_it_is_lost(bench: Bench) -> None:
    _, sock = flood(bench, 1_000)
    sock.is_slowed = True
    await bench.settle()
    assert bench.pump.held_bytes == sock.held_bytes == 1_000 - limits.FRAMES_PER_VISIT_MAX
    sock.is_lost = True
    bench.pump.mark_dirty(sock)
    await bench.settle()
    assert bench.pump.held_bytes == 0
    assert sock not in bench.pump.connections


async def test_what_the_core_does_by_itself_waits_until_the_store_has_copied_its_log(bench: Bench) -> None:
    _, sock = await sender(bench)
    bench.core.is_store_behind = True
    bench.journal.is_copying = True
    bench.bring(sock, send(1))
    await bench.settle()
    assert bench.core.is_store_behind, "durable, but the store is busy with itself"
    bench.journal.is_copying = False
    bench.pump.on_copied()
    assert not bench.core.is_store_behind
