"""`make field` and `make week`: what they sum up, and that plays which were cut off go on where they were."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from spillway.lab.field.plan import PRIMARY, SECONDARY, plan_problem
from spillway.lab.field.week import growth_problems, judge, plan_of, thinned
from tools.field import Field


def found(seed: int, **values: Any) -> dict[str, Any]:
    return {
        "seed": seed, "calls": 60, "messages": 100, "acknowledged": 90, "delivered": 90, "diverted": 20, "refused": 5,
        "failed_over": 2, "ailments": ["primary kill"], "sockets_most": 20, "close_most_s": 0.5, "problems": [],
        "status": 0, "took_s": 30.0, "load": 1.5,
    } | values  # fmt: skip


def field_of(tmp_path: Path, play: Any, seeds: int = 3) -> Field:
    keep, out = tmp_path / "kept", tmp_path / "out.json"
    return Field(Namespace(seeds=seeds, first=1, seed=None, jobs=2, library="", out=out, keep=keep), play)


def evidence(tmp_path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return facts


def test_the_evidence_has_sums_and_what_was_broken(tmp_path: Path) -> None:
    def play(seed: int, library: str, keep: Path) -> dict[str, Any]:
        broken = [{"invariant": "exactly once", "text": "twice"}] if seed == 2 else []
        return found(seed, problems=broken, status=len(broken))

    assert field_of(tmp_path, play).work() == 1
    facts = evidence(tmp_path)
    assert (facts["plays"], facts["clean"], facts["acknowledged"], facts["diverted"]) == (3, 2, 270, 60)
    assert facts["broken"] == {"exactly once": 1}
    assert facts["ailments"] == {"primary kill": 3}
    assert [each["seed"] for each in facts["results"]] == [1, 2, 3]


def test_plays_that_were_cut_off_go_on_where_they_were(tmp_path: Path) -> None:
    played: list[int] = []

    def play(seed: int, library: str, keep: Path) -> dict[str, Any]:
        played.append(seed)
        return found(seed, status=130 if len(played) == 1 and seed == 1 else 0)

    first = field_of(tmp_path, play)
    first._one(1)
    first._one(2)
    assert field_of(tmp_path, play).missing() == [1, 3]
    assert field_of(tmp_path, play).work() == 0
    assert evidence(tmp_path)["plays"] == 3
    assert field_of(tmp_path, play).missing() == [1, 2, 3], "what came to its end is played anew"


def test_a_play_that_did_not_come_about_is_not_clean(tmp_path: Path) -> None:
    assert (
        field_of(
            tmp_path, lambda seed, *_: {"seed": seed, "error": "no", "status": 1, "took_s": 1.0, "load": 1.0}
        ).work()
        == 3
    )


# -- the week ----------------------------------------------------------------------------------------------------------


def test_a_week_has_trouble_on_both_sides_until_its_end() -> None:
    plan = plan_of(1, 60.0)
    assert plan_problem(plan) is None
    assert plan_of(1, 60.0) == plan
    assert sum(entity.dedup for entity in plan.entities) == len(plan.entities) / 2 == 25
    for side in (PRIMARY, SECONDARY):
        lane = [each for each in plan.ailments if each.side == side]
        assert {each.what for each in lane} == {"kill", "freeze", "busy", "unreachable", "cut"}
        assert 3_000 < lane[-1].at_s + lane[-1].lasts_s < 3_600


def sent(identity: str, error: str = "") -> dict[str, Any]:
    return {"op": "send", "id": identity, "q": "e00", "res": "info" if error else "ok", "error": error}


def delivered(identity: str, number: int, path: str = "e00") -> dict[str, Any]:
    return {"op": "recv", "id": identity, "q": path, "seq": number}


def test_the_week_is_judged_by_what_was_sent_and_what_arrived() -> None:
    plan = plan_of(1, 1.0)
    good = judge([sent("a"), delivered("a", 1), delivered("a", 1), sent("b", "ServiceBusError")], plan)
    assert (good.problems, good.calls, good.acknowledged, good.refused) == ([], 2, 1, {"ServiceBusError": 1})
    assert judge([sent("a")], plan).lost == 1
    assert judge([sent("a"), {"op": "left", "id": "a", "q": "x"}], plan).problems == [
        "1 acknowledged messages did not come home"
    ]
    twice = judge([sent("a"), delivered("a", 1), delivered("a", 2)], plan)
    assert (twice.twice_where_detected, len(twice.problems)) == (1, 1)
    elsewhere = judge([sent("a"), delivered("a", 1, "e01"), delivered("a", 2, "e01")], plan)
    assert (elsewhere.twice_elsewhere, elsewhere.problems) == (1, [])


def test_what_grows_through_the_week_is_found() -> None:
    flat = [(float(at), 50, 90_000) for at in range(100)]
    assert growth_problems("asyncio", flat) == []
    assert len(growth_problems("asyncio", [(at, 50 + int(at) * 5, kb) for at, _, kb in flat])) == 1
    assert len(growth_problems("asyncio", [(at, sockets, 90_000 + int(at) * 2_000) for at, sockets, _ in flat])) == 1
    assert len(thinned(flat * 10)) <= 120
