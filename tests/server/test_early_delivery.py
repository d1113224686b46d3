"""A waiting receiver gets a message before the disk has it; nobody else hears anything sooner than before."""

import pytest

from spillway.broker.commands import AttachReceiver, AttachSender, CreateEntity, Credit, Send, Settle
from spillway.broker.directory import Directory
from spillway.broker.effects import Deliver, Done, SendSettled, SettlementAnswered
from spillway.model import limits
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.settlement import COMPLETE, Settlement
from spillway.server.pump import EARLY_EFFECTS_MAX
from spillway.testing.core import message
from tests.server.doubles import Bench

SENDER, RECEIVER = 101, 102


class Line:
    """One sender and one waiting receiver of a queue, and a disk that is held back."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sending, self.sender_socket = bench.connect()
        self.receiving, self.receiver_socket = bench.connect()
        self.sends = 0

    async def attach(self, deletes: bool = False, credit: int = 100) -> None:
        bench = self.bench
        bench.bring(self.sender_socket, AttachSender(SENDER, "q"), link_id=SENDER)
        attach = AttachReceiver(RECEIVER, "q", deletes)
        bench.bring(self.receiver_socket, attach, Credit(RECEIVER, credit, False), link_id=RECEIVER)
        await bench.settle()

    async def send(self, count: int = 1) -> None:
        """So many sends in one turn."""
        sends = [Send(SENDER, self.sends + n, [message(b"hello")], False, 5) for n in range(count)]
        self.sends += count
        self.bench.bring(self.sender_socket, *sends)
        await self.bench.settle()

    async def sync(self, count: int = 1_000_000) -> None:
        self.bench.journal.let_go(count)
        await self.bench.settle()

    def delivered(self) -> list[int]:
        return [effect.stored.sequence_number for effect in self.receiving.performed if isinstance(effect, Deliver)]

    def completed(self) -> list[int]:
        answers = [effect for effect in self.receiving.performed if isinstance(effect, SettlementAnswered)]
        return [answer.delivery_id for answer in answers if answer.error is None]

    def acknowledged(self) -> list[int]:
        return [effect.delivery_id for effect in self.sending.performed if isinstance(effect, SendSettled)]


@pytest.fixture
async def line() -> Line:
    bench = Bench()
    answer = await bench.pump.ask(lambda number: CreateEntity(number, QUEUE, "q", EntitySettings()))
    assert isinstance(answer, Done)
    return Line(bench)


async def test_a_waiting_receiver_has_the_message_before_its_sender_is_answered(line: Line) -> None:
    await line.attach()
    line.bench.journal.is_held = True
    await line.send()
    assert (line.delivered(), line.acknowledged()) == ([1], [])
    assert len(line.receiver_socket.writes) > 0
    await line.sync()
    assert (line.delivered(), line.acknowledged()) == ([1], [0])


async def test_what_was_delivered_early_is_completed_only_when_the_disk_has_both(line: Line) -> None:
    await line.attach()
    line.bench.journal.is_held = True
    await line.send()
    (delivery,) = [effect for effect in line.receiving.performed if isinstance(effect, Deliver)]
    line.bench.bring(line.receiver_socket, Settle(RECEIVER, 0, delivery.lock_token, Settlement(COMPLETE), False))
    await line.bench.settle()
    assert line.completed() == []
    await line.sync(1)
    assert (line.acknowledged(), line.completed()) == ([0], [])
    await line.sync()
    assert line.completed() == [0]


async def test_what_is_deleted_by_handing_it_over_waits(line: Line) -> None:
    await line.attach(deletes=True)
    line.bench.journal.is_held = True
    await line.send()
    assert line.delivered() == []
    await line.sync()
    assert (line.delivered(), line.acknowledged()) == ([1], [0])


async def test_a_link_whose_attach_was_not_answered_waits_and_nothing_overtakes_on_it(line: Line) -> None:
    line.bench.journal.is_held = True
    line.bench.bring(line.sender_socket, AttachSender(SENDER, "q"), link_id=SENDER)
    await line.send()  # whose turn all that follows waits for
    await line.attach()
    await line.send()
    assert line.receiving.performed == []
    await line.sync(1)
    await line.send()
    await line.sync()
    assert line.delivered() == [1, 2, 3]


@pytest.mark.parametrize("why", ["bytes", "effects", "told"])
async def test_deliveries_that_wait_are_not_overtaken_by_later_ones_that_would_not(line: Line, why: str) -> None:
    await line.attach(credit=1_000)
    journal, pump = line.bench.journal, line.bench.pump
    journal.is_held = True
    first = EARLY_EFFECTS_MAX if why == "effects" else 1
    journal.pending_bytes = limits.EARLY_BYTES_MAX + 1 if why == "bytes" else 0
    pump.delivers_early = why != "told"
    await line.send(first)
    assert line.delivered() == []
    journal.pending_bytes = 0
    pump.delivers_early = True
    await line.send()
    assert line.delivered() == []
    await line.sync()
    assert line.delivered() == list(range(1, first + 2))
    await line.send()
    assert line.delivered()[-1] == first + 2


async def test_a_number_that_was_seen_and_lost_is_not_given_again(line: Line) -> None:
    """The journal has everything that was submitted. A disk that lost the last turn has the counters before it."""
    journal = line.bench.journal
    journal.is_held = True
    again = Line(Bench(journal))
    await again.attach()
    await again.send()
    assert again.delivered() == []  # the turn that leaves numbers out is not on the disk
    await again.sync()
    await again.sync()
    assert again.delivered() == [limits.NUMBERS_SKIPPED + 1]
    await again.send()
    assert again.delivered() == [limits.NUMBERS_SKIPPED + 1, limits.NUMBERS_SKIPPED + 2]


async def test_an_entity_that_cannot_be_served_at_the_start_leaves_numbers_out_too(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    await line.attach()
    await line.send()
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "recover", refuse)
        bench = Bench(line.bench.journal)
    assert bench.core.directory.by_id == {}
    await bench.settle()
    (queue, dead_letters) = bench.journal.recover().entities
    assert queue.counters.last_sequence_number == limits.NUMBERS_SKIPPED + 1
    assert dead_letters.counters.last_sequence_number == limits.NUMBERS_SKIPPED


def refuse(*_: object) -> None:
    raise ValueError("a row that this version cannot read")


async def test_a_link_that_has_gone_gets_nothing_early_and_loses_nothing(line: Line) -> None:
    await line.attach()
    line.receiving.gone.add(RECEIVER)
    line.bench.journal.is_held = True
    await line.send()
    assert line.delivered() == []
    queue = line.bench.core.directory.queues["q"]
    await line.sync()
    assert queue.counters.active == 1
