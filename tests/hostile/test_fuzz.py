"""Twenty thousand damaged frames, always the same ones; `python -m tests.hostile.fuzz` sends others."""

from tests.hostile.fuzz import ANSWER_S, fuzz
from tests.hostile.scene import Scene


def test_damaged_frames_end_what_they_damage_and_nothing_else(attacked: Scene) -> None:
    summary = fuzz(attacked, frames=20_000, seed=1)
    conditions = summary["conditions"]
    assert isinstance(conditions, dict)
    for expected in ("close amqp:decode-error", "close amqp:invalid-field", "close amqp:connection:framing-error"):
        assert conditions[expected] > 0, conditions
    slowest_s = summary["slowest_connection_s"]
    assert isinstance(slowest_s, float)
    assert slowest_s < ANSWER_S / 2
