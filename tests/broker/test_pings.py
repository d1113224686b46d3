"""A ping is refused for whatever a message would be refused for, with the same words: it asks whether one is taken."""

from collections.abc import Callable

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    CreateEntity,
    Credit,
    DeleteEntity,
    DiskMeasured,
    InjectFault,
    MemoryMeasured,
    UpdateEntity,
)
from spillway.broker.effects import Effect, Refused, SendSettled
from spillway.model import limits
from spillway.model.entity import (
    QUEUE,
    STATUS_DISABLED,
    STATUS_SEND_DISABLED,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
)
from spillway.model.errors import (
    ArgumentError,
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    MessageTooLarge,
    QuotaExceeded,
    ServerBusy,
)
from spillway.model.faults import Fault
from spillway.model.message import Message
from spillway.model.quotas import Quotas
from spillway.testing.core import message
from tests.broker.line import Line

PING_BYTES = 150  # about what one of the SDK's has
LARGE = 200_000
SENDERS = {QUEUE: 1, TOPIC: 70}
PATHS = {QUEUE: "q", TOPIC: "t"}
RECEIVED_FROM = {QUEUE: "q", TOPIC: "t/Subscriptions/s"}
KINDS = pytest.mark.parametrize("kind", [QUEUE, TOPIC])


class Both(Line):
    """A queue `q`, and a topic `t` with one subscription."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        super().__init__(quotas=quotas)
        self.apply(CreateEntity(901, TOPIC, "t", EntitySettings()))
        self.apply(CreateEntity(902, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
        self.apply(AttachSender(SENDERS[TOPIC], "t"))

    def change(self, kind: str, **values: object) -> None:
        settings = EntitySettings()
        for name, value in values.items():
            setattr(settings, name, value)
        self.apply(UpdateEntity(910, PATHS[kind], settings))

    def answer(self, kind: str, sent: Message) -> BrokerError | None:
        return answer_of(self.send(sent, link_id=SENDERS[kind]))


def answer_of(effects: list[Effect]) -> BrokerError | None:
    (settled,) = [effect for effect in effects if isinstance(effect, (SendSettled, Refused))]
    return settled.error


def ping() -> Message:
    return message(b"p" * PING_BYTES, message_id="ping", is_ping=True)


def quotas(**values: int) -> Quotas:
    made = Quotas()
    for name, value in values.items():
        made.set(name.replace("_", "-"), value)
    return made


# -- the table of reasons ---------------------------------------------------------------------------------------


def disabled(line: Both, kind: str) -> None:
    line.change(kind, status=STATUS_DISABLED)


def send_disabled(line: Both, kind: str) -> None:
    line.change(kind, status=STATUS_SEND_DISABLED)


def filled(line: Both, kind: str) -> None:
    line.change(kind, max_size_mb=1)
    while line.answer(kind, message(b"x" * LARGE)) is None:
        pass


def filled_to_the_last_byte(line: Both, kind: str) -> None:
    line.change(kind, max_size_mb=1)
    for _ in range(4):
        assert line.answer(kind, message(b"x" * (limits.MIB // 4))) is None


def short_of_disk(line: Both, kind: str) -> None:
    line.apply(DiskMeasured(limits.DISK_RESERVE_BYTES - 1))


def out_of_disk(line: Both, kind: str) -> None:
    line.apply(DiskMeasured(limits.DISK_FULL_BYTES - 1))


def out_of_memory(line: Both, kind: str) -> None:
    line.apply(MemoryMeasured(129 * limits.MIB))


def stored_enough(line: Both, kind: str) -> None:
    for _ in range(6):
        line.answer(kind, message(b"x" * LARGE))


def used_up(line: Both, kind: str) -> None:
    for _ in range(2_000):
        if line.answer(kind, message(b"x")) is not None:
            return


def deleted(line: Both, kind: str) -> None:
    line.apply(DeleteEntity(920, PATHS[kind]))


def faulty(line: Both, kind: str) -> None:
    line.apply(InjectFault(921, Fault("quota", PATHS[kind], ["send"])))


def throttling(line: Both, kind: str) -> None:
    line.apply(InjectFault(921, Fault("server-busy", PATHS[kind], ["send"])))


Arrange = Callable[[Both, str], None]
REASONS: list[tuple[Arrange, type[BrokerError], Quotas | None]] = [
    (disabled, EntityDisabled, None),
    (send_disabled, EntityDisabled, None),
    (filled, QuotaExceeded, None),
    (filled_to_the_last_byte, QuotaExceeded, None),
    (short_of_disk, ServerBusy, None),
    (out_of_disk, ServerBusy, None),
    (out_of_memory, ServerBusy, quotas(memory_mb=128)),
    (stored_enough, ServerBusy, quotas(store_mb=1)),
    (used_up, ServerBusy, quotas(operations_per_second=10)),
    (used_up, ServerBusy, quotas(entity_operations_per_second=10)),
    (deleted, EntityNotFound, None),
    (faulty, QuotaExceeded, None),
    (throttling, ServerBusy, None),
]


@KINDS
@pytest.mark.parametrize(("arrange", "error", "given"), REASONS)
def test_what_refuses_a_message_refuses_a_ping_with_the_same_words(
    kind: str, arrange: Arrange, error: type[BrokerError], given: Quotas | None
) -> None:
    line = Both(given)
    assert line.answer(kind, ping()) is None
    arrange(line, kind)
    refused = line.answer(kind, message(b"x" * LARGE))
    answered = line.answer(kind, ping())
    assert refused is not None and answered is not None
    assert (type(refused), type(answered)) == (error, error)
    assert answered.description == refused.description


@KINDS
def test_a_ping_that_no_entity_would_take_is_refused_for_what_it_is(kind: str) -> None:
    line = Both()
    large = message(b"x" * (limits.MESSAGE_BYTES_MAX + 1), is_ping=True)
    assert isinstance(line.answer(kind, large), MessageTooLarge)


def test_a_ping_with_two_keys_is_refused_by_a_partitioned_queue() -> None:
    settings = EntitySettings()
    settings.is_partitioned = True
    line = Line(settings)
    torn = message(b"", is_ping=True, session_id="one")
    torn.partition_key = "other"
    assert isinstance(answer_of(line.send(torn)), ArgumentError)


def test_a_ping_needs_no_session_since_it_is_never_stored() -> None:
    settings = EntitySettings()
    settings.requires_session = True
    line = Line(settings)
    assert answer_of(line.send(ping())) is None


# -- full -------------------------------------------------------------------------------------------------------


@KINDS
def test_an_entity_that_refused_a_message_for_want_of_room_answers_pings_when_it_has_that_room(kind: str) -> None:
    """The room that is left is enough for a ping, which says nothing to whoever sends large messages."""
    line = Both()
    filled(line, kind)
    assert isinstance(line.answer(kind, ping()), QuotaExceeded)
    line.apply(AttachReceiver(80, RECEIVED_FROM[kind], deletes=True), Credit(80, 1, False))
    assert line.answer(kind, ping()) is None
    assert line.answer(kind, message(b"x" * LARGE)) is None


@KINDS
def test_room_that_was_had_again_is_forgotten(kind: str) -> None:
    line = Both()
    filled(line, kind)
    line.apply(AttachReceiver(80, RECEIVED_FROM[kind], deletes=True), Credit(80, 1, False))
    for _ in range(10):
        assert line.answer(kind, message(b"x" * 10_000)) is None
    assert line.answer(kind, ping()) is None, "nobody has been refused since"


@KINDS
def test_who_refused_a_batch_that_it_can_never_hold_answers_pings_when_it_is_empty(kind: str) -> None:
    line = Both()
    line.change(kind, max_size_mb=1)
    batch = [message(b"x" * LARGE) for _ in range(6)]
    assert isinstance(answer_of(line.send(*batch, link_id=SENDERS[kind])), QuotaExceeded)
    assert line.answer(kind, ping()) is None


def test_a_full_queue_that_looks_for_duplicates_refuses_pings_also_one_with_an_id_it_knows() -> None:
    settings = EntitySettings()
    settings.requires_duplicate_detection = True
    settings.max_size_mb = 1
    line = Line(settings)
    for number in range(4):
        assert answer_of(line.send(message(b"x" * (limits.MIB // 4), message_id=str(number)))) is None
    assert isinstance(answer_of(line.send(ping())), QuotaExceeded)
    known = ping()
    known.message_id = "0"
    assert isinstance(answer_of(line.send(known)), QuotaExceeded)
    assert answer_of(line.send(message(b"x", message_id="0"))) is None, "a duplicate takes no room"


@pytest.mark.contract("F2")
@KINDS
def test_pings_leave_nothing_behind_refused_or_answered(kind: str) -> None:
    line = Both()
    line.answer(kind, ping())
    filled(line, kind)
    held = line.namespace.directory.find(PATHS[kind])
    assert held is not None
    before = held.usage.size_bytes
    line.answer(kind, ping())
    assert held.usage.size_bytes == before
