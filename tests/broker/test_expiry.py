"""Time to live: of the message, cut to the queue's; dropped or dead-lettered; with or without a receiver."""

from spillway.model.entity import EntitySettings
from spillway.model.settlement import ABANDON, Settlement
from spillway.testing.core import message
from tests.broker.line import Line, bodies, delivered


def expiring(dead_letter: bool, default_ttl_ms: int = 0) -> Line:
    settings = EntitySettings()
    settings.dead_letter_on_expiry = dead_letter
    settings.default_ttl_ms = default_ttl_ms
    return Line(settings)


def test_an_expired_message_is_dropped_unless_the_queue_dead_letters() -> None:
    line = expiring(dead_letter=False)
    line.send(message(b"a", ttl_ms=1_000))
    line.step(1_000)
    assert line.namespace.directory.queues["q"].counters.active == 0
    assert line.dead_letters() == []


def test_an_expired_message_is_dead_lettered_with_the_reason_even_if_nobody_receives() -> None:
    line = expiring(dead_letter=True)
    line.send(message(b"a", ttl_ms=1_000), message(b"b"))
    line.step(999)
    assert line.namespace.directory.queues["q"].counters.active == 2
    line.step(1)
    (dead,) = line.dead_letters()
    assert dead.stored.overlay is not None
    assert dead.stored.overlay.dead_letter_reason == "TTLExpiredException"
    line.attach()
    assert bodies(line.receive(5)) == [b"b"]


def test_the_queues_own_time_to_live_is_the_default_and_the_most() -> None:
    line = expiring(dead_letter=True, default_ttl_ms=1_000)
    line.send(message(b"none"), message(b"long", ttl_ms=50_000), message(b"short", ttl_ms=10))
    line.step(10)
    assert line.namespace.directory.queues["q"].counters.active == 2
    line.step(990)
    assert line.namespace.directory.queues["q"].counters.active == 0


def test_a_locked_message_expires_only_when_its_lock_ends() -> None:
    line = expiring(dead_letter=True)
    line.send(message(b"a", ttl_ms=1_000))
    line.attach()
    (delivery,) = line.receive()
    line.step(2_000)
    assert line.dead_letters() == []
    assert delivered(line.settle(delivery, Settlement(ABANDON))) != []  # to the dead-letter receiver with credit
    assert line.namespace.directory.queues["q"].counters.active == 0


def test_messages_outside_the_window_expire_too_in_bounded_sweeps() -> None:
    line = expiring(dead_letter=True)
    line.send(*[message(b"keep") for _ in range(100)])
    for _ in range(12):
        line.send(*[message(b"go", ttl_ms=1_000) for _ in range(500)])
    line.step(1_000)
    queue = line.namespace.directory.queues["q"]
    assert queue.counters.active == 100
    assert line.namespace.directory.queues["q/$deadletterqueue"].counters.active == 6_000
    line.attach()
    assert bodies(line.receive(200)) == [b"keep"] * 100


def test_what_expired_while_the_broker_was_down_is_gone_at_start() -> None:
    line = expiring(dead_letter=False)
    line.send(message(b"a", ttl_ms=1_000), message(b"b"))
    line.now_ms += 5_000
    line.restart()
    line.attach()
    assert bodies(line.receive(5)) == [b"b"]
