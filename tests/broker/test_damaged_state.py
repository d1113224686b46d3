"""A session whose state is damaged in the store: who asks for it is told so, its messages are received as ever."""

from spillway.broker.commands import AttachReceiver, Credit, GetSessionState, SessionWish, SetSessionState
from spillway.broker.effects import Attached, Deliver, Done, Failed, Report, SessionState
from spillway.broker.refill import report_corrupt
from spillway.model.entity import EntitySettings
from spillway.model.errors import InternalError
from spillway.model.records import Rows
from spillway.testing.core import message
from tests.broker.line import Line

HOLDER = 50


class DamagedStates(Line):
    """The store cannot read a state that was there before."""

    are_damaged = True

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        for row in rows.sessions:
            row.is_state_known = not self.are_damaged
        super().on_loaded(ticket, rows)


def ordered() -> EntitySettings:
    settings = EntitySettings()
    settings.requires_session = True
    return settings


def test_a_damaged_state_is_an_error_until_it_is_set_anew() -> None:
    line = DamagedStates(ordered())
    line.send(message(b"x", session_id="one"))
    (attached,) = line.apply(AttachReceiver(HOLDER, "q", False, SessionWish("one", 0)))
    assert isinstance(attached, Attached)
    (delivery,) = [effect for effect in line.apply(Credit(HOLDER, 1, False)) if isinstance(effect, Deliver)]
    assert delivery.stored.message.raw == b"x"
    (failed,) = line.apply(GetSessionState(1, "q", "one"))
    assert isinstance(failed, Failed) and isinstance(failed.error, InternalError)
    assert "damaged in the store" in failed.error.description
    (done,) = line.apply(SetSessionState(2, "q", "one", b"anew"))
    assert isinstance(done, Done)
    line.are_damaged = False
    (state,) = line.apply(GetSessionState(3, "q", "one"))
    assert isinstance(state, SessionState) and state.state == b"anew"


def test_a_damaged_message_is_said_once() -> None:
    line = Line()
    rows = Rows([])
    rows.corrupt = [7]
    queue = line.namespace.directory.queues["q"]
    decided = line.namespace.apply([], line.now_ms)
    report_corrupt(queue, rows, decided)
    report_corrupt(queue, rows, decided)
    assert len([effect for effect in decided.effects if isinstance(effect, Report)]) == 1
