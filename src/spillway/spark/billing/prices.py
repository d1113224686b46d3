"""Price lists: dated files of JSON, read strictly. Money is whole trillionths of the currency, never a float.

A trillionth (`_pico`) is small enough that a price of one operation and of one byte is a whole number, so that sums are
exact. docs/cost.md describes the fields.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Final

from spillway.model.ledger import KIND_NAMES, UNIT_BYTES

FORMAT: Final = 1
PICO: Final = 10**12  # of these make one of the currency
MILLION: Final = 10**6
GB: Final = 10**9
DIRECTORY: Final = Path(__file__).with_name("price_lists")
NAMESPACE: Final = "namespace"
ACCOUNT: Final = "account"
SCOPES: Final = (NAMESPACE, ACCOUNT)
SKUS: Final = ("basic", "standard", "premium")
MESSAGING_UNITS_MAX: Final = 1024
OPERATIONS_MAX: Final = 10**15  # more than anybody's month; keeps sums inside Spark's decimals

FIELDS: Final = (
    "format",
    "name",
    "sku",
    "currency",
    "valid_from",
    "source",
    "scope",
    "base_per_hour",
    "messaging_unit_per_hour",
    "included_operations",
    "tiers",
    "unit_bytes",
    "charged_kinds",
    "egress_per_gb",
)


class PriceListError(ValueError):
    """A price list that cannot be used: names the file, the field and what is allowed."""

    def __init__(self, where: str, field: str, problem: str) -> None:
        super().__init__(f"price list {where}: {field}: {problem}" if field else f"price list {where}: {problem}")
        self.where = where
        self.field = field


@dataclass(frozen=True)
class Tier:
    """Operations of a month up to this many (None: all further ones) at this price each."""

    up_to: int | None
    per_operation_pico: int


@dataclass(frozen=True)
class PriceList:
    name: str
    sku: str
    currency: str
    valid_from: str
    source: str
    scope: str  # what a month's operations are added up over: each namespace, or all that have this list
    base_per_hour_pico: int
    messaging_unit_per_hour_pico: int
    included_operations: int
    tiers: tuple[Tier, ...]
    charged_kinds: frozenset[str]
    egress_per_byte_pico: int

    def operations_pico(self, operations: int) -> int:
        """What so many operations (64 KB units) of one month cost together."""
        cost = 0
        begin = self.included_operations
        for tier in self.tiers:
            end = operations if tier.up_to is None else min(operations, tier.up_to)
            if end > begin:
                cost += (end - begin) * tier.per_operation_pico
                begin = end
        return cost

    def hour_pico(self, messaging_units: int) -> int:
        return self.base_per_hour_pico + messaging_units * self.messaging_unit_per_hour_pico

    @property
    def first_price_pico(self) -> int:
        """Of one operation when the included ones are used up; 0 where operations cost nothing."""
        return self.tiers[0].per_operation_pico if self.tiers else 0


def money(pico: int) -> Decimal:
    """Exact."""
    return Decimal(pico).scaleb(-12)


def cents(pico: int) -> Decimal:
    """Rounded once, half up, for people."""
    return money(pico).quantize(Decimal("0.01"), ROUND_HALF_UP)


# -- finding and reading ------------------------------------------------------------------------------------------


def delivered_lists() -> dict[str, Path]:
    """Those that come with the package, by their names: `standard-2026-11`."""
    return {path.stem: path for path in sorted(DIRECTORY.glob("*.json"))}


def find_list(asked: str) -> PriceList:
    """By a file's path, a delivered list's name, or its kind alone (`standard`: the newest of these)."""
    delivered = delivered_lists()
    if asked in delivered:
        return read_list(delivered[asked])
    of_kind = [path for name, path in delivered.items() if name.rpartition("-20")[0] == asked]
    if of_kind:
        return read_list(of_kind[-1])
    path = Path(asked)
    if path.suffix != ".json" and not path.exists():
        raise PriceListError(asked, "", f"not a file, nor one of {', '.join([*SKUS, *delivered])}")
    return read_list(path)


def read_list(path: Path) -> PriceList:
    where = str(path)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PriceListError(where, "", f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise PriceListError(where, "", f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise PriceListError(where, "", "must be a JSON object")
    return parse_list(fields, where)


def parse_list(fields: Mapping[str, Any], where: str) -> PriceList:
    """ValueError of the kind `PriceListError` for the first thing that is wrong."""
    for name in fields:
        if name not in FIELDS:
            raise PriceListError(where, name, f"no such field; allowed are {', '.join(FIELDS)}")
    for name in FIELDS:
        if name not in fields:
            raise PriceListError(where, name, "is missing")
    if fields["format"] != FORMAT or isinstance(fields["format"], bool):
        raise PriceListError(where, "format", f"must be {FORMAT}, not {shown(fields['format'])}")
    if fields["unit_bytes"] != UNIT_BYTES:
        problem = f"must be {UNIT_BYTES}, the unit that the ledger counts in, not {shown(fields['unit_bytes'])}"
        raise PriceListError(where, "unit_bytes", problem)
    included = read_count(fields["included_operations"], where, "included_operations", 0)
    return PriceList(
        name=read_text(fields, where, "name"),
        sku=read_choice(fields, where, "sku", SKUS),
        currency=read_currency(fields["currency"], where),
        valid_from=read_day(fields["valid_from"], where),
        source=read_text(fields, where, "source"),
        scope=read_choice(fields, where, "scope", SCOPES),
        base_per_hour_pico=read_price(fields["base_per_hour"], where, "base_per_hour", 6) * PICO // MILLION,
        messaging_unit_per_hour_pico=read_price(fields["messaging_unit_per_hour"], where, "messaging_unit_per_hour", 6)
        * PICO
        // MILLION,
        included_operations=included,
        tiers=read_tiers(fields["tiers"], where, included),
        charged_kinds=read_kinds(fields["charged_kinds"], where),
        egress_per_byte_pico=read_price(fields["egress_per_gb"], where, "egress_per_gb", 3) * PICO // 1000 // GB,
    )


def shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def read_text(fields: Mapping[str, Any], where: str, name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or not value.strip():
        raise PriceListError(where, name, f"must be text that is not empty, not {shown(value)}")
    return value


def read_choice(fields: Mapping[str, Any], where: str, name: str, allowed: tuple[str, ...]) -> str:
    value = fields[name]
    if value not in allowed:
        raise PriceListError(where, name, f"must be one of {', '.join(allowed)}, not {shown(value)}")
    return str(value)


def read_currency(value: object, where: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[A-Z]{3}", value):
        raise PriceListError(where, "currency", f'must be three capital letters like "USD", not {shown(value)}')
    return value


def read_day(value: object, where: str) -> str:
    try:
        if isinstance(value, str) and len(value) == 10:
            return date.fromisoformat(value).isoformat()
    except ValueError:
        pass
    raise PriceListError(where, "valid_from", f'must be a day like "2027-01-31", not {shown(value)}')


def read_count(value: object, where: str, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= OPERATIONS_MAX:
        problem = f"must be a whole number from {least:,} to {OPERATIONS_MAX:,}, not {shown(value)}"
        raise PriceListError(where, name, problem)
    return value


def read_price(value: object, where: str, name: str, digits: int) -> int:
    """In units of the last digit that is allowed. Only text: a JSON number would have been a float on its way."""
    if not isinstance(value, str) or not re.fullmatch(rf"[0-9]{{1,6}}(\.[0-9]{{1,{digits}}})?", value):
        problem = f'must be an amount as text, like "0.80", with at most 6 digits before and {digits} after the point'
        raise PriceListError(where, name, f"{problem}, not {shown(value)}")
    return int(Decimal(value).scaleb(digits))


def read_tiers(value: object, where: str, included: int) -> tuple[Tier, ...]:
    if not isinstance(value, list) or len(value) > 100:
        raise PriceListError(where, "tiers", f"must be a list of at most 100 tiers, not {shown(value)}")
    tiers: list[Tier] = []
    last = included
    for at, each in enumerate(value):
        field = f"tiers[{at}]"
        if not isinstance(each, dict) or set(each) != {"up_to", "per_million"}:
            raise PriceListError(where, field, f"must be an object with up_to and per_million, not {shown(each)}")
        is_last = at == len(value) - 1
        up_to = each["up_to"]
        if (up_to is None) != is_last:
            raise PriceListError(where, f"{field}.up_to", "must be null in the last tier, and a number in all others")
        if up_to is not None:
            last = read_count(up_to, where, f"{field}.up_to", last + 1)
        price = read_price(each["per_million"], where, f"{field}.per_million", 6)
        tiers.append(Tier(up_to, price * PICO // MILLION // MILLION))
    return tuple(tiers)


def read_kinds(value: object, where: str) -> frozenset[str]:
    if not isinstance(value, list) or any(kind not in KIND_NAMES for kind in value):
        problem = f"must be a list of kinds of operations, not {shown(value)}; allowed are {', '.join(KIND_NAMES)}"
        raise PriceListError(where, "charged_kinds", problem)
    return frozenset(value)
