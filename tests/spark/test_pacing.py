"""When a batch of a receiving stream begins, against a real broker; time is stepped."""

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spillway.client import OutgoingMessage
from spillway.spark.platform.access import OptionError
from spillway.spark.source.locked import LockedStreamReader
from spillway.spark.source.options import ReadOptions, read_options
from spillway.spark.source.schema import schema_for
from tests.spark.bus import Bus

LOOK_S = 20.0  # longer than an idle stream waits between two looks
NOTHING = {"batch": 0, "messages": 0}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def stream(bus: Bus, entity: str, **given: str) -> tuple[LockedStreamReader, Clock]:
    receiving = {"entity": entity, "mode": "peeklock", "settle": "manual"}
    options: ReadOptions = read_options({**bus.options, **receiving, **given}, True)
    clock = Clock()
    return LockedStreamReader(options, schema_for(options), clock), clock


def begins(stream: tuple[LockedStreamReader, Clock], after_s: float = LOOK_S) -> bool:
    reader, clock = stream
    clock.now_s += after_s
    return reader.latestOffset(NOTHING, ReadMaxRows(1_000)) != NOTHING


def test_a_batch_begins_when_enough_messages_of_an_entity_wait(bus: Bus) -> None:
    queue, other = bus.queue("1", "2", "3"), bus.queue("1")
    looking = stream(bus, f"{queue},{other}", minMessages="5")
    assert not begins(looking)
    bus.send(queue, [OutgoingMessage("4")])
    assert not begins(looking)
    bus.send(queue, [OutgoingMessage("5")])
    assert begins(looking)
    assert len(bus.peek(queue)) == 5  # looked at, not received


def test_a_batch_begins_when_the_first_message_has_waited_long_enough(bus: Bus) -> None:
    queue = bus.queue()
    looking = stream(bus, queue, minMessages="5", maxDelaySeconds="300")
    assert not begins(looking)
    assert not begins(looking, after_s=1_000.0)  # an empty entity does not wait
    bus.send(queue, [OutgoingMessage("1")])
    assert not begins(looking)
    assert not begins(looking, after_s=280.0)
    assert begins(looking, after_s=20.0)
    bus.send(queue, [OutgoingMessage("2")])
    assert not begins(looking)  # after a batch the waiting begins again
    assert begins(looking, after_s=300.0)


def test_the_waiting_begins_anew_when_somebody_else_has_taken_what_waited(bus: Bus) -> None:
    queue = bus.queue("1")
    looking = stream(bus, queue, minMessages="5", maxDelaySeconds="300")
    assert not begins(looking)
    bus.dead_letter(queue, "gone")
    assert not begins(looking, after_s=280.0)
    bus.send(queue, [OutgoingMessage("2")])
    assert not begins(looking, after_s=20.0)


def test_a_message_that_stays_in_somebodys_lock_does_not_make_few_messages_many(bus: Bus) -> None:
    queue = bus.queue(*map(str, range(5)))
    looking = stream(bus, queue, minMessages="5")
    with bus.locked_by_another(queue, 1):
        assert begins(looking)
        bus.dead_letter(queue, "taken")  # all but the first
        for number in range(5):
            assert not begins(looking)
            bus.send(queue, [OutgoingMessage(str(number))])
            bus.dead_letter(queue, "taken")
        bus.send(queue, [OutgoingMessage("last")])
        assert begins(looking)  # by the numbers, after five more


def test_a_run_that_takes_what_is_there_waits_for_no_more(bus: Bus) -> None:
    queue = bus.queue("1")
    looking = stream(bus, queue, minMessages="5")
    looking[0].prepareForTriggerAvailableNow()
    assert begins(looking)


def test_pacing_is_refused_where_nothing_is_received_by_a_stream(bus: Bus) -> None:
    for given, is_streaming in (({"mode": "browse"}, True), ({"mode": "peeklock"}, False)):
        with pytest.raises(OptionError, match="minMessages is for streams"):
            read_options({**bus.options, "entity": "q", "minMessages": "5", **given}, is_streaming)
    with pytest.raises(OptionError, match="maxDelaySeconds='never': seconds from 0 to 86400"):
        read_options(
            {**bus.options, "entity": "q", "mode": "peeklock", "settle": "manual", "maxDelaySeconds": "never"}, True
        )
