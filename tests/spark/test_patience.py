"""Patience with a namespace that is away: what is waited for, how long, and at which places; time is stepped."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spillway.client import ClientError, ConnectionLost, LinkClosed, OutgoingMessage, ServerBusy
from spillway.client.errors import error_for
from spillway.client.faults import Fault, RemoteFaults
from spillway.model.failures import CONDITIONS
from spillway.spark.platform import patience as patience_module
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import NamespaceError, connection_pool
from spillway.spark.platform.patience import Patience, is_transient
from spillway.spark.source.browse import BrowseStreamReader, RangePartition
from spillway.spark.source.locked import LockedPartition, LockedStreamReader, Reception
from spillway.spark.source.options import read_options, write_options
from spillway.spark.source.refusals import OutgoingRow
from spillway.spark.source.settle import settle_on_executor
from spillway.spark.source.sink import RowSending, check_destination
from tests.spark.bus import Bus

# What passes by itself. All the other conditions of the table are told at once.
PASSING = frozenset(
    {"com.microsoft:server-busy", "com.microsoft:timeout", "com.microsoft:entity-disabled"}
    | {"com.microsoft:operation-cancelled", "amqp:internal-error", "amqp:resource-locked", "amqp:illegal-state"}
    | {"amqp:link:detach-forced", "amqp:link:redirect", "amqp:link:stolen", "amqp:link:transfer-limit-exceeded"}
    | {"amqp:connection:forced", "amqp:connection:framing-error", "amqp:connection:redirect"}
    | {"amqp:session:errant-link", "amqp:session:handle-in-use", "amqp:session:unattached-handle"}
    | {"amqp:session:window-violation", "amqp:frame-size-too-small"}
    | {"amqp:client-error", "amqp:socket-error", "amqp:unknown-error"}
)


@pytest.mark.parametrize("condition", sorted({*CONDITIONS, "somebody:unheard-of"}))
def test_every_condition_of_the_table_passes_by_itself_or_does_not(condition: str) -> None:
    assert is_transient(error_for(condition, "said")) == (condition in PASSING)


def test_an_end_of_the_connection_passes_unless_it_was_the_key_the_certificate_or_ourselves() -> None:
    assert is_transient(ConnectionLost("cannot reach localhost:5672: refused"))
    assert is_transient(ConnectionLost("the peer closed", "somebody:unheard-of"))
    assert not is_transient(ConnectionLost("no TLS with localhost:5672", is_transient=False))
    assert not is_transient(ConnectionLost("the peer closed", "amqp:unauthorized-access"))
    assert not is_transient(LinkClosed("the sender was closed", is_transient=False))


# -- how long ----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def waits(patience: Patience, clock: Clock, error: ClientError) -> list[float]:
    """The pauses until patience ends."""
    found: list[float] = []
    while True:
        try:
            found.append(patience.after(error))
        except NamespaceError as ended:
            assert "tried again for 60 s (patienceSeconds)" in str(ended)
            return found
        clock.now_s += found[-1]


def test_pauses_grow_and_the_last_try_is_when_patience_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = Patience(Access(patience_s=60), "orders", clock=clock)
    with caplog.at_level(logging.WARNING):
        pauses = waits(patience, clock, ConnectionLost("cannot reach localhost"))
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10, 10, 10, 4.5] and clock.now_s == 1_060
    assert [record.getMessage() for record in caplog.records] == [
        "'orders' (amqp:connection:forced: cannot reach localhost): trying again for up to 60 s"  # once an outage
    ]


def test_a_busy_service_is_left_alone_for_ten_seconds_and_an_answer_begins_anew() -> None:
    clock = Clock()
    patience = Patience(Access(patience_s=60), "orders", clock=clock)
    assert waits(patience, clock, ServerBusy("throttled")) == [10] * 6
    patience.on_answered()
    assert patience.is_due
    assert patience.after(ConnectionLost("again")) == 0.5
    assert not patience.is_due
    clock.now_s += 0.5
    assert patience.is_due


def test_without_patience_the_first_error_is_the_last_and_says_nothing_of_it() -> None:
    with pytest.raises(NamespaceError, match=r"^'orders' \(amqp:connection:forced: away\)$"):
        Patience(Access(patience_s=0), "orders").after(ConnectionLost("away"))


# -- where -------------------------------------------------------------------------------------------------------------

SCHEMA = StructType([StructField("sequence_number", LongType()), StructField("lock_token", StringType())])
Place = tuple[str, Callable[[Bus, str], Any], Any]  # the operation that fails, what is done, what comes of it after all


def _browser(bus: Bus, queue: str, **given: str) -> BrowseStreamReader:
    return BrowseStreamReader(read_options({**bus.options, "entity": queue, **given}, True), SCHEMA)


def _initial(bus: Bus, queue: str) -> Any:
    return _browser(bus, queue, startAt="latest").initialOffset()[queue]["next"]


def _plan_sink(bus: Bus, queue: str) -> None:
    check_destination(write_options({**bus.options, "entity": queue}))


def _latest(bus: Bus, queue: str) -> list[Any]:
    """Nothing new while it is away, and then all of it."""
    reader = _browser(bus, queue)
    first = reader.latestOffset({queue: 0}, ReadMaxRows(10))
    reader._patience.on_answered()  # the pause is over
    return [first[queue], reader.latestOffset({queue: 0}, ReadMaxRows(10))[queue]["next"]]


def _latest_locked(bus: Bus, queue: str) -> list[int]:
    reader = LockedStreamReader(
        read_options({**bus.options, "entity": queue, "mode": "peeklock", "settle": "manual"}, True), SCHEMA
    )
    first = reader.latestOffset({"batch": 0, "messages": 0}, ReadMaxRows(10))
    reader._patience.on_answered()
    return [first["batch"], reader.latestOffset(first, ReadMaxRows(10))["batch"]]


def _available_now(bus: Bus, queue: str) -> Any:
    reader = _browser(bus, queue)
    reader.prepareForTriggerAvailableNow()
    return reader.latestOffset({queue: 0}, ReadMaxRows(10))[queue]["next"]


def _partitions(bus: Bus, queue: str) -> int:
    """Of a stream that receives: it asks which sessions there are."""
    given = {**bus.options, "entity": queue, "mode": "peeklock", "settle": "manual", "sessions": "*"}
    reader = LockedStreamReader(read_options(given, True), SCHEMA)
    return len(reader.partitions({"batch": 0, "messages": 0}, {"batch": 1, "messages": 3}))


def _browse(bus: Bus, queue: str) -> list[int]:
    batches = _browser(bus, queue).read(RangePartition(queue, 0, 4))
    return [row["sequence_number"] for batch in batches for row in batch.to_pylist()]


def _receive(bus: Bus, queue: str) -> int:
    options = read_options({**bus.options, "entity": queue, "mode": "peeklock", "maxWaitSeconds": "0.2"})
    chunks = Reception(connection_pool(), options, LockedPartition(queue, 3, None)).chunks()
    messages = [message for chunk in chunks for message in chunk]
    tokens = [message.lock_token for message in messages if message.lock_token is not None]
    settle_on_executor(options.access, queue, tokens, "abandon")
    return len(messages)


def _receive_session(bus: Bus, queue: str) -> int:
    given = {"entity": queue, "mode": "peeklock", "sessions": "s", "maxWaitSeconds": "0.2"}
    options = read_options({**bus.options, **given})
    chunks = Reception(connection_pool(), options, LockedPartition(queue, 3, ("s",))).chunks()
    return sum(len(chunk) for chunk in chunks)


def _receive_and_delete(bus: Bus, queue: str) -> int:
    given = {"entity": queue, "mode": "receiveanddelete", "allowLoss": "true", "maxWaitSeconds": "0.2"}
    options = read_options({**bus.options, **given})
    chunks = Reception(connection_pool(), options, LockedPartition(queue, 3, None)).chunks()
    return sum(len(chunk) for chunk in chunks)


def _send(bus: Bus, queue: str) -> list[str]:
    sending = RowSending(connection_pool(), write_options({**bus.options, "entity": queue}))
    messages = [OutgoingMessage(f"new {number}", message_id=f"n{number}") for number in range(2)]
    some = [(queue, str(message.message_id), message.encode()) for message in messages]
    connection_pool().run(sending._send([OutgoingRow(each, None) for each in some], is_all_or_none=False))
    connection_pool().run(sending._close())
    return bus.bodies(queue)[3:]


def _settle(bus: Bus, queue: str) -> int:
    options = read_options({**bus.options, "entity": queue, "mode": "peeklock"})
    chunks = Reception(connection_pool(), options, LockedPartition(queue, 3, None)).chunks()
    tokens = [message.lock_token for chunk in chunks for message in chunk if message.lock_token is not None]
    return settle_on_executor(options.access, queue, tokens)


PLACES: dict[str, Place] = {
    "driver: initialOffset": ("management", _initial, 4),
    "driver: latestOffset, browsing": ("management", _latest, [0, 4]),
    "driver: latestOffset, receiving": ("management", _latest_locked, [0, 1]),
    "driver: latestOffset, availableNow": ("management", _available_now, 4),
    "driver: partitions": ("management", _partitions, 1),
    "driver: a sink that is planned": ("attach", _plan_sink, None),
    "task: attach": ("attach", _receive, 3),
    "task: browse": ("management", _browse, [1, 2, 3]),
    "task: receive": ("receive", _receive, 3),
    "task: receive and delete": ("receive", _receive_and_delete, 3),
    "task: attach to a session": ("attach", _receive_session, 3),
    "task: receive from a session": ("receive", _receive_session, 3),
    "task: send": ("send", _send, ["new 0", "new 1"]),
    "task: settle": ("settle", _settle, 0),
}
PASSES = (
    ("server-busy", ""),
    ("drop", ""),
    ("detach", ""),
    ("refuse", "com.microsoft:timeout"),
    ("refuse", "amqp:internal-error"),
)
STAYS = (("refuse", "amqp:unauthorized-access"), ("refuse", "amqp:not-found"))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Between tries of tasks: told, and not waited for."""
    found: list[float] = []

    async def pause(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(patience_module, "pause", pause)
    return found


def planted(bus: Bus, place: str, kind: str, condition: str) -> tuple[str, RemoteFaults, int]:
    has_sessions = place == "driver: partitions" or "session" in place
    bodies = () if has_sessions else ("1", "2", "3")
    # What was accepted in the moment of an outage is sent again, with its id.
    queue = bus.queue(*bodies, requires_session=has_sessions, requires_duplicate_detection=place == "task: send")
    if has_sessions:
        bus.send(queue, [OutgoingMessage(body, session_id="s") for body in ("1", "2", "3")])
    faults = RemoteFaults(bus.broker.connection_string)
    return queue, faults, faults.add(Fault(kind, queue, [PLACES[place][0]], condition, count=1)).number


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "condition"), PASSES)
def test_what_passes_by_itself_is_waited_for(
    bus: Bus, place: str, kind: str, condition: str, pauses: list[float]
) -> None:
    queue, faults, number = planted(bus, place, kind, condition)
    _, work, expected = PLACES[place]
    found = work(bus, queue)
    if (place, condition) == ("task: attach to a session", "com.microsoft:timeout"):
        expected = 0  # so a service says that somebody has the session: the next batch asks for it again
    assert (sorted(found) if isinstance(found, list) else found) == expected
    assert faults.remove(number).hit == 1
    if kind == "server-busy":
        assert all(pause_s == 10 for pause_s in pauses)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "condition"), STAYS)
def test_what_the_user_has_to_mend_is_told_at_once(
    bus: Bus, place: str, kind: str, condition: str, pauses: list[float]
) -> None:
    queue, faults, number = planted(bus, place, kind, condition)
    with pytest.raises(NamespaceError, match=condition):
        PLACES[place][1](bus, queue)
    assert faults.remove(number).hit == 1
    assert pauses == []
