"""Every performative in every state of connection, session and link: the tables of `rules`, cell by cell."""

from pathlib import Path

import pytest

from spillway.amqp import rules
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    ConnectionClosed,
    LinkDetached,
    SaslFinished,
    SessionEnded,
)
from spillway.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame, encode_sasl_frame
from spillway.amqp.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.states import SESSION_MAPPED
from tests.amqp.script import WINDOW, Script

DOCUMENT = Path(__file__).parents[2] / "docs" / "amqp-states.md"

BYSTANDER = 0  # a channel whose session must not notice
SUBJECT = 1
HANDLE = 5  # the link under test
SENDING_HANDLE = 6  # a link with an unsettled delivery of ours, for dispositions
FREE_HANDLE = 9


def sasl_frames() -> dict[str, bytes]:
    return {
        "sasl-mechanisms": encode_sasl_frame(SaslMechanisms(["ANONYMOUS"])),
        "sasl-init": encode_sasl_frame(SaslInit("ANONYMOUS", b"")),
        "sasl-challenge": encode_sasl_frame(SaslChallenge(b"")),
        "sasl-response": encode_sasl_frame(SaslResponse(b"")),
        "sasl-outcome": encode_sasl_frame(SaslOutcome(0)),
    }


def amqp_frames(attach_handle: int, is_begin_an_answer: bool) -> dict[str, bytes]:
    attach = Attach("subject", attach_handle, False, source=Source("a"), target=Target("b"), initial_delivery_count=0)
    return {
        "open": encode_frame(0, Open("peer")),
        "begin": encode_frame(SUBJECT, Begin(0 if is_begin_an_answer else None, 0, WINDOW, WINDOW)),
        "attach": encode_frame(SUBJECT, attach),
        "flow": encode_frame(SUBJECT, Flow(0, WINDOW, 0, WINDOW, HANDLE, 0, 7, echo=True)),
        "transfer": encode_frame(SUBJECT, Transfer(HANDLE, 100, b"tag", 0, False), b"payload"),
        "disposition": encode_frame(SUBJECT, Disposition(True, 0, 0, True, ACCEPTED)),
        "detach": encode_frame(SUBJECT, Detach(HANDLE, True)),
        "end": encode_frame(SUBJECT, End()),
        "close": encode_frame(0, Close()),
    }


# -- driving a connection into a state --------------------------------------------------------------------


def in_connection_state(state: str) -> Script:
    script = Script(is_server=state not in ("SASL_MECHANISMS", "SASL_OUTCOME"))
    if state == "SASL_MECHANISMS" or state == "SASL_OUTCOME":
        script.connection.open()
        script.give(SASL_HEADER)
        if state == "SASL_OUTCOME":
            script.give(encode_sasl_frame(SaslMechanisms(["ANONYMOUS"])))
    elif state == "SASL_INIT":
        script.give(SASL_HEADER)
    elif state == "SASL_DECIDING":
        script.give(SASL_HEADER + encode_sasl_frame(SaslInit("ANONYMOUS", b"")))
    elif state == "AMQP_HEADER":
        script.log_in()
    elif state == "OPENING":
        script.log_in()
        script.give(AMQP_HEADER)
    elif state != "HEADER":
        script.open()
        if state == "CLOSE_SENT" or state == "CLOSED":
            script.connection.close()
        if state == "CLOSED":
            script.give(encode_frame(0, Close()))
    return script


def client() -> Script:
    """A client of ours whose connection is open."""
    script = Script(is_server=False)
    script.connection.open()
    script.give(SASL_HEADER + encode_sasl_frame(SaslMechanisms(["ANONYMOUS"])) + encode_sasl_frame(SaslOutcome(0)))
    assert any(isinstance(event, SaslFinished) for event in script.events)
    script.give(AMQP_HEADER + encode_frame(0, Open("peer")))
    return script


def server(has_session: bool = True) -> Script:
    """A server of ours, a session with a link that nobody speaks of, and one with a delivery not settled yet."""
    script = Script()
    script.open()
    script.begin(BYSTANDER)
    script.attached(0, channel=BYSTANDER)
    if has_session:
        script.begin(SUBJECT)
        add_unsettled_delivery(script)
    return script


def add_unsettled_delivery(script: Script) -> None:
    sender = script.attached(SENDING_HANDLE, we_send=True, channel=SUBJECT)
    assert sender.send(b"tag", b"payload", False) == 0


def in_session_state(state: str) -> Script:
    if state == "BEGIN_SENT":
        script = client()
        script.connection.begin()
        return script
    script = server(has_session=state != "UNMAPPED")
    if state != "UNMAPPED":
        script.attached(HANDLE, channel=SUBJECT)
    if state == "END_SENT":
        script.connection.sessions[SUBJECT].end()
    elif state == "ENDED":
        script.frame(SUBJECT, End())
    return script


def in_link_state(state: str) -> Script:
    if state == "ATTACH_SENT":
        script = client()
        session = script.connection.begin()
        script.give(encode_frame(SUBJECT, Begin(session.local_channel, 0, WINDOW, WINDOW)))
        add_unsettled_delivery(script)
        session.attach_receiver("subject", Source("a"), Target("b"))
        return script
    script = server()
    if state == "UNATTACHED":
        return script
    if state == "ATTACH_RCVD":
        script.attach(HANDLE, channel=SUBJECT)
        return script
    link = script.attached(HANDLE, we_send=state == "SENDING", channel=SUBJECT)
    if state == "DETACH_SENT" or state == "DETACHED":
        link.detach()
    elif state == "ERRORED":
        link.detach(AmqpError("amqp:internal-error", "on purpose"))
    if state == "DETACHED" or state == "ERRORED":
        script.frame(SUBJECT, Detach(HANDLE, True))
    return script


# -- what a frame does ------------------------------------------------------------------------------------


def portrait(script: Script) -> list[object]:
    """All that a frame may change besides counters, the output and the events."""
    connection = script.connection
    seen: list[object] = [connection.state]
    for channel, session in connection.sessions_by_remote_channel.items():
        seen.append((channel, session.state))
        for handle, link in session.links_by_remote_handle.items():
            seen.append((channel, handle, link.state, link.is_echo_due, link.credit))
    return seen


def ending_told(script: Script) -> list[str]:
    """Endings with an error as the owner hears of them."""
    told = []
    for event in script.events:
        if isinstance(event, ConnectionClosed) and event.error is not None:
            told.append(f"connection {event.error.condition}")
        elif isinstance(event, SessionEnded) and event.error is not None:
            told.append(f"session {event.error.condition}")
        elif isinstance(event, LinkDetached) and event.error is not None:
            told.append(f"link {event.error.condition}")
    return told


def ending_written(script: Script) -> list[str]:
    """Endings with an error as the peer hears of them."""
    subject = SUBJECT if script.connection.is_server else 0  # our channel
    written = []
    for channel, body, _ in script.hear():
        if isinstance(body, Close) and body.error is not None:
            written.append(f"connection {body.error.condition}")
        elif isinstance(body, End) and body.error is not None:
            assert channel == subject
            written.append(f"session {body.error.condition}")
        elif isinstance(body, Detach) and body.error is not None:
            assert channel == subject
            written.append(f"link {body.error.condition}")
    return written


def outcome_of(script: Script, frame: bytes) -> str:
    script.hear()
    script.events.clear()
    before = portrait(script)
    script.give(frame)
    after = portrait(script)
    told = ending_told(script)
    is_something_said = script.connection.output_bytes > 0
    written = ending_written(script)
    if told:
        assert len(told) == 1, "one ending, told once"
        if not written:
            assert script.connection.is_closed
            return "drop" + told[0].removeprefix("connection")
        assert written == told, "owner and peer hear the same"
        return told[0]
    assert not written, "no ending is kept from the owner"
    if before != after or script.events or is_something_said:
        return "accepted"
    if not script.connection.is_closed and script.connection.is_undecided and script.connection.bytes_kept > 0:
        return "kept"
    return "ignored"


def cells(table: rules.Table) -> list[tuple[str, str, str]]:
    return [(state, frame, outcome) for (state, frame), outcome in table.cells.items()]


@pytest.mark.parametrize(("state", "frame", "outcome"), cells(rules.CONNECTION_TABLE))
def test_every_frame_in_every_connection_state(state: str, frame: str, outcome: str) -> None:
    script = in_connection_state(state)
    frames = amqp_frames(HANDLE, False) | sasl_frames()
    assert outcome_of(script, frames[frame]) == outcome


@pytest.mark.parametrize(("state", "frame", "outcome"), cells(rules.SESSION_TABLE))
def test_every_frame_in_every_session_state(state: str, frame: str, outcome: str) -> None:
    script = in_session_state(state)
    frames = amqp_frames(FREE_HANDLE, state == "BEGIN_SENT") | sasl_frames()
    assert outcome_of(script, frames[frame]) == outcome
    assert_bystander_lives(script, frame, outcome)


@pytest.mark.parametrize(("state", "frame", "outcome"), cells(rules.LINK_TABLE))
def test_every_frame_in_every_link_state(state: str, frame: str, outcome: str) -> None:
    script = in_link_state(state)
    frames = amqp_frames(HANDLE, False) | sasl_frames()
    assert outcome_of(script, frames[frame]) == outcome
    assert_bystander_lives(script, frame, outcome)
    if outcome.startswith("link "):
        session = script.connection.sessions_by_remote_channel[SUBJECT]
        assert session.state == SESSION_MAPPED
        assert session.links_by_remote_handle[SENDING_HANDLE].is_open


def assert_bystander_lives(script: Script, frame: str, outcome: str) -> None:
    """What is neither a fault of the connection nor its close leaves the other sessions and their links alone."""
    if outcome.startswith("connection ") or frame == "close" or not script.connection.is_server:
        return
    bystander = script.connection.sessions_by_remote_channel[BYSTANDER]
    assert bystander.state == SESSION_MAPPED
    assert bystander.links_by_remote_handle[0].is_open
    script.events.clear()
    script.transfer(0, 1, channel=BYSTANDER)
    assert [type(event).__name__ for event in script.events] == ["TransferReceived"]


def test_the_tables_name_every_state_and_every_frame() -> None:
    assert len(rules.FRAMES) == 9 + 5
    for table in rules.TABLES:
        assert len(table.cells) == len(table.meanings) * len(rules.FRAMES)


def test_the_document_is_what_the_tables_say() -> None:
    assert DOCUMENT.read_text() == rules.render(), "write it with: python -m tests.amqp.test_matrix"


if __name__ == "__main__":
    DOCUMENT.write_text(rules.render())
