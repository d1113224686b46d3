"""A store of format 4, which had the rules of a subscription in its settings, becomes one of this format."""

import json
import logging
import shutil
from pathlib import Path
from typing import Final

import apsw
import pytest

from spillway.broker.namespace import Namespace
from spillway.broker.topic import Subscription
from spillway.model.entity import DEAD_LETTER_QUEUE, QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, dead_letter_path
from spillway.model.records import Counters, EntityPut, EntityRow
from spillway.model.rules import CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from spillway.store.carry_over import carry_over
from spillway.store.catalogue import counters_checksum, meta_checksum, put_checksum
from spillway.store.check import check
from spillway.store.errors import StoreDamaged
from spillway.store.file import APPLICATION_ID, FORMAT, PAGE_BYTES
from spillway.store.rows import columns_of, row_key
from spillway.store.sqlite import SqliteJournal
from spillway.store.statements import STATEMENTS
from tests.store.listening import Desk, everything, numbers, stored

SCHEMA_4: Final = (Path(__file__).parent / "format_4.sql").read_text(encoding="utf-8")
NEWS: Final = "news/Subscriptions/all"
RULES: Final = [
    Rule("zebra", SqlFilter("n = 1"), SqlAction("SET a = 'ä'"), 500),
    Rule("$Default", TrueFilter(), None, 501),
    Rule("apple", CorrelationFilter(label="x"), None, 502),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Queue 1 with a message, topic 3, subscription 4 with rules and 6 without; each has its dead letters behind it."""
    path = tmp_path / "journal.db"
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.execute(SCHEMA_4)
    meta = (4, 123_456, 7, 0, 1_000)
    connection.execute(STATEMENTS["put_meta"], (*meta, meta_checksum(*meta)))
    plain, ruled = EntitySettings(), EntitySettings()
    plain.user_metadata = "kept"
    ruled.rules = RULES
    for entity_id, kind, name, settings, parent_id in (
        (1, QUEUE, "orders", plain.to_json(), 0),
        (2, DEAD_LETTER_QUEUE, dead_letter_path("orders"), plain.to_json_without_rules(), 1),
        (3, TOPIC, "news", plain.to_json(), 0),
        (4, SUBSCRIPTION, NEWS, ruled.to_json(), 3),
        (5, DEAD_LETTER_QUEUE, dead_letter_path(NEWS), ruled.to_json(), 4),
        (6, SUBSCRIPTION, "news/Subscriptions/none", plain.to_json(), 3),
        (7, DEAD_LETTER_QUEUE, dead_letter_path("news/Subscriptions/none"), plain.to_json_without_rules(), 6),
    ):
        put = EntityPut(entity_id, kind, name, settings, parent_id)
        columns = (entity_id, kind, name, settings, parent_id, put_checksum(put))
        counters = Counters()
        if entity_id == 1:
            counters.active, counters.last_sequence_number = 1, 1
        connection.execute(STATEMENTS["put_entity"], (*columns, counters_checksum(entity_id, Counters())))
        numbers_of = (counters.last_sequence_number, counters.active, 0, 0, 0, 0, 0)
        checksum = counters_checksum(entity_id, counters)
        connection.execute(STATEMENTS["put_counters"], (*numbers_of, checksum, entity_id))
    message = columns_of(row_key(1, 1), stored(1))
    connection.execute(STATEMENTS["insert_message"], (message[0], *message[3:]))
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 4)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    return path


def by_id(path: Path) -> dict[int, EntityRow]:
    journal = SqliteJournal(path)
    found = {row.put.entity_id: row for row in journal.recover().entities}
    journal.close()
    return found


def format_of(path: Path) -> tuple[int, int]:
    """In the header and in the table."""
    connection = apsw.Connection(str(path))
    ((said,),) = connection.execute("SELECT format FROM meta").fetchall()
    version = int(connection.pragma("user_version"))
    connection.close()
    return version, int(str(said))


def assert_carried_over(path: Path) -> None:
    rows = by_id(path)
    assert format_of(path) == (FORMAT, FORMAT)
    assert [(rule.name, rule.problem) for rule in rows[4].rules] == [(rule.name, "") for rule in RULES]
    assert [json.loads(rule.text) for rule in rows[4].rules] == [rule.to_plain() for rule in RULES]
    assert [row.put.entity_id for row in rows.values() if row.rules] == [4]
    assert all("rules" not in json.loads(row.put.settings) for row in rows.values())
    assert json.loads(rows[1].put.settings)["user_metadata"] == "kept"
    assert all(row.problem == "" for row in rows.values())
    assert [finding for finding in check(path) if "size" not in finding] == []


def test_rules_get_rows_of_their_own_in_the_order_they_had(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert_carried_over(path)
    assert caplog.text.count("format 4 was carried over to format 6") == 1
    journal = SqliteJournal(path)
    catalogue = journal.recover()
    assert (catalogue.clock_ms, catalogue.last_entity_id, catalogue.created_ms) == (123_456, 7, 1_000)
    subscription = Namespace("test", catalogue, b"12345678").directory.find(NEWS)
    assert isinstance(subscription, Subscription)
    assert [rule.to_plain() for rule in subscription.settings.rules] == [rule.to_plain() for rule in RULES]
    desk = Desk(journal).start()
    assert numbers(desk.ask(everything(1))) == [1]
    journal.close()
    assert journal.set_apart_count == 0


def test_a_crash_at_any_moment_leaves_the_one_format_or_the_other(path: Path, tmp_path: Path) -> None:
    """What the disk has when the transaction is about to end, and when it has ended and nothing is copied yet."""
    connection = apsw.Connection(str(path))
    moments: list[Path] = []

    def keep(*_: object) -> int:
        moments.append(tmp_path / f"crash-{len(moments)}")
        shutil.copytree(path.parent, moments[-1], ignore=shutil.ignore_patterns("crash-*", "*-shm"))
        return 0

    def before(*_: object) -> bool:
        keep()
        return False

    connection.set_commit_hook(before)
    connection.set_wal_hook(keep)
    connection.pragma("cache_size", 5)  # pages go to the log before the transaction ends
    carry_over(connection, 4, FORMAT)
    assert len(moments) == 2
    shutil.copytree(path.parent, tmp_path / "crash-torn", ignore=shutil.ignore_patterns("crash-*", "*-shm"))
    connection.close()
    log = tmp_path / "crash-torn" / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-100])  # the frame that ends the transaction did not get there whole
    for moment in (*moments, tmp_path / "crash-torn"):
        assert_carried_over(moment / "journal.db")


def test_a_subscription_whose_settings_were_damaged_dead_letters_instead_of_getting_nothing(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE entity SET settings = replace(settings, 'zebra', 'other') WHERE id = 4")
    connection.close()
    for _ in range(2):
        rows = by_id(path)
        assert rows[4].problem == "", "its settings are made anew from its dead-letter queue"
        ((name, problem),) = [(rule.name, rule.problem) for rule in rows[4].rules]
        assert name == "$Default" and "set it apart" in problem
        assert rows[6].rules == []


def test_settings_that_are_not_understood_are_left_as_they_are(path: Path) -> None:
    settings = '{"rules": [{"no": "name"}]}'
    connection = apsw.Connection(str(path))
    put = EntityPut(4, SUBSCRIPTION, NEWS, settings, 3)
    connection.execute(STATEMENTS["put_settings"], (settings, put_checksum(put), 4))
    connection.close()
    rows = by_id(path)
    assert rows[4].put.settings == settings and rows[4].rules == []
    journal = SqliteJournal(path)
    namespace = Namespace("test", journal.recover(), b"12345678")
    journal.close()
    assert NEWS.lower() in namespace.directory.apart and namespace.directory.find("news") is not None


def test_a_file_of_format_4_with_other_tables_is_refused(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE more (id INTEGER)")
    connection.close()
    with pytest.raises(StoreDamaged, match="its tables are not those of this format"):
        SqliteJournal(path).recover()
    assert format_of(path) == (4, 4)
