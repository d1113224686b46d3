"""docs/limits.md says what the code does: every limit that can be set, with its default, and the fixed ones."""

import re
from pathlib import Path

import pytest

from spillway.model import limits, rules
from spillway.model.budget import connection_bytes_max, process_budget
from spillway.model.quotas import CAN_BE_OFF, SETTABLE, Quotas
from spillway.server.throttling import NEAR_PERCENT
from tests.dialect import test_held

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "limits.md").read_text(encoding="utf-8")
LINES = [line.strip("|") for line in PAGE.splitlines() if line.startswith("|")]
ROWS = [tuple(cell.strip() for cell in line.split("|")) for line in LINES]
SET = {row[0].strip("`"): row for row in ROWS if re.fullmatch(r"`[a-z-]+`", row[0])}
FIXED = {row[0]: row[1] for row in ROWS if row[0] not in SET}

KB = limits.KIB
MB = limits.MIB
SAID = {
    "a message": f"{limits.MESSAGE_BYTES_MAX // KB} KB",
    "a batch": f"{limits.BATCH_MESSAGES_MAX:,} messages",
    "all application properties of a message": f"{limits.PROPERTIES_BYTES_MAX // KB} KB",
    "one application property": f"{limits.PROPERTY_BYTES_MAX // KB} KB",
    "message id, session id, partition key": f"{limits.MESSAGE_ID_CHARS_MAX} characters",
    "dead-letter reason and description": f"{limits.DEAD_LETTER_TEXT_CHARS_MAX:,} characters",
    "the name of a queue or topic": f"{limits.ENTITY_NAME_CHARS_MAX} characters",
    "the name of a subscription or rule": f"{limits.SUBSCRIPTION_NAME_CHARS_MAX} characters",
    "user metadata of an entity": f"{limits.USER_METADATA_CHARS_MAX:,} characters",
    "an SQL filter or action": f"{rules.EXPRESSION_CHARS_MAX:,} characters",
    "lock duration": f"{limits.LOCK_DURATION_MS_MIN // 1000} s to {limits.LOCK_DURATION_MS_MAX // 60_000} minutes",
    "messages browsed in one request": f"{limits.PEEK_MESSAGES_MAX:,}",
    "lock tokens or sequence numbers in one request": f"{limits.LOCK_TOKENS_MAX:,}",
    "messages deleted in one request": f"{limits.BATCH_DELETE_MAX:,}",
    "messages locked by one receiver": f"{limits.UNSETTLED_PER_LINK_MAX:,}",
    "messages of a queue in memory": f"{limits.RESIDENT_MESSAGES_MAX:,}",
    "messages of a namespace in memory": f"{limits.RESIDENT_NAMESPACE_BYTES_MAX // MB} MB",
    "read and not yet on disk": f"{limits.PENDING_BYTES_PAUSE // MB} MB",
    "free disk space": f"{limits.DISK_RESERVE_BYTES // MB} MB",
    "a frame": f"{limits.FRAME_BYTES_MAX // KB} KB",
    "silence before the first byte": f"{limits.HEADER_TIMEOUT_MS // 1000} s",
    "time to show a token": f"{limits.TOKEN_TIMEOUT_MS // 1000} s",
    "frames of a connection before its first good token": f"{limits.UNAUTHENTICATED_FRAMES_PER_SECOND} a second",
    "bytes of such frames that wait": f"{limits.UNAUTHENTICATED_UNREAD_BYTES_MAX // KB} KB",
    "bad tokens of a connection": f"{limits.BAD_TOKENS_MAX}",
    "a connection that says nothing": f"{limits.IDLE_TIMEOUT_MS // 1000} s",
}


def test_every_limit_that_can_be_set_has_its_row_and_no_other() -> None:
    assert list(SET) == list(SETTABLE)


@pytest.mark.parametrize("name", [name for name in SETTABLE if name != "memory-mb"])
def test_the_default_of_each_is_the_one_in_use(name: str) -> None:
    default = Quotas().value(name)
    assert SET[name][1] == (f"{default:,}" if default else "none")


@pytest.mark.parametrize("name", SETTABLE)
def test_those_that_can_be_switched_off_say_so(name: str) -> None:
    assert ("May be 0" in SET[name][2]) == (name in CAN_BE_OFF)


@pytest.mark.parametrize("what", SAID)
def test_a_fixed_limit_has_the_value_that_is_said(what: str) -> None:
    assert FIXED[what] == SAID[what]


def test_the_texts_of_refusals_name_limits_that_there_are() -> None:
    sources = (Path(limits.__file__).parent.parent / "broker").glob("*.py")
    named = {name for path in sources for name in re.findall(r"\(limit ([a-z-]+)[);]", path.read_text("utf-8"))}
    assert named <= set(SETTABLE)
    assert len(named) >= 6


# -- what clients can make the broker hold ------------------------------------------------------------------------

HELD = [row for row in ROWS if len(row) == 5 and row[4].startswith("`test_")]
SHARES = {row[0]: row[1:] for row in ROWS if row[0] in ("all connections of the process", "one connection")}


def test_the_table_of_what_is_held_has_the_rows_that_its_test_walks() -> None:
    walked = {row[1] for row in HELD if row[4] == "`test_a_connection_that_holds_more_than_its_bound_is_closed`"}
    assert walked == set(test_held.ROWS)


def test_every_promise_of_it_names_a_test_that_there_is() -> None:
    root = Path(__file__).resolve().parent
    named = {row[4].strip("`") for row in HELD}
    defined: set[str] = set()
    for room in ("dialect", "hostile", "broker", "server", "admin"):
        for path in (root / room).glob("test_*.py"):
            defined.update(re.findall(r"def (test_\w+)", path.read_text("utf-8")))
    assert named <= defined, named - defined
    assert len(HELD) >= 25


def test_the_shares_are_those_in_use() -> None:
    quotas = Quotas()
    assert SHARES["all connections of the process"][1] == f"{quotas.held_bytes_max() // MB:,} MB"
    assert SHARES["one connection"][1] == f"{connection_bytes_max(process_budget(quotas)) // MB} MB"
    assert FIXED["locks of a namespace"] == "an eighth"
    assert f"| locks of a namespace | an eighth | {quotas.lock_bytes_max() // MB} MB |" in PAGE
    assert f"| rules of a namespace | an eighth | {quotas.rules_bytes_max() // MB:,} MB |" in PAGE
    assert f"| one connection without a token | {limits.UNAUTHENTICATED_HELD_BYTES_MAX // KB} KB |" in PAGE
    assert f"At {NEAR_PERCENT} % of `memory-mb`" in PAGE
    quotas.set("memory-mb", 800)
    parts = [quotas.held_bytes_max(), quotas.lock_bytes_max(), quotas.rules_bytes_max()]
    assert parts == [200 * MB, 100 * MB, 100 * MB]
