"""Price lists: what is delivered can be read, what is wrong is named, money is exact."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spillway.spark.billing.prices import PriceListError, cents, delivered_lists, find_list, money, read_list

M = 1_000_000


def standard_fields() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(delivered_lists()["standard-2026-11"].read_text(encoding="utf-8"))
    return fields


@pytest.mark.parametrize("name", sorted(delivered_lists()))
def test_every_delivered_list_can_be_read_and_says_where_it_is_from(name: str) -> None:
    prices = find_list(name)
    assert prices.source.startswith("https://") and re.search(r"Check (it|them) against your agreement", prices.source)
    assert name == f"{prices.sku}-{prices.valid_from[:7]}"
    assert find_list(prices.sku) == prices


@pytest.mark.parametrize(
    ("operations", "cost"),
    [
        (0, "0"),
        (13 * M, "0"),
        (13 * M + 1, "0.0000008"),
        (100 * M, "69.6"),  # 87 million at 0.80
        (100 * M + 1, "69.6000005"),
        (2500 * M, "1269.6"),  # and 2,400 million at 0.50
        (2501 * M, "1269.8"),
    ],
)
def test_a_month_of_standard_climbs_the_tiers(operations: int, cost: str) -> None:
    assert money(find_list("standard").operations_pico(operations)) == Decimal(cost)


def test_basic_charges_from_the_first_operation_and_premium_by_units_and_hours() -> None:
    assert money(find_list("basic").operations_pico(3)) == Decimal("0.00000015")
    premium = find_list("premium")
    assert premium.operations_pico(10**12) == 0
    assert money(premium.hour_pico(4) * 24) == Decimal("89.04")


def test_cents_are_rounded_half_up_once() -> None:
    assert [str(cents(pico)) for pico in (0, 4_999_999_999, 5_000_000_000, 10**12)] == ["0.00", "0.00", "0.01", "1.00"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("format", 2, "format: must be 1, not 2"),
        ("base_per_hour", 0.0135, 'base_per_hour: must be an amount as text, like "0.80"'),
        ("base_per_hour", "-1", "base_per_hour: must be an amount"),
        ("base_per_hour", "0.1234567", "at most 6 digits before and 6 after the point"),
        ("egress_per_gb", "0.0875", "3 after the point"),
        ("currency", "dollars", "currency: must be three capital letters"),
        ("valid_from", "2026-13-01", 'valid_from: must be a day like "2027-01-31"'),
        ("valid_from", None, "valid_from: must be a day"),
        ("sku", "gold", "sku: must be one of basic, standard, premium"),
        ("scope", "planet", "scope: must be one of namespace, account"),
        ("unit_bytes", 65_000, "unit_bytes: must be 65536"),
        ("included_operations", -1, "included_operations: must be a whole number from 0"),
        ("included_operations", True, "included_operations: must be a whole number"),
        ("charged_kinds", ["send", "teleport"], "charged_kinds: must be a list of kinds"),
        ("source", "  ", "source: must be text"),
        ("tiers", {}, "tiers: must be a list"),
        ("tiers", [{"up_to": None}], "tiers[0]: must be an object with up_to and per_million"),
        ("tiers", [{"up_to": 14_000_000, "per_million": "1"}], "tiers[0].up_to: must be null in the last tier"),
        (
            "tiers",
            [{"up_to": 13_000_000, "per_million": "1"}, {"up_to": None, "per_million": "1"}],
            "tiers[0].up_to: must be a whole number from 13,000,001",
        ),
        ("tiers", [{"up_to": None, "per_million": "1e3"}], "tiers[0].per_million: must be an amount"),
        ("discount", "0.1", "discount: no such field; allowed are format, name"),
    ],
)
def test_a_wrong_field_is_named_with_its_file_and_what_is_allowed(
    field: str, value: object, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**standard_fields(), field: value}), encoding="utf-8")
    with pytest.raises(PriceListError) as told:
        read_list(path)
    assert str(told.value).startswith(f"price list {path}: ") and said in str(told.value)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    fields = standard_fields()
    del fields["tiers"]
    (tmp_path / "mine.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(PriceListError, match="mine.json: tiers: is missing"):
        find_list(str(tmp_path / "mine.json"))


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), ("[]", "must be a JSON object"), ("\udc80", "not JSON")])
def test_a_file_that_is_no_list_is_said_to_be_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PriceListError, match=said):
        read_list(tmp_path / "mine.json")


def test_a_list_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        PriceListError, match="price list gold: not a file, nor one of basic, standard, premium, basic-2026"
    ):
        find_list("gold")
    with pytest.raises(PriceListError, match="cannot be read: No such file"):
        find_list(str(tmp_path / "none.json"))
