"""What an outage would come to, held against numbers worked out by hand."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from spillway.spark.billing.prices import find_list
from spillway.spark.billing.what_if import Question, WhatIfAnswer, answer, parse_rate, parse_size

STANDARD = find_list("standard")
HOUR = Question(Fraction(500), 1024, 3600)


def lines(found: WhatIfAnswer) -> dict[str, tuple[int, Decimal]]:
    return {line.line: (line.units, Decimal(line.cost)) for line in found.lines}


@pytest.mark.contract("F11", "F10", "F5")
def test_an_hour_without_the_primary() -> None:
    found = answer(HOUR, STANDARD)
    assert found.diverted == 500 * 3600  # from the failover after a minute to a ping up to a minute late
    assert found.pings == 60
    assert found.idle_receives == 28_800
    assert found.drain_s == 180
    assert found.fits and found.refused == 0
    assert lines(found) == {
        "send_to_backlog": (1_800_000, Decimal("1.44")),
        "receive_from_backlog": (1_800_000, Decimal("1.44")),
        "send_to_primary": (1_800_000, Decimal("1.44")),
        "receive_from_primary": (1_800_000, Decimal("1.44")),
        "idle_receive": (28_800, Decimal("0.02304")),
        "ping": (60, Decimal("0.000048")),
    }
    assert Decimal(found.cost) == Decimal("5.783088")
    assert Decimal(found.cost_of_outage) == Decimal("5.760048")
    assert Decimal(found.cost_anyway) == Decimal("2.88")


def test_large_messages_count_for_several_and_fill_the_queues() -> None:
    found = answer(replace(HOUR, size_bytes=256 * 1024, backlog_queues=2), STANDARD)
    assert found.diverted == 2 * 20_480 and found.refused == 1_800_000 - 40_960
    assert not found.fits
    assert found.queue_bytes == found.queue_bytes_max == 5 * 1024**3
    assert found.full_after_s == 81
    assert lines(found)["send_to_backlog"] == (4 * 40_960, Decimal("0.131072"))


def test_an_outage_that_ends_before_the_failover_diverts_nothing_and_pings_nobody() -> None:
    found = answer(replace(HOUR, outage_s=60), STANDARD)
    assert (found.diverted, found.pings, found.drain_s) == (0, 0, 0)
    assert Decimal(found.cost) == Decimal("0.02304")


def test_what_is_included_costs_nothing_until_it_is_used_up() -> None:
    found = answer(replace(HOUR, month_operations=0), STANDARD)
    assert found.cost == "0"
    near = answer(replace(HOUR, month_operations=12_999_999), STANDARD)
    assert Decimal(near.cost) == Decimal("5.783088") - 2 * Decimal("0.0000008")


def test_every_sender_pings_every_entity() -> None:
    assert answer(replace(HOUR, entities=3, senders=4), STANDARD).pings == 60 * 12


def test_no_traffic_never_fills_a_queue() -> None:
    assert answer(replace(HOUR, rate=Fraction(0)), STANDARD).full_after_s is None
    assert answer(replace(HOUR, size_bytes=0), STANDARD).fits


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"backlog_queues": 0}, "--backlog-queues must be from 1 to 10,000, not 0"),
        ({"size_bytes": -1}, "--size must be from 0"),
        ({"rate": Fraction(-1)}, "--rate must be from 0 to 10,000,000"),
        ({"drain_rate": Fraction(0)}, "--drain-rate must be from 0.001"),
        ({"month_operations": -1}, "--month-operations must be from 0"),
        ({"failover_s": 7200}, "--failover-interval must be from 0 to 3,600"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_by_name(changed: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        replace(HOUR, **changed)  # type: ignore[arg-type]


def test_sizes_and_rates_are_read_as_people_write_them() -> None:
    assert [parse_size(text) for text in ("1024", "1KB", "256 kb", "1MB", "12B")] == [1024, 1024, 262_144, 1 << 20, 12]
    assert [parse_rate("rate", text) for text in ("500", "0.5", "1,000")] == [500, Fraction(1, 2), 1000]
    for text in ("", "-1", "1.5KB", "1GB", "٣"):
        with pytest.raises(ValueError, match="--size must be a size like"):
            parse_size(text)
    for text in ("", "fast", "NaN", "Infinity", "-1"):
        with pytest.raises(ValueError, match="--rate must be messages a second"):
            parse_rate("rate", text)
