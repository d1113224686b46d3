"""SASL: who is let in is the owner's business, how it is asked is ours."""

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.events import ConnectionClosed, ConnectionOpened, SaslFinished, SaslRequested
from spillway.amqp.frames import AMQP_HEADER, SASL_HEADER, FrameParser, decode_body, encode_frame, encode_sasl_frame
from spillway.amqp.performatives import (
    Open,
    Performative,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from spillway.amqp.sasl import choose_init
from spillway.testing.wire import WirePair
from tests.amqp.script import Script, condition


def sasl_bodies(data: bytes) -> list[Performative]:
    assert data[:8] == SASL_HEADER
    parser = FrameParser(4096)
    parser.feed(data[8:])
    bodies = []
    while (frame := parser.next()) is not None:
        bodies.append(decode_body(frame, DecodeBudget())[0])
    return bodies


def test_a_server_answers_the_sasl_header_with_its_own_and_its_mechanisms() -> None:
    script = Script()
    script.give(SASL_HEADER)
    (offer,) = sasl_bodies(b"".join(script.connection.drain_output()))
    assert isinstance(offer, SaslMechanisms)
    assert offer.sasl_server_mechanisms == ["PLAIN", "ANONYMOUS"]


def test_the_owner_hears_mechanism_response_and_hostname() -> None:
    script = Script()
    script.give(SASL_HEADER + encode_sasl_frame(SaslInit("PLAIN", b"\0name\0key", "localhost")))
    (event,) = script.events
    assert isinstance(event, SaslRequested)
    assert (event.mechanism, event.response, event.hostname) == ("PLAIN", b"\0name\0key", "localhost")


def test_a_missing_response_is_an_empty_one() -> None:
    script = Script()
    script.give(SASL_HEADER + encode_sasl_frame(SaslInit("ANONYMOUS")))
    (event,) = script.events
    assert isinstance(event, SaslRequested)
    assert event.response == b""


def test_what_comes_before_the_decision_is_kept_and_read_after_it() -> None:
    script = Script()
    script.give(
        SASL_HEADER + encode_sasl_frame(SaslInit("ANONYMOUS", b"")) + AMQP_HEADER + encode_frame(0, Open("pipelining"))
    )
    assert [type(event) for event in script.events] == [SaslRequested]
    script.connection.sasl_done(0)
    script.give(b"")
    assert [type(event) for event in script.events] == [SaslRequested, ConnectionOpened]


def test_more_than_can_be_kept_before_the_decision_ends_the_connection() -> None:
    script = Script()
    script.give(SASL_HEADER + encode_sasl_frame(SaslInit("ANONYMOUS", b"")))
    for _ in range(70):
        script.give(bytes(1024))
    assert script.connection.is_closed
    (closed,) = [event for event in script.events if isinstance(event, ConnectionClosed)]
    assert condition(closed.error) == "amqp:resource-limit-exceeded"
    script.connection.drain_output()
    script.connection.sasl_done(0)
    assert not script.connection.drain_output(), "a decision that comes too late"


def test_a_refusal_is_the_last_thing_a_client_hears() -> None:
    script = Script()
    script.give(SASL_HEADER + encode_sasl_frame(SaslInit("PLAIN", b"\0a\0b")))
    script.connection.sasl_done(1)
    script.give(AMQP_HEADER + encode_frame(0, Open("still here")))
    outcome = sasl_bodies(b"".join(script.connection.drain_output()))[-1]
    assert isinstance(outcome, SaslOutcome)
    assert outcome.outcome == 1
    assert script.connection.is_closed
    assert not [event for event in script.events if isinstance(event, ConnectionOpened)]


def test_a_mechanism_that_was_not_offered_is_refused_without_asking_the_owner() -> None:
    script = Script()
    script.give(SASL_HEADER + encode_sasl_frame(SaslInit("EXTERNAL", b"")))
    assert not [event for event in script.events if isinstance(event, SaslRequested)]
    assert script.connection.is_closed


def test_a_second_sasl_header_ends_the_connection_after_the_right_one() -> None:
    script = Script()
    script.log_in()
    script.give(SASL_HEADER)
    assert b"".join(script.connection.drain_output()).endswith(AMQP_HEADER)
    assert script.connection.is_closed


def test_http_on_the_port_is_answered_with_our_header() -> None:
    script = Script()
    script.give(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"".join(script.connection.drain_output()) == SASL_HEADER
    assert script.connection.is_closed


def test_a_plain_header_needs_no_sasl_unless_it_is_required() -> None:
    script = Script()
    script.give(AMQP_HEADER + encode_frame(0, Open("raw")))
    assert [type(event) for event in script.events] == [ConnectionOpened]
    strict = Script(options=ConnectionOptions("us", sasl_mechanisms=["PLAIN"], is_sasl_required=True))
    strict.give(AMQP_HEADER + encode_frame(0, Open("raw")))
    assert b"".join(strict.connection.drain_output()) == SASL_HEADER
    assert strict.connection.is_closed


def test_a_sasl_frame_is_small() -> None:
    script = Script()
    script.give(SASL_HEADER + encode_sasl_frame(SaslInit("PLAIN", bytes(5000))))
    assert script.connection.is_closed


def test_a_client_picks_its_mechanism_and_opens_when_it_is_let_in() -> None:
    wire = WirePair()
    wire.open()
    assert wire.client.pop(SaslFinished).code == 0
    assert wire.client.pop(ConnectionOpened).open.container_id == "server"
    assert wire.server.pop(ConnectionOpened).open.container_id == "client"


def test_a_client_without_a_common_mechanism_gives_up() -> None:
    wire = WirePair(client=ConnectionOptions("client", sasl_mechanisms=["SCRAM-SHA-256"]))
    wire.open()
    assert condition(wire.client.pop(ConnectionClosed).error) == "amqp:unauthorized-access"


def test_a_client_that_is_refused_is_told_the_code() -> None:
    script = Script(is_server=False)
    script.connection.open()
    script.give(SASL_HEADER + encode_sasl_frame(SaslMechanisms(["ANONYMOUS"])) + encode_sasl_frame(SaslOutcome(1)))
    assert [type(event) for event in script.events] == [SaslFinished, ConnectionClosed]
    assert script.connection.is_closed


def test_a_client_that_is_challenged_gives_up() -> None:
    script = Script(is_server=False)
    script.connection.open()
    script.give(SASL_HEADER + encode_sasl_frame(SaslMechanisms(["ANONYMOUS"])) + encode_sasl_frame(SaslChallenge(b"?")))
    assert script.connection.is_closed


def test_the_first_wanted_mechanism_that_is_offered_is_chosen() -> None:
    init = choose_init(SaslMechanisms(["PLAIN", "ANONYMOUS"]), ["EXTERNAL", "PLAIN", "ANONYMOUS"], b"r", "h")
    assert init is not None
    assert (init.mechanism, init.initial_response, init.hostname) == ("PLAIN", b"r", "h")
    assert choose_init(SaslMechanisms([]), ["PLAIN"], b"", None) is None
