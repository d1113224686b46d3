"""The rules of what a ledger costs, on rows made by hand and by hypothesis."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.model.ledger import KIND_NAMES
from spillway.spark.billing.charges import Charge, Metered, RawRow, Tariff, charges_of, day_text, plain_total, share
from spillway.spark.billing.prices import ACCOUNT, Tier, find_list, money

DAY_S = 86_400
NOON = 1_798_804_800  # 2027-01-01T12:00:00Z
STANDARD = Tariff(find_list("standard"))
M = 1_000_000


def row(entity: str, kind: str, operations: int, *, namespace: str = "east", at_s: int = NOON, size: int = 0) -> RawRow:
    return RawRow(namespace, at_s, entity, kind, operations, operations, size)


def metered(rows: Iterable[RawRow]) -> list[Metered]:
    """By day: what the metering job makes of rows."""
    sums: dict[tuple[str, str, str, str], Metered] = {}
    for each in rows:
        key = (day_text(each.epoch_s), each.namespace, each.entity, each.kind)
        was = sums.get(key, Metered(*key, 0, 0, 0, each.epoch_s, each.epoch_s))
        sums[key] = Metered(
            *key,
            was.operations + each.operations,
            was.units + each.units,
            was.size_bytes + each.size_bytes,
            min(was.first_epoch_s, each.epoch_s),
            max(was.last_epoch_s, each.epoch_s),
        )
    return list(sums.values())


def by_line(charges: Iterable[Charge]) -> dict[str, int]:
    units: dict[str, int] = defaultdict(int)
    for charge in charges:
        units[charge.line] += charge.units
    return {line: count for line, count in units.items() if count}


def lines(rows: list[RawRow], tariff: Tariff = STANDARD) -> list[Charge]:
    charges, _ = charges_of(metered(rows), tariff)
    return charges


def syphoned(count: int) -> list[RawRow]:
    """Messages for `east` that went through the backlog on `west` and came home, besides ten that did not."""
    backlog = "east/x-servicebus-transfer/3"
    return [
        row(backlog, "send", count, namespace="west", size=count * 100),
        row(backlog, "receive", count, namespace="west", size=count * 100),
        row(backlog, "settle", count, namespace="west"),
        row("orders", "send", count + 10, size=(count + 10) * 100),
        row("orders", "receive", count + 10, size=(count + 10) * 100),
        row("orders", "settle", count + 10),
    ]


@pytest.mark.contract("F11")
def test_a_syphoned_message_is_charged_four_times_each_on_a_line_of_its_own() -> None:
    found = by_line(lines(syphoned(7)))
    assert found == {
        "send_to_backlog": 7,
        "receive_from_backlog": 7,
        "send_to_primary": 7,
        "receive_from_primary": 7,
        "send": 10,
        "receive": 10,
        "settle": 24,
    }


def test_settling_is_a_line_that_costs_nothing_and_four_operations_are_charged() -> None:
    free = replace(find_list("standard"), included_operations=0, base_per_hour_pico=0)
    charges = lines(syphoned(1), Tariff(free))
    pairing = [charge for charge in charges if "primary" in charge.line or "backlog" in charge.line]
    assert [money(charge.cost_pico) for charge in pairing] == [Decimal("0.0000008")] * 4
    assert not any(charge.cost_pico for charge in charges if charge.kind == "settle")


@pytest.mark.contract("F10")
def test_ten_idle_backlog_queues_are_28800_receives_in_thirty_days_on_a_line_of_their_own() -> None:
    rows = [
        row(f"east/x-servicebus-transfer/{queue}", "empty_receive", 4, namespace="west", at_s=NOON + hour * 3600)
        for queue in range(10)
        for hour in range(30 * 24)
    ]
    assert by_line(lines([*rows, row("orders", "empty_receive", 5)])) == {"idle_receive": 28_800, "empty_receive": 5}


@pytest.mark.contract("F5")
def test_pings_are_charged_like_messages_on_a_line_of_their_own() -> None:
    free = replace(find_list("standard"), included_operations=0)
    charges = lines([row("orders", "ping", 60), row("orders", "send", 60)], Tariff(free))
    costs = {charge.line: money(charge.cost_pico) for charge in charges}
    assert costs == {"ping": Decimal("0.000048"), "send": Decimal("0.000048"), "base": Decimal("0.0135")}


def test_what_came_home_is_never_more_than_what_the_primary_counted() -> None:
    rows = [each if each.namespace == "west" else each._replace(operations=3, units=3) for each in syphoned(7)]
    assert by_line(lines(rows))["send_to_primary"] == 3


def test_a_dead_letter_queue_of_a_backlog_queue_is_no_backlog_queue() -> None:
    assert by_line(lines([row("east/x-servicebus-transfer/1/$DeadLetterQueue", "receive", 2)])) == {"receive": 2}


def test_a_primary_without_a_ledger_is_said_and_another_name_for_it_is_understood() -> None:
    rows = [each._replace(namespace="primary") if each.namespace == "east" else each for each in syphoned(7)]
    _, plan = charges_of(metered(rows), STANDARD)
    assert plan.notes == [
        "there are backlog queues of 'east', but no ledger of it: what came home to it is not in the report"
    ]
    charges, plan = charges_of(metered(rows), replace(STANDARD, aliases={"east": "primary"}))
    assert plan.notes == []
    assert by_line(charges)["send_to_primary"] == 7


def test_large_messages_are_charged_by_units_and_bytes_that_leave_by_the_gigabyte() -> None:
    prices = replace(find_list("standard"), included_operations=0, base_per_hour_pico=0, egress_per_byte_pico=87)
    big = RawRow("east", NOON, "orders", "receive", 1, 4, 250_000)
    charges = lines([big, big._replace(kind="send")], Tariff(prices))
    assert [(c.line, money(c.operations_pico), money(c.transfer_pico)) for c in charges] == [
        ("receive", Decimal("0.0000032"), Decimal("0.00002175")),
        ("send", Decimal("0.0000032"), Decimal(0)),
    ]


def test_the_included_operations_of_a_month_go_to_its_first_days_and_begin_anew_with_the_next() -> None:
    days = [row("orders", "send", 8 * M, at_s=NOON + day * DAY_S) for day in (0, 1, 2, 31)]
    costs = {charge.day: money(charge.operations_pico) for charge in lines(days) if charge.line == "send"}
    assert costs == {
        "2027-01-01": Decimal(0),
        "2027-01-02": Decimal("2.4"),  # 3 of its 8 million are beyond the 13 included
        "2027-01-03": Decimal("6.4"),
        "2027-02-01": Decimal(0),
    }


def test_a_day_that_was_priced_costs_the_same_when_later_days_have_come() -> None:
    days = [row("orders", "send", 90 * M, at_s=NOON + day * DAY_S) for day in range(3)]
    early, late = lines(days[:2]), lines(days)
    assert [charge for charge in late if charge.day == "2027-01-01"] == [c for c in early if c.day == "2027-01-01"]


def test_the_base_is_charged_for_every_hour_from_the_first_row_to_the_last() -> None:
    charges = lines([row("orders", "send", 1), row("orders", "send", 1, at_s=NOON + 2 * DAY_S)])
    hours = {charge.day: charge.hours for charge in charges if charge.line == "base"}
    assert hours == {"2027-01-01": 12, "2027-01-02": 24, "2027-01-03": 13}


def test_namespaces_of_one_account_share_base_and_tiers_where_the_list_says_so() -> None:
    rows = [row("orders", "send", 10 * M), row("orders", "send", 10 * M, namespace="west")]
    alone = sum(charge.cost_pico for charge in lines(rows))
    shared = sum(charge.cost_pico for charge in lines(rows, Tariff(replace(STANDARD.default, scope=ACCOUNT))))
    assert (money(alone), money(shared)) == (Decimal("0.027"), Decimal("5.6135"))


def test_a_report_has_one_currency() -> None:
    tariff = Tariff(STANDARD.default, {"west": replace(STANDARD.default, currency="EUR")})
    with pytest.raises(ValueError, match="price lists in EUR and USD: a report has one currency"):
        lines([row("orders", "send", 1)], tariff)


# -- properties ---------------------------------------------------------------------------------------------------

ENTITIES = ("orders", "bills", "$namespace", "east/x-servicebus-transfer/0", "west/x-servicebus-transfer/1", "ä/ö")
raw_rows = st.builds(
    RawRow,
    st.sampled_from(("east", "west", "north")),
    st.integers(0, 70 * 1440).map(lambda minute: NOON + minute * 60),
    st.sampled_from(ENTITIES),
    st.sampled_from(KIND_NAMES),
    st.integers(1, 10**6),
    st.integers(1, 3 * 10**9),
    st.integers(0, 10**13),
)
small_tiers = replace(
    STANDARD.default,
    included_operations=1000,
    tiers=(Tier(50_000, 800_001), Tier(9_000_000, 500_003), Tier(None, 7)),
    egress_per_byte_pico=87,
)
tariffs = st.sampled_from(
    [
        STANDARD,
        Tariff(small_tiers),
        Tariff(replace(small_tiers, scope=ACCOUNT)),
        Tariff(small_tiers, {"west": find_list("premium"), "north": find_list("basic")}, messaging_units=4),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(raw_rows, max_size=40), tariffs)
def test_the_lines_add_up_to_the_plain_sum_over_raw_rows_to_the_last_digit(rows: list[RawRow], tariff: Tariff) -> None:
    charges = lines(rows, tariff)
    assert sum(charge.cost_pico for charge in charges) == plain_total(rows, tariff)
    assert sum(charge.units for charge in charges) == sum(each.units for each in rows)
    assert sum(charge.operations for charge in charges) == sum(each.operations for each in rows)
    assert sum(charge.size_bytes for charge in charges) == sum(each.size_bytes for each in rows)
    assert all(min(charge[5:]) >= 0 for charge in charges)


@given(st.integers(0, 10**20), st.lists(st.integers(0, 10**9), min_size=1))
def test_shares_add_up_and_none_is_more_than_one_away_from_its_due(total: int, weights: list[int]) -> None:
    everything = sum(weights)
    parts = share(total, weights, everything)
    assert sum(parts) == (total if everything else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert everything == 0 or abs(part * everything - total * weight) <= everything
