"""The audit log: who, from where, what; on one line, bounded, without a secret (S22)."""

import logging

import pytest

from spillway.dialect.rights import AccessBook, AccessRule
from spillway.model.access import SEND
from spillway.server.audit import REFUSALS_BURST, REFUSALS_PER_S, AuditLog, ClientAudit
from spillway.testing.clock import FakeClock


@pytest.fixture
def book() -> AccessBook:
    made = AccessBook()
    made.put("orders", [AccessRule("sender", SEND, "key")])
    return made


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spillway.audit")


def test_a_line_says_who_from_where_and_what(book: AccessBook, caplog: pytest.LogCaptureFixture) -> None:
    audit = ClientAudit(AuditLog("ns", book, FakeClock()), "10.0.0.7")
    audit.refused("put-token", "sender", "orders", "ExpiredToken: over.")
    audit.done("com.microsoft:batch-delete-messages", "sender", "orders")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            'refused namespace=ns what=put-token rule=sender client=10.0.0.7 path=orders text="ExpiredToken: over."',
        ),
        ("INFO", "done namespace=ns what=com.microsoft:batch-delete-messages rule=sender client=10.0.0.7 path=orders"),
    ]


@pytest.mark.parametrize(
    "name", ["the-key-pasted-as-the-name", "sender\nWARNING forged line", "x" * 10_000, "key" + "," * 8_000]
)
def test_a_name_that_no_rule_has_is_not_repeated(book: AccessBook, caplog: pytest.LogCaptureFixture, name: str) -> None:
    AuditLog("ns", book, FakeClock()).refused("h", "attach", name, "orders", "no")
    (record,) = caplog.records
    assert "rule=unknown" in record.getMessage()
    assert len(record.getMessage()) < 200


def test_what_a_client_made_up_stays_on_its_line_and_is_cut(book: AccessBook, caplog: pytest.LogCaptureFixture) -> None:
    AuditLog("ns", book, FakeClock()).refused("h", "attach", "", 'a"\n2024 WARNING forged\x1b[31m' + "é" * 9_999, "no")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 2_000


def test_a_flood_writes_a_bounded_number_of_lines_and_how_many_it_left_out(
    book: AccessBook, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    audit = AuditLog("ns", book, clock)
    for _ in range(10_000):
        audit.refused("h", "put-token", "", "orders", "no")
    assert len(caplog.records) == REFUSALS_BURST
    audit.done("h", "DELETE", "sender", "orders")
    assert len(caplog.records) == REFUSALS_BURST + 1, "what administrators do is not drowned by it"
    clock.advance(1_000)
    for _ in range(100):
        audit.refused("h", "put-token", "", "orders", "no")
    assert len(caplog.records) == REFUSALS_BURST + 1 + REFUSALS_PER_S
    assert f"({10_000 - REFUSALS_BURST} more before this one were not written)" in caplog.records[-5].getMessage()
    assert "more before" not in caplog.records[-4].getMessage()
