"""Every kind of attack for a moment, alone and mixed, beside honest clients; `make attack` does it for ten minutes.

Latencies are for `make attack` and `make neighbours` to judge, on a quiet machine.
"""

from pathlib import Path

from tests.hostile.onslaught import ATTACKS, LISTEN, NONE, SEND
from tests.hostile.siege import Plan, besiege

PLAN = Plan(
    seed=12,
    seconds=14.0,
    quiet_s=1.0,
    clients=5,
    depth=1_000,
    fan_out=20,
    filters=10,
    is_short=True,
)


def test_honest_clients_keep_what_they_were_promised(tmp_path: Path) -> None:
    report = besiege(PLAN, tmp_path)
    broken = [text for text in report.broken if "p99" not in text]  # how quick, `make attack` says
    assert not broken, broken
    assert report.facts["honest"]["acknowledged"] > 0
    assert report.facts["honest"]["lost"] == 0
    assert report.facts["restarted_on_that_disk"]
    idle = [slice["kinds"] for slice in report.kinds if not any("begun" in did for did in slice["did"].values())]
    assert not idle, idle


def test_each_right_is_used() -> None:
    assert {attack.rights for attack in ATTACKS.values()} == {NONE, SEND, LISTEN}


def test_the_same_seed_plans_the_same() -> None:
    for plan in (PLAN, Plan(1, 600.0)):
        assert plan.slices() == plan.slices()
        assert {kind for kinds, _ in plan.slices() for kind in kinds} == set(ATTACKS)
    alone = [kinds[0] for kinds, _ in Plan(1, 600.0).slices() if len(kinds) == 1]
    assert sorted(alone) == sorted(ATTACKS)
