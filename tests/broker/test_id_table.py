"""The table of ids in memory: finds the latest, forgets the oldest, and stays small."""

import random
from hashlib import blake2b

from spillway.broker.id_table import PAGE_IDS, IdTable
from spillway.model.message_ids import pack_id, place_of


def digest(name: object) -> bytes:
    return blake2b(str(name).encode(), digest_size=16).digest()


def add(table: IdTable, one: bytes, number: int, accepted_ms: int) -> None:
    table.add(one, pack_id(one, place_of(number, accepted_ms)))


def test_an_id_is_found_with_its_latest_place() -> None:
    table = IdTable()
    assert table.find(digest("a")) == 0
    add(table, digest("a"), 1, 100)
    add(table, digest("b"), 2, 100)
    add(table, digest("a"), 3, 200)
    assert table.find(digest("a")) == place_of(3, 200)
    assert table.find(digest("b")) == place_of(2, 100)
    assert table.find(digest("c")) == 0


def test_bytes_across_two_ids_are_no_id() -> None:
    table = IdTable()
    add(table, b"\x00" * 16, 1, 1)
    add(table, b"\x00" * 16, 2, 1)
    page = bytes(table.pages[0])
    for at in range(1, 27):
        across = page[at : at + 16]
        assert across == b"\x00" * 16 or table.find(across) == 0
    add(table, page[20:36], 3, 1)
    assert table.find(page[20:36]) == place_of(3, 1)


def test_thousands_of_ids_are_found_while_the_oldest_die() -> None:
    chance = random.Random(7)
    table = IdTable()
    model: dict[bytes, int] = {}
    for number in range(1, 20_001):
        one = digest(chance.randrange(15_000))
        add(table, one, number, number)
        model[one] = number
        if number % 500 == 0:
            table.raise_floor(number - 4_000, chance.choice([0, 10, 10_000]))
    floor = 16_000
    for name in range(15_000):
        number = model.get(digest(name), 0)
        assert table.find(digest(name)) == (place_of(number, number) if number > floor else 0)
    table.raise_floor(floor, len(table.pages))
    assert table.held_count == sum(len(page) for page in table.pages) // 27 == 4_000


def test_pages_stay_short_however_many_ids_there_are() -> None:
    table = IdTable()
    for number in range(1, 50_001):
        add(table, digest(number), number, 1)
    assert len(table.pages) >= 50_000 // PAGE_IDS
    assert max(len(page) for page in table.pages) < 27 * PAGE_IDS * 5
    table.clear()
    assert (table.find(digest(1)), table.held_count, len(table.pages)) == (0, 0, 1)
