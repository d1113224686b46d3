"""What `spillway pipeline availability` says of one outage: no plural."""

from dataclasses import fields
from typing import Any

from spillway.spark.jobs.availability import words_of
from spillway.spark.outages.availability_summary import AvailabilitySummary


def summary(**said: Any) -> AvailabilitySummary:
    empty: dict[Any, Any] = {int: 0, str: "", float: 0.0, bool: False}
    values = {field.name: empty.get(field.type, []) for field in fields(AvailabilitySummary)}
    return AvailabilitySummary(**{**values, **said})


def test_one_of_each_is_no_plural() -> None:
    one = {"outages_count": 1, "events": 1, "processes": 1, "diverted": 1}
    (line, *_) = words_of(summary(**one, first="2027-01-15T08:00:00", last="2027-01-15T08:01:00"))
    assert line.startswith("1 outage, 2027-01-15T08:00:00 to 2027-01-15T08:01:00: 1 event of 1 process; 1 message ")


def test_two_of_each_are() -> None:
    two = {"outages_count": 2, "events": 2, "processes": 2, "diverted": 2}
    (line, *_) = words_of(summary(**two))
    assert line.startswith("2 outages, ") and ": 2 events of 2 processes; 2 messages diverted" in line
