"""A row that cannot be read stops nothing: it is set apart, said once, and can be read out. Table by column."""

import base64
import json
import logging
from pathlib import Path
from typing import Final

import apsw
import pytest

from spillway.broker.namespace import Namespace
from spillway.model.entity import DEAD_LETTER_QUEUE, QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, dead_letter_path
from spillway.model.errors import EntityNotFound
from spillway.model.ledger import SEND, LedgerRow, Tally
from spillway.model.message import DEFERRED, SCHEDULED, Message, StoredMessage
from spillway.model.message_ids import pack_id, place_of
from spillway.model.records import (
    Counters,
    EntityPut,
    EntityRemoved,
    LoadActive,
    LoadActiveOfSessions,
    LoadDue,
    LoadEntity,
    LoadExpired,
    LoadFrom,
    LoadIds,
    LoadIndexedIds,
    LoadLedger,
    LoadNumbers,
    LoadOldIds,
    LoadSession,
    LoadSessionNames,
    LoadSessions,
    MessageAdded,
    MessageChanged,
    MessageIdSeen,
    MessageIdsIndexed,
    MessageRemoved,
    Query,
    RulePut,
    RuleRemoved,
    SessionStatePut,
    Turn,
)
from spillway.model.rules import Rule, SqlFilter
from spillway.store.check import check
from spillway.store.errors import StoreReadFailed, explain
from spillway.store.file import open_file
from spillway.store.set_apart import COLUMNS, NAME, SetApart, read_set_apart, text_of
from spillway.store.sqlite import SqliteJournal
from tests.store.listening import ALL, Desk, added, copies, everything, long_message, numbers, opened

# Queue 1 and its dead letters 2, topic 3, subscription 4 and its 5, queue 6 with sessions and its 7; 9 is removed.
IDS: Final = (1, 2, 3, 4, 5, 6, 7)
RULES: Final = {number: Rule(f"r{number}", SqlFilter(f"n = {number}"), None, 1_000) for number in (1, 2, 3)}
DAMAGES: Final = ("1234567", "-5", "'text'", "x'ff00fe'", "CAST(x'ff00fe' AS TEXT)", "NULL", "2.5")


def put(entity_id: int, kind: str, path: str, settings: EntitySettings, parent_id: int = 0) -> EntityPut:
    return EntityPut(entity_id, kind, path, settings.to_json_without_rules(), parent_id)


def holding(count: int, last: int) -> Counters:
    made = Counters()
    made.active = count
    made.last_sequence_number = last
    return made


def of_session(number: int, session_id: str) -> MessageAdded:
    message = Message(b"of a session")
    message.session_id = session_id
    made = StoredMessage(message, number, 1_000)
    made.session_id = session_id
    return MessageAdded(6, made)


def digest(number: int) -> bytes:
    return b"%016d" % number


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with a row in every table, as bytes."""
    path = tmp_path_factory.mktemp("sound") / "journal.db"
    desk = opened(path)
    plain, ordered = EntitySettings(), EntitySettings()
    ordered.requires_session = True
    turn = Turn(1_000)
    turn.add([put(1, QUEUE, "orders", plain), put(2, DEAD_LETTER_QUEUE, dead_letter_path("orders"), plain, 1)])
    turn.add([put(3, TOPIC, "news", plain), put(4, SUBSCRIPTION, "news/Subscriptions/all", plain, 3)])
    turn.add([put(5, DEAD_LETTER_QUEUE, dead_letter_path("news/Subscriptions/all"), plain, 4)])
    turn.add([RulePut(4, number, f"r{number}", RULES[number].to_json()) for number in RULES])
    turn.add([put(6, QUEUE, "carts", ordered), put(7, DEAD_LETTER_QUEUE, dead_letter_path("carts"), ordered, 6)])
    turn.add([put(9, QUEUE, "gone", plain)])
    turn.add([added(1, number, b"x" * 50, time_ms=5_000_000_000_000) for number in range(1, 5)])
    turn.add([added(1, 5, b"later", SCHEDULED, 5_000_000_000_000), added(1, 6, b"put away")])
    turn.add([MessageChanged(1, 6, DEFERRED, 1, None)])
    turn.add(list(copies(long_message("shared"), (4, 1), (4, 2))))
    turn.add(
        [of_session(1, "a"), of_session(2, "a"), of_session(3, "b"), SessionStatePut(6, "a", b"state of a", 1_000)]
    )
    turn.add([added(9, number) for number in range(1, 4)])
    turn.add([MessageIdSeen(1, number, pack_id(digest(number), place_of(number, 1_000))) for number in range(1, 7)])
    counters = holding(4, 6)
    counters.deferred = counters.scheduled = 1
    turn.counters = {1: counters, 4: holding(2, 2), 6: holding(3, 3)}
    tally = Tally("orders", 1)
    tally.send(5)
    turn.tallies = {1: tally.pack()}
    turn.ledger = [LedgerRow(30_000_000, "orders", SEND, 1, 1, 5)]
    desk.submit(turn)
    desk.settle()
    later = Turn(1_001)
    later.add([MessageIdsIndexed(1, 6, 1_000)])
    later.seals_before = 1_440
    desk.submit(later)
    desk.settle()
    desk.journal.close()
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO removed VALUES (9)")
    connection.execute("DELETE FROM entity WHERE id = 9")
    assert connection.execute("SELECT count(*) FROM ledger_sealed").fetchall() == [(1,)]
    connection.close()
    assert [finding for finding in check(path) if "size" not in finding] == []
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, sound: bytes) -> Path:
    path = tmp_path / "journal.db"
    path.write_bytes(sound)
    return path


def columns_of(table: str) -> list[str]:
    connection = apsw.Connection(":memory:")
    from spillway.store.statements import SCHEMA

    connection.execute(SCHEMA)
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]


TABLES: Final = {
    "message": "key = (1 << 40) + 2",
    "parked": "key = (1 << 40) + 5",
    "session": "session_id = 'a'",
    "body": "1",
    "body_count": "1",
    "accepted_id": "1",
    "id_index": f"digest = x'{digest(3).hex()}'",
    "id_indexed": "1",
    "entity": "id = 1",
    "rule": "number = 2",
    "ledger": "1",
    "ledger_sealed": "1",
    "removed": "1",
    "meta": "1",
}
# No count is as good as none: the entity has counted nothing since its last row. Tables of one row do not go by its id.
HARMLESS: Final = {
    ("entity", "tally", "NULL"),
    *(("ledger_sealed", "id", value) for value in DAMAGES),
    *(("meta", "id", value) for value in DAMAGES),
}
CELLS: Final = [(table, column) for table in TABLES for column in columns_of(table)]


def damage(path: Path, table: str, column: str, value: str) -> bool:
    """False: SQLite itself would not have it, or it is what was there."""
    connection = apsw.Connection(str(path))
    try:
        same = f"SELECT count(*) FROM {table} WHERE {TABLES[table]} AND {column} IS {value}"
        if connection.execute(same).fetchall() != [(0,)]:
            return False
        connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {TABLES[table]}")
        assert connection.changes() > 0
    except (apsw.MismatchError, apsw.ConstraintError):
        return False
    finally:
        connection.close()
    return True


def questions(entity_id: int) -> list[Query]:
    return [
        LoadEntity(entity_id),
        LoadActive(entity_id, 0, ALL, ALL),
        LoadActive(entity_id, 0, ALL, ALL, "a"),
        LoadActiveOfSessions(entity_id, {"a": 0, "b": 0}, ALL, ALL),
        LoadFrom(entity_id, 0, ALL, ALL),
        LoadDue(entity_id, 9_000_000_000_000, ALL, ALL),
        LoadExpired(entity_id, 9_000_000_000_000, ALL, ALL),
        LoadNumbers(entity_id, [1, 2, 3, 4, 5, 6], ALL),
        LoadSession(entity_id, "a"),
        LoadSessions(entity_id, 100),
        LoadSessionNames(entity_id, 0, 0, 100),
        LoadSessionNames(entity_id, 1, 0, 100),
        LoadIds(entity_id, 0, ALL, True),
        LoadOldIds(entity_id, ALL, ALL),
        LoadIndexedIds(entity_id, [digest(number) for number in range(1, 7)]),
    ]


def live(path: Path) -> int:
    """A whole life: everything is read and something is written everywhere. How many rows are set apart after it."""
    journal = SqliteJournal(path, synchronous="OFF")
    Namespace("test", journal.recover(), b"12345678")  # an entity without a sound row is out of service, no more
    desk = Desk(journal).start()
    for entity_id in IDS:
        for query in questions(entity_id):
            desk.ask(query)
    desk.ask(LoadLedger(0, 1 << 40, (-1, "", -1), 100))
    turn = Turn(2_000)
    for entity_id in IDS:
        turn.add([added(entity_id, 1 << 33)])
        turn.counters[entity_id] = holding(1, 1 << 33)
    turn.add([of_session((1 << 33) + 1, "a"), MessageRemoved(6, 3, "b"), SessionStatePut(6, "c", b"of c", 2_000)])
    turn.add([MessageIdSeen(1, 1 << 33, pack_id(digest(9), place_of(1 << 33, 2_000)))])
    turn.add([MessageIdsIndexed(1, 1 << 33, 2_000)])
    turn.ledger = [LedgerRow(30_000_000, "orders", SEND, 1, 1, 5)]
    turn.seals_before = 30_001_440
    turn.add([RulePut(4, 9, "r9", RULES[1].to_json()), RuleRemoved(4, 9)])
    desk.submit(turn)
    desk.settle()
    assert not desk.failures
    count = journal.set_apart_count
    journal.close()
    return count


@pytest.mark.parametrize(("table", "column"), CELLS)
def test_whatever_a_column_says_the_store_starts_answers_and_writes(path: Path, table: str, column: str) -> None:
    sound = path.read_bytes()
    for value in DAMAGES:
        path.write_bytes(sound)
        path.with_name("journal.db-wal").unlink(missing_ok=True)
        path.with_name(NAME).unlink(missing_ok=True)
        if not damage(path, table, column, value):
            continue
        findings = check(path)
        count = live(path)
        kept = list(read_set_apart(path.with_name(NAME)))
        assert len(kept) == count, value
        again = live_again(path)
        assert again == count, f"{value}: it is said once"
        if count == 0 and (table, column, value) not in HARMLESS:
            assert findings, f"{table}.{column} = {value} was passed over in silence"


def live_again(path: Path) -> int:
    journal = SqliteJournal(path, synchronous="OFF")
    Namespace("test", journal.recover(), b"12345678")
    desk = Desk(journal).start()
    for entity_id in IDS:
        for query in questions(entity_id):
            desk.ask(query)
    assert not desk.failures
    journal.close()
    return journal.set_apart_count


def test_a_row_set_apart_can_be_read_out_with_all_its_bytes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(path, "message", "raw", "x'00ff00'")
    desk = opened(path)
    with caplog.at_level(logging.ERROR):
        assert desk.ask(everything(1)).corrupt == [2]
        assert desk.ask(everything(1)).corrupt == [2]
    desk.journal.close()
    (row,) = read_set_apart(path.with_name(NAME))
    assert (row["table"], row["entity"], row["number"]) == ("message", "orders", 2)
    assert base64.b64decode(row["columns"]["raw"]["base64"]) == b"\x00\xff\x00"
    assert set(row["columns"]) == set(COLUMNS["message"])
    assert text_of(row) == "message 2 of orders: its checksum does not hold"
    assert caplog.text.count("message 2 of orders") == 1
    assert path.with_name(NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("entity_id", [1, 2, 4, 5, 6, 7])
def test_a_queue_and_its_dead_letters_are_made_anew_from_each_other(path: Path, entity_id: int) -> None:
    before = puts_of(path)
    connection = apsw.Connection(str(path))
    connection.execute(
        "UPDATE entity SET settings = 'no json', path = 'other', kind = 'what' WHERE id = ?", (entity_id,)
    )
    connection.close()
    assert puts_of(path) == before
    assert puts_of(path) == before  # and it is written
    assert check(path) == []


def puts_of(path: Path) -> list[tuple[object, ...]]:
    journal = SqliteJournal(path)
    found: list[tuple[object, ...]] = [
        (row.put.entity_id, row.put.kind, row.put.path, row.put.settings, row.put.parent_id, row.problem)
        for row in journal.recover().entities
    ]
    journal.close()
    return found


def test_a_topic_that_cannot_be_read_is_out_of_service_with_its_subscriptions_and_nothing_else(path: Path) -> None:
    damage_topic = apsw.Connection(str(path))
    damage_topic.execute("UPDATE entity SET settings = '{}' WHERE id = 3")
    damage_topic.close()
    journal = SqliteJournal(path)
    namespace = Namespace("test", journal.recover(), b"12345678")
    find = namespace.directory.find
    assert find("orders") is not None and find("carts") is not None
    assert find("news") is None and find("news/Subscriptions/all") is None
    assert [apart.path for apart in namespace.incidents.families()] == ["news"]
    assert not isinstance(namespace.directory.not_found("news"), EntityNotFound)
    journal.close()


def rules_of(path: Path) -> list[tuple[int, str, bool]]:
    """Of the subscription: number, name, whether it can be read."""
    journal = SqliteJournal(path)
    (row,) = [row for row in journal.recover().entities if row.put.entity_id == 4]
    journal.close()
    return [(rule.number, rule.name, not rule.problem) for rule in row.rules]


@pytest.mark.parametrize("column", ["rule", "checksum", "name", "number"])
def test_a_rule_that_cannot_be_read_keeps_its_place_and_is_said_until_it_is_removed(path: Path, column: str) -> None:
    damage(path, "rule", column, "x'ff00fe'")
    found = rules_of(path)
    assert rules_of(path) == found, "and it is written"
    (lost,) = [(number, name) for number, name, is_sound in found if not is_sound]
    assert lost == {"name": (2, "unreadable-2"), "number": (4, "r2")}.get(column, (2, "r2"))
    assert [number for number, _, is_sound in found if is_sound] == [1, 3]
    (row,) = read_set_apart(path.with_name(NAME))
    assert (row["table"], row["entity"]) == ("rule", "news/Subscriptions/all")
    assert set(row["columns"]) == set(COLUMNS["rule"])
    (finding,) = check(path)
    assert finding.startswith(f"rule '{lost[1]}' of news/Subscriptions/all: it could not be read")
    desk = opened(path)
    desk.submit_records(RuleRemoved(4, lost[0]))
    desk.settle()
    desk.journal.close()
    assert check(path) == []
    assert rules_of(path) == [(1, "r1", True), (3, "r3", True)]


@pytest.mark.parametrize("elsewhere", ["1", "1234567", "'text'", "x'ff00fe'", "CAST(x'ff00fe' AS TEXT)"])
def test_a_rule_whose_key_says_another_entity_is_put_back(path: Path, elsewhere: str) -> None:
    damage(path, "rule", "entity_id", elsewhere)
    for _ in range(2):
        assert rules_of(path) == [(1, "r1", True), (2, "r2", True), (3, "r3", True)]
    assert len(list(read_set_apart(path.with_name(NAME)))) == 1
    assert check(path) == []


def test_a_subscription_made_anew_from_its_dead_letters_has_its_rules(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE entity SET settings = 'no json' WHERE id = 4")
    connection.close()
    assert rules_of(path) == [(1, "r1", True), (2, "r2", True), (3, "r3", True)]


def test_a_damaged_session_keeps_its_messages_and_its_state_is_not_known_until_it_is_set(path: Path) -> None:
    damage(path, "session", "active", "77")
    desk = opened(path)
    (row,) = desk.ask(LoadSession(6, "a")).sessions
    assert (row.active, row.is_state_known) == (2, False)
    assert {each.session_id for each in desk.ask(LoadSessions(6, 10)).sessions} == {"a", "b"}
    desk.submit_records(of_session(4, "a"))
    (row,) = desk.ask(LoadSession(6, "a")).sessions
    assert (row.active, row.is_state_known) == (3, False)
    desk.submit_records(SessionStatePut(6, "a", b"anew", 3_000))
    (row,) = desk.ask(LoadSession(6, "a")).sessions
    assert (row.active, row.is_state_known, row.state) == (3, True, b"anew")
    desk.journal.close()


def test_an_entity_said_to_be_removed_that_is_there_keeps_its_messages(path: Path) -> None:
    damage(path, "removed", "entity_id", "1")
    desk = opened(path)
    assert numbers(desk.ask(everything(1))) == [1, 2, 3, 4, 5, 6]
    desk.settle()
    assert numbers(desk.ask(everything(1))) == [1, 2, 3, 4, 5, 6]
    desk.journal.close()


def test_what_cannot_be_written_for_want_of_space_is_written_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = SetApart(tmp_path / "no such directory" / NAME)
    apart.note("message", 1, (1,), "damaged", "orders", 1)
    assert apart.count == 1
    (tmp_path / "no such directory").mkdir()
    apart.note("message", 2, (2,), "damaged", "orders", 2)
    assert [row["number"] for row in read_set_apart(tmp_path / "no such directory" / NAME)] == [1, 2]


def test_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / NAME
    apart = SetApart(place)
    apart.note("message", 1, (1,), "damaged", "orders", 1)
    with place.open("ab") as file:
        file.write(b'{"table": "mess')
    assert SetApart(place).count == 1


# -- errors of reading ------------------------------------------------------------------------------------------------


def test_an_input_or_output_error_on_a_read_is_not_called_damage(path: Path) -> None:
    disk = UnreadableDisk()
    desk = opened(path, vfs=disk.disk_name)
    disk.is_unreadable = True
    desk.load(everything(4))
    error = desk.wait_for_failure()
    assert isinstance(error, StoreReadFailed), error
    assert "reading" in str(error) and "damaged" not in str(error)
    assert desk.journal.set_apart_count == 0
    desk.journal.close()
    disk.is_unreadable = False
    again = opened(path)
    assert numbers(again.ask(everything(1))) == [1, 2, 3, 4, 5, 6]
    again.journal.close()


def test_an_error_of_reading_at_the_start_says_so(path: Path) -> None:
    disk = UnreadableDisk()
    disk.is_unreadable = True
    with pytest.raises(StoreReadFailed, match="reading"):
        open_file(path, "FULL", disk.disk_name)
    assert json.dumps(check(path)) == "[]"
    assert explain(ValueError("x"), path).args == ("x",)


class UnreadableDisk(apsw.VFS):
    """Real files, of which nothing can be read while it `is_unreadable`."""

    def __init__(self) -> None:
        self.disk_name = f"unreadable-{id(self)}"
        self.is_unreadable = False
        super().__init__(self.disk_name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "UnreadableFile":  # noqa: N802
        return UnreadableFile(self, name, flags)


class UnreadableFile(apsw.VFSFile):
    def __init__(self, disk: UnreadableDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self.disk.is_unreadable:
            error = apsw.IOError("read: Input/output error")
            error.extendedresult = apsw.SQLITE_IOERR_READ  # type: ignore[attr-defined]
            raise error
        return super().xRead(amount, offset)

    def excepthook(self, *ignored: object) -> bool:
        return True


def test_a_removed_entity_is_not_looked_at(path: Path) -> None:
    desk = opened(path)
    assert numbers(desk.ask(everything(9))) == []
    desk.submit_records(EntityRemoved(1))
    desk.journal.close()
