"""Flipped bytes, lost pages, foreign files: found and said, never served, never passed over in silence."""

import random
import shutil
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import apsw
import pytest

from spillway.model.message import DEFERRED, SCHEDULED
from spillway.model.message_ids import ID_BYTES, pack_id, place_of
from spillway.model.records import (
    LoadActive,
    LoadDue,
    LoadIds,
    LoadIndexedIds,
    LoadOldIds,
    MessageChanged,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    MessageMoved,
    Rows,
    Turn,
)
from spillway.store.check import check
from spillway.store.errors import StoreDamaged, StoreError, StoreTooNew, StoreTooOld
from spillway.store.file import CACHE_KIB
from spillway.store.sqlite import SqliteJournal
from tests.store.listening import ALL, Desk, added, counters, everything, fields, numbers, opened, queue_put

WRITER = Path(__file__).with_name("writer_process.py")
TURNS = 60


ID_COUNT = 600  # in rows of 100, of which the first two are indexed


def body(number: int) -> bytes:
    return b"body of message %05d " % number * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Forty active messages, ten deferred, ten scheduled, and ids of accepted ones, in a file without a log."""
    path = tmp_path / "journal.db"
    desk = opened(path)
    turn = Turn(1)
    turn.add([queue_put(1), queue_put(2)])
    turn.add([added(1, number, body(number)) for number in range(1, 51)])
    turn.add([added(1, number, body(number), SCHEDULED, 1_000 + number) for number in range(51, 61)])
    turn.add([MessageChanged(1, number, DEFERRED, 1, None) for number in range(41, 51)])
    turn.counters[1] = counters(40, 60)
    turn.counters[1].deferred = turn.counters[1].scheduled = 10
    desk.submit(turn)
    for first in range(0, ID_COUNT, 100):
        desk.submit_records(*(seen(number) for number in range(first + 1, first + 101)))
        desk.settle()
    desk.submit_records(MessageIdsIndexed(1, 200, 1_200))
    desk.journal.close()
    assert check(path) == []
    return path


def digest(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=16).digest()


def seen(number: int) -> MessageIdSeen:
    return MessageIdSeen(1, number, pack_id(digest(number), place_of(number, 1_000 + number)))


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def flip_body(path: Path, number: int) -> None:
    """In every copy: SQLite leaves some behind in unused space when it splits a page."""
    content = path.read_bytes()
    at = content.find(body(number))
    assert at > 0
    while at > 0:
        flip(path, at + 50)
        at = content.find(body(number), at + 1)


# -- one message --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [7, 45, 55])
def test_a_flipped_byte_in_a_message_is_reported_by_number_and_the_rest_is_served(path: Path, number: int) -> None:
    flip_body(path, number)
    desk = opened(path)
    rows = desk.ask(everything(1))
    desk.journal.close()
    assert rows.corrupt == [number]
    assert numbers(rows) == [other for other in range(1, 61) if other != number]
    assert check(path) == [f"message {number} of queue-1: its checksum does not hold"]


def test_a_damaged_message_is_reported_by_every_query_that_meets_it(path: Path) -> None:
    flip_body(path, 1)
    flip_body(path, 51)
    desk = opened(path)
    active = desk.ask(LoadActive(1, 0, 2, ALL))
    assert (active.corrupt, numbers(active), active.is_cut) == ([1], [2, 3], True)
    due = desk.ask(LoadDue(1, 1_052, ALL, ALL))
    assert (due.corrupt, numbers(due), due.next_ms) == ([51], [52], 1_053)
    desk.journal.close()


def test_a_damaged_message_stays_damaged_when_it_is_changed_and_moved(path: Path) -> None:
    flip_body(path, 7)
    flip_body(path, 8)
    desk = opened(path)
    desk.submit_records(MessageChanged(1, 7, DEFERRED, 1, None), MessageMoved(1, 8, 2, 1, 0, 0, 0, None))
    assert desk.ask(everything(1)).corrupt == [7]
    assert desk.ask(everything(2)).corrupt == [1]
    desk.journal.close()


# -- ids of accepted messages ---------------------------------------------------------------------------------------


def test_a_flipped_byte_among_ids_is_reported_and_the_other_rows_are_read(path: Path) -> None:
    flip(path, path.read_bytes().index(seen(350).packed) + 3)
    desk = opened(path)
    rows = desk.ask(LoadIds(1, 0, ALL, True))
    assert rows.corrupt == [400]
    assert served_ids(rows) == set(range(201, 301)) | set(range(401, ID_COUNT + 1))
    desk.journal.close()
    assert check(path) == ["ids of messages of queue-1 up to 400: their checksum does not hold"]


def test_damaged_ids_are_forgotten_with_the_next_sound_ones(path: Path) -> None:
    flip(path, path.read_bytes().index(seen(350).packed) + 3)
    desk = opened(path)
    rows = desk.ask(LoadOldIds(1, 1_450, ALL))
    assert rows.ids is not None
    assert (rows.ids.upto, rows.next_ms) == (300, 1_500)
    rows = desk.ask(LoadOldIds(1, 1_500, ALL))
    assert rows.ids is not None
    assert (rows.ids.upto, rows.next_ms) == (500, 1_600)
    desk.submit_records(MessageIdsForgotten(1, 500))
    assert served_ids(desk.ask(LoadIds(1, 0, ALL, True))) == set(range(501, ID_COUNT + 1))
    desk.journal.close()
    assert check(path) == []


def test_a_flipped_byte_in_the_index_of_ids_is_reported_and_found_by_the_check(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE id_index SET accepted_ms = accepted_ms + 1 WHERE sequence_number = 77")
    connection.close()
    desk = opened(path)
    rows = desk.ask(LoadIndexedIds(1, [digest(number) for number in (76, 77, 78)]))
    assert rows.corrupt == [77]
    assert served_ids(rows) == {76, 78}
    desk.journal.close()
    assert check(path) == ["an indexed id of queue-1: its checksum does not hold"]
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM id_index WHERE sequence_number = 77")
    connection.close()
    assert check(path) == ["the index of ids has 199 of them, the rows say 200, and they do not agree"]


def test_a_wrong_word_about_the_index_of_ids_is_set_right_by_the_index_itself(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE id_indexed SET upto = upto - 1")
    connection.close()
    desk = opened(path)
    rows = desk.ask(LoadIds(1, 0, ALL, True))
    assert rows.ids is not None
    assert (rows.ids.indexed_upto, rows.ids.indexed_ms) == (200, 1_200)
    assert desk.journal.set_apart_count == 1
    desk.journal.close()
    assert check(path) == []


# -- the file -----------------------------------------------------------------------------------------------------


def verdict(path: Path, sound: dict[int, tuple[object, ...]], id_count: int = 0) -> str:
    """What a broker would make of this file: `refused`, `stopped`, `reported` or `unharmed`. Silence is an error."""
    journal = SqliteJournal(path)
    try:
        journal.recover()
    except StoreError as error:
        assert str(path) in str(error)
        assert isinstance(error, (StoreTooNew, StoreTooOld)) or ".recover" in str(error)
        return "refused"
    desk = Desk(journal).start()
    ticket = desk.load(everything(1))
    id_tickets = [desk.load(LoadIds(1, 0, ALL, True)), desk.load(LoadIndexedIds(1, [digest(n) for n in range(1, 201)]))]
    while id_tickets[1] not in desk.rows and not desk.failures:
        desk.hear_one()
    journal.close()
    if desk.failures:
        assert isinstance(desk.failures[0], StoreDamaged)
        return "stopped"
    rows: Rows = desk.rows[ticket]
    for row in rows.messages:
        assert fields(row) == sound[row.sequence_number], "a wrong message was served"
    missing = set(sound) - set(numbers(rows))
    assert len(rows.corrupt) >= len(missing), f"{missing} are missing without a word"
    in_order, indexed = (desk.rows[id_ticket] for id_ticket in id_tickets)
    missing = set(range(201, id_count + 1)) - served_ids(in_order)
    assert not missing or in_order.corrupt, f"the ids {missing} are missing without a word"
    served_ids(indexed)  # whose digest is damaged is not found: `check` says so
    return "reported" if rows.corrupt or in_order.corrupt or indexed.corrupt else "unharmed"


def served_ids(rows: Rows) -> set[int]:
    """Their numbers; each must be as it was written."""
    assert rows.ids is not None
    records = rows.ids.records
    packed = {records[at : at + ID_BYTES] for at in range(0, len(records), ID_BYTES)}
    known = {seen(number).packed: number for number in range(1, ID_COUNT + 1)}
    assert packed <= set(known), "a wrong id was served"
    return {known[one] for one in packed}


def sound_rows(path: Path) -> dict[int, tuple[object, ...]]:
    desk = opened(path)
    rows = desk.ask(everything(1))
    desk.journal.close()
    return {row.sequence_number: fields(row) for row in rows.messages}


def test_wherever_a_byte_is_flipped_it_is_never_passed_over_in_silence(path: Path, tmp_path: Path) -> None:
    sound = sound_rows(path)
    size = path.stat().st_size
    chance = random.Random(4711)
    places = [chance.randrange(size) for _ in range(400)] + list(range(0, 100, 3))
    copy = tmp_path / "copy.db"
    verdicts = []
    for at in places:
        shutil.copyfile(path, copy)
        flip(copy, at, 1 << chance.randrange(8))
        verdicts.append(verdict(copy, sound, ID_COUNT))
        copy.with_name("copy.db-wal").unlink(missing_ok=True)
    assert verdicts.count("reported") > 100
    assert verdicts.count("refused") > 10


@pytest.mark.parametrize(("index", "bounds"), [("parked_due", (51, 60)), ("message_expiry", (1, 40))])
def test_a_flipped_byte_in_an_index_is_refused_and_the_index_can_be_made_anew(
    tmp_path: Path, index: str, bounds: tuple[int, int]
) -> None:
    """An index that lies would let a message expire or fall due at the wrong time, and nobody would know."""
    path = tmp_path / "timed.db"
    desk = opened(path)
    desk.submit_records(queue_put(1), *(added(1, number, b"", time_ms=70_000 + number) for number in range(1, 41)))
    desk.submit_records(*(added(1, number, b"", SCHEDULED, 70_000 + number) for number in range(51, 61)))
    desk.journal.close()
    sound = path.read_bytes()
    connection = apsw.Connection(str(path))
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (index,)).fetchall()
    connection.close()
    assert isinstance(page, int)
    for number in range(bounds[0], bounds[1] + 1, 3):
        time_bytes = (70_000 + number).to_bytes(3, "big")
        flip(path, sound.index(time_bytes, (page - 1) * 8192) + 1)
        with pytest.raises(StoreDamaged, match=f"REINDEX {index}"):
            SqliteJournal(path).recover()
        assert any(index in finding for finding in check(path))
        path.write_bytes(sound)
        path.with_name("timed.db-wal").unlink(missing_ok=True)
    flip(path, sound.index((70_000 + bounds[0]).to_bytes(3, "big"), (page - 1) * 8192) + 1)
    connection = apsw.Connection(str(path))
    connection.execute(f"REINDEX {index}")
    connection.close()
    again = opened(path)
    rows = again.ask(LoadDue(1, 70_055, ALL, ALL))
    again.journal.close()
    assert (numbers(rows), rows.next_ms) == ([51, 52, 53, 54, 55], 70_056)


def test_a_flipped_time_in_a_message_is_that_messages_damage_and_not_its_indexs(tmp_path: Path) -> None:
    path = tmp_path / "timed.db"
    desk = opened(path)
    desk.submit_records(queue_put(1), *(added(1, number, b"", time_ms=70_000 + number) for number in range(1, 41)))
    desk.journal.close()
    connection = apsw.Connection(str(path))
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'message'").fetchall()
    connection.close()
    assert isinstance(page, int)
    flip(path, path.read_bytes().index((70_007).to_bytes(3, "big"), (page - 1) * 8192) + 1)
    again = opened(path)
    rows = again.ask(everything(1))
    again.journal.close()
    assert rows.corrupt == [7] and len(rows.messages) == 39


def test_a_cut_file_is_refused(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    copy = tmp_path / "copy.db"
    for size in [0, 1, 100, 4096, *range(8192, len(content), 8192), len(content) - 1]:
        copy.write_bytes(content[:size])
        with pytest.raises(StoreDamaged, match="Restore a copy"):
            SqliteJournal(copy).recover()


def test_a_lost_page_is_refused(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    copy = tmp_path / "copy.db"
    for at in range(0, len(content), 8192):
        copy.write_bytes(content[:at] + bytes(8192) + content[at + 8192 :])
        with pytest.raises(StoreDamaged, match=r"\.recover"):
            SqliteJournal(copy).recover()


def test_a_damaged_tree_that_is_met_at_run_time_stops_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    desk = opened(path)
    count = 2 * CACHE_KIB // 60
    desk.submit_records(queue_put(1), *(added(1, number, b"x" * 60_000) for number in range(1, count + 1)))
    desk.journal.close()
    again = opened(path)
    with path.open("r+b") as file:
        file.seek(8192 * 20)
        file.write(bytes(path.stat().st_size - 8192 * 20))
    again.load(everything(1))
    error = again.wait_for_failure()
    assert isinstance(error, StoreDamaged) and str(path) in str(error)
    again.journal.close()


@pytest.mark.parametrize("content", [b"", b"no database at all " * 1_000])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"journal\.db is damaged"):
        SqliteJournal(path).recover()
    assert path.read_bytes() == content


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE message (key INTEGER PRIMARY KEY)")
    connection.close()
    with pytest.raises(StoreDamaged, match="Spillway"):
        SqliteJournal(path).recover()


def test_a_log_without_its_file_is_refused(path: Path) -> None:
    path.with_name("journal.db-wal").write_bytes(b"x" * 100)
    path.unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        SqliteJournal(path).recover()


def test_a_flipped_counter_is_counted_anew(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE entity SET active = active + 1 WHERE id = 1")
    connection.close()
    assert any("queue-1: the checksum of its counters does not hold" in finding for finding in check(path))
    journal = SqliteJournal(path)
    (row, _) = journal.recover().entities
    assert (row.counters.active, row.counters.deferred, row.counters.scheduled) == (40, 10, 10)
    assert row.counters.last_sequence_number > 60
    journal.close()
    assert check(path) == []


def test_a_newer_format_is_refused_in_plain_words(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(StoreTooNew, match=r"journal\.db has format 99, this version of Spillway reads up to 6"):
        SqliteJournal(path).recover()


def test_a_directory_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteJournal(tmp_path / "missing" / "journal.db").recover()


# -- the log of a killed process ----------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A file and a log with many commits in it, of which each added messages and none removed any."""
    path = tmp_path / "killed.db"
    process = subprocess.run([sys.executable, str(WRITER), str(path), str(TURNS)], stdout=subprocess.DEVNULL)
    assert process.returncode == -signal.SIGKILL
    return path


def log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


@pytest.mark.parametrize("at", [0, 9, 17, 26, 32 + 9, 32 + 24 + 1_000, 32 + 3 * 8216 + 100])
def test_a_flipped_byte_early_in_the_log_is_not_taken_for_its_end(killed: Path, at: int) -> None:
    flip(log(killed), at)
    before = killed.read_bytes(), log(killed).read_bytes()
    with pytest.raises(StoreDamaged, match=r"killed\.db-wal is damaged.*commits follow"):
        SqliteJournal(killed).recover()
    assert (killed.read_bytes(), log(killed).read_bytes()) == before, "what may still be saved was touched"


def test_a_log_that_is_torn_at_its_end_is_read_up_to_there(killed: Path) -> None:
    content = log(killed).read_bytes()
    frames = (len(content) - 32) // 8216
    assert frames > 10
    log(killed).write_bytes(content[: 32 + frames * 8216 - 5_000])
    desk = opened(killed)
    assert numbers(desk.ask(everything(1)))
    desk.journal.close()


def test_a_flipped_bit_in_the_last_commit_of_the_log_cannot_be_told_from_a_torn_end(killed: Path) -> None:
    """What docs/broker.md says of it: the commit is gone without a word, and none before it."""
    copy = killed.with_name("copy.db")
    shutil.copy(killed, copy)
    shutil.copy(log(killed), log(copy))
    whole = opened(copy)
    committed = numbers(whole.ask(everything(1)))
    whole.journal.close()
    flip(log(killed), 32 + last_commit(log(killed)) * 8216 + 4_000)
    desk = opened(killed)
    kept = numbers(desk.ask(everything(1)))
    desk.journal.close()
    assert len(committed) >= TURNS, "turns of the same commit are there too"
    assert 0 < len(kept) < len(committed) <= 100, "nothing was removed yet"
    assert kept == committed[: len(kept)]


def last_commit(path: Path) -> int:
    """The number of the last frame that ends a commit of this round of the log."""
    content = path.read_bytes()
    frames = [content[at : at + 24] for at in range(32, len(content) - 8215, 8216)]
    return max(
        number for number, frame in enumerate(frames) if frame[8:16] == content[16:24] and frame[4:8] != b"\0\0\0\0"
    )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_format_is_refused_with_the_way_out(path: Path, version: int) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", version)
    connection.close()
    with pytest.raises(
        StoreTooOld, match=rf"journal\.db has format {version}, this version of Spillway reads 4 to 6 only"
    ):
        SqliteJournal(path).recover()
