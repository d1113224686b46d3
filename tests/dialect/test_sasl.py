import pytest

from spillway.amqp.events import ConnectionClosed, SaslFinished
from tests.dialect.visit import KEY, ROOT, Visit


def plain(name: str, key: str) -> bytes:
    return b"\x00" + name.encode() + b"\x00" + key.encode()


def outcome(mechanism: str, response: bytes, is_plain_allowed: bool = True) -> tuple[int, bool]:
    visit = Visit(mechanism, response, is_plain_allowed=is_plain_allowed)
    return visit.take(SaslFinished).code, visit.peer.is_authorised


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS"])
def test_anonymous_and_mssbcbs_are_let_in_without_rights(mechanism: str) -> None:
    assert outcome(mechanism, b"") == (0, False)


def test_javascript_sends_its_key_name_with_anonymous() -> None:
    assert outcome("ANONYMOUS", b"\x00" + ROOT.encode()) == (0, False)


def test_plain_with_a_rules_name_and_key_authorises_the_connection() -> None:
    assert outcome("PLAIN", plain(ROOT, KEY)) == (0, True)


@pytest.mark.parametrize(
    "response",
    [
        plain(ROOT, "wrong"),
        plain("nobody", KEY),
        b"",
        b"\x00",
        plain(ROOT, KEY) + b"\x00x",
        b"\x00\xff\x00\xff",
        b"x" * 400,
    ],
)
def test_plain_with_anything_else_is_refused_and_closed(response: bytes) -> None:
    visit = Visit("PLAIN", response)
    assert visit.take(SaslFinished).code == 1
    assert visit.has(ConnectionClosed)
    assert visit.peer.is_closed
    assert not visit.peer.is_authorised


def test_plain_is_refused_where_it_would_travel_in_clear_text() -> None:
    assert outcome("PLAIN", plain(ROOT, KEY), is_plain_allowed=False) == (1, False)


def test_external_is_refused() -> None:
    assert outcome("EXTERNAL", b"") == (1, False)
