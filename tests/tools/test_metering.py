"""The verdict over what clients could not know: decided by what is stored, message by message."""

import json
from pathlib import Path

import pytest

from spillway.client import ABANDONED, COMPLETED, DEAD_LETTERED
from spillway.client import DEFERRED as DEFER
from spillway.model.message import ACTIVE, DEFERRED, SCHEDULED
from tests.tools.metered_client_process import GONE, LATER, TALKS, WORK, Diary
from tests.tools.metering import DEAD, Request, Stored, Verdict, count, minus, read


def asked(kind: str, *ids: str, settlement: str = "", is_answered: bool = False, at: int = 0) -> Request:
    entity = LATER if kind in ("schedule", "cancel") else WORK
    return Request(kind, entity, [(one, 10) for one in ids], is_answered, False, settlement, at)


def stored(**entities: dict[str, tuple[int, int]]) -> Stored:
    empty: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in (WORK, DEAD, LATER, GONE, TALKS)}
    named = {"work": WORK, "dead": DEAD, "later": LATER}
    return Stored(empty | {named[name]: states for name, states in entities.items()})


@pytest.mark.parametrize(
    ("request_", "there", "is_granted"),
    [
        (asked("send", "m"), stored(work={"m": (ACTIVE, 0)}), True),
        (asked("send", "m"), stored(dead={"m": (ACTIVE, 0)}), True),
        (asked("send", "m"), stored(), False),
        (asked("schedule", "m"), stored(later={"m": (SCHEDULED, 0)}), True),
        (asked("schedule", "m"), stored(), False),
        (asked("cancel", "m"), stored(later={"m": (SCHEDULED, 0)}), False),
        (asked("cancel", "m"), stored(), True),
        (asked("settle", "m", settlement=COMPLETED), stored(), True),
        (asked("settle", "m", settlement=COMPLETED), stored(work={"m": (ACTIVE, 0)}), False),
        (asked("settle", "m", settlement=DEAD_LETTERED), stored(dead={"m": (ACTIVE, 0)}), True),
        (asked("settle", "m", settlement=DEAD_LETTERED), stored(work={"m": (ACTIVE, 0)}), False),
        (asked("settle", "m", settlement=DEFER), stored(work={"m": (DEFERRED, 0)}), True),
        (asked("settle", "m", settlement=DEFER), stored(work={"m": (ACTIVE, 0)}), False),
        (asked("settle", "m", settlement=ABANDONED), stored(work={"m": (ACTIVE, 1)}), True),
        (asked("settle", "m", settlement=ABANDONED), stored(work={"m": (ACTIVE, 0)}), False),
        (asked("settle", "m", settlement=ABANDONED), stored(), True),
    ],
)
def test_what_was_asked_and_never_answered_is_decided_by_the_store(
    request_: Request, there: Stored, is_granted: bool
) -> None:
    assert bool(Verdict([request_], there).granted()) is is_granted


def test_a_send_whose_message_was_received_was_granted_though_it_is_gone() -> None:
    send = asked("send", "m")
    assert send in Verdict([send, asked("receive", "m", is_answered=True)], stored()).granted()


def test_of_two_abandons_of_one_message_the_first_is_granted_first() -> None:
    first = asked("settle", "m", settlement=ABANDONED, at=1)
    second = asked("settle", "m", settlement=ABANDONED, at=2)
    before = asked("settle", "m", settlement=ABANDONED, is_answered=True, at=0)
    verdict = Verdict([second, before, first], stored(work={"m": (ACTIVE, 2)}))
    assert [each.asked_ns for each in verdict.granted()] == [0, 1]


def test_a_batch_that_is_there_by_half_is_an_error() -> None:
    with pytest.raises(AssertionError, match="by half"):
        Verdict([asked("send", "m", "n")], stored(work={"m": (ACTIVE, 0)})).granted()


def test_a_diary_is_read_as_it_was_written_and_counted_in_units(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "a.jsonl")
    number = diary.ask("send", WORK, [("m", 65_537), ("n", 1)])
    diary.ask("send", WORK, [("o", 5)], is_settled=True)
    diary.answer(number, 2)
    diary.did("empty_receive", WORK, [])
    diary.close()
    requests = read([tmp_path / "a.jsonl"])
    assert [(each.is_answered, each.is_settled) for each in requests] == [(True, False), (False, True), (True, False)]
    counted = count(requests)
    assert counted == {(WORK, "send"): [3, 4, 65_543], (WORK, "empty_receive"): [1, 1, 0]}
    assert minus(counted, {(WORK, "send"): [3, 4, 65_543]}) == {(WORK, "empty_receive"): [1, 1, 0]}
    assert all(json.loads(line)["ns"] > 0 for line in (tmp_path / "a.jsonl").read_text().splitlines())
