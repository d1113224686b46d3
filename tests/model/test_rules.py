"""Rules as stored: they come back as they went in."""

import math
import uuid

import pytest

from spillway.model.errors import ArgumentError
from spillway.model.properties import Duration, Moment, system_name
from spillway.model.rule_values import RuleValue, known_kinds, rule_value
from spillway.model.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    default_rule,
    rule_from_json,
    rule_name_problem,
)

VALUES = {
    "key_string": RuleValue("string", "str1 é \u2603"),
    "key_int": RuleValue("int", "2"),
    "key_long": RuleValue("long", "2147483650"),
    "key_bool": RuleValue("boolean", "false"),
    "key_datetime": RuleValue("dateTime", "2020-07-05T11:12:13"),
    "key_duration": RuleValue("duration", "P1DT2H3M"),
}


@pytest.mark.parametrize(
    "wanted",
    [
        TrueFilter(),
        FalseFilter(),
        SqlFilter("a = 1"),
        SqlFilter("Priority = @param1", {"@param1": RuleValue("string", "str1")}),
        CorrelationFilter(correlation_id="testcid", properties=VALUES),
        CorrelationFilter("a", "b", "c", "d", "e", "f", "g", "h"),
    ],
)
@pytest.mark.parametrize(
    "action", [None, SqlAction("SET a = 1"), SqlAction("SET a = @p", {"@p": VALUES["key_datetime"]})]
)
def test_a_rule_comes_back_as_it_went_in(wanted: RuleFilter, action: SqlAction | None) -> None:
    rule = Rule("test_rule_1", wanted, action, 1_634_793_679_391)
    back = rule_from_json(rule.to_json())
    assert back.to_plain() == rule.to_plain()
    assert type(back.filter) is type(wanted)
    assert (back.name, back.created_ms) == ("test_rule_1", 1_634_793_679_391)


def test_the_default_rule_wants_everything() -> None:
    rule = default_rule(5)
    assert (rule.name, rule.action, rule.created_ms) == ("$Default", None, 5)
    assert isinstance(rule.filter, TrueFilter)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "", ""),
        ("string", " x ", " x "),
        ("int", "-2147483648", -2147483648),
        ("int", "+5", 5),
        ("long", "9223372036854775807", 9223372036854775807),
        ("unsignedLong", "18446744073709551615", 18446744073709551615),
        ("double", "1.5", 1.5),
        ("double", "10", 10.0),
        ("double", "1E-3", 0.001),
        ("double", "-INF", -math.inf),
        ("decimal", "0.25", 0.25),
        ("boolean", "true", True),
        ("boolean", "0", False),
        ("dateTime", "2020-07-05T11:12:13", Moment(1_593_947_533_000)),
        ("dateTime", "2020-07-05T11:12:13.1239999Z", Moment(1_593_947_533_123)),
        ("dateTime", "2020-07-05T13:12:13+02:00", Moment(1_593_947_533_000)),
        ("dateTime", "1969-12-31T23:59:59.999Z", Moment(-1)),
        ("duration", "P1DT2H3M", Duration(93_780_000)),
        ("duration", "PT0.5S", Duration(500)),
        ("duration", "PT1.0009S", Duration(1_000)),
        ("duration", "-PT1M", Duration(-60_000)),
        ("duration", "P1Y2M3D", Duration((365 + 60 + 3) * 86_400_000)),
        ("duration", "P10675199DT2H48M5.4775807S", Duration(922_337_203_685_477)),
        ("guid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")),
        ("base64Binary", "AAE=", b"\x00\x01"),
    ],
)
def test_what_a_typed_value_stands_for(kind: str, text: str, value: object) -> None:
    assert RuleValue(kind, text).value() == value
    assert type(RuleValue(kind, text).value()) is type(value)
    assert kind in known_kinds()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "2147483648"),
        ("int", ""),
        ("int", "1.0"),
        ("int", "1_000"),
        ("int", "\u0661"),
        ("long", "9" * 5_000),
        ("double", "infinity"),
        ("double", "1_0"),
        ("double", ""),
        ("double", "0x1p3"),
        ("boolean", "yes"),
        ("dateTime", "yesterday"),
        ("dateTime", ""),
        ("duration", "P"),
        ("duration", "PT"),
        ("duration", "1D"),
        ("duration", "P1H"),
        ("duration", "P1DT1D"),
        ("duration", "PT1S1M"),
        ("duration", "PT1.5M"),
        ("duration", "PTS"),
        ("duration", "P1D2"),
        ("duration", "P" + "9" * 400 + "D"),
        ("guid", "6ba7"),
        ("base64Binary", "?"),
        ("anyType", "x"),
    ],
)
def test_a_text_that_is_not_of_its_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        RuleValue(kind, text).value()
    assert len(caught.value.description) < 300


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", "string"),
        (True, "boolean"),
        (5, "int"),
        (1 << 40, "long"),
        (0.1, "double"),
        (math.inf, "double"),
        (Moment(1_593_947_533_123), "dateTime"),
        (Duration(-93_780_001), "duration"),
        (uuid.UUID(int=7), "guid"),
        (b"\x00\xff", "base64Binary"),
    ],
)
def test_values_with_a_type_of_their_own_keep_it(value: object, kind: str) -> None:
    made = rule_value(value)
    assert made.kind == kind
    assert made.value() == value


def test_a_value_of_no_known_type_is_refused() -> None:
    for value in (None, [1], {"a": 1}):
        with pytest.raises(ArgumentError, match="A value in a rule is a string"):
            rule_value(value)


@pytest.mark.parametrize("name", ["$Default", "a", "Rule 1", "red-orders_2.0", "x" * 50])
def test_good_names_of_rules(name: str) -> None:
    assert rule_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "x" * 51, " a", "a ", "a/b", "a\\b", "a?b", "a#b", "a\nb", "a\x00"])
def test_bad_names_of_rules(name: str) -> None:
    assert rule_name_problem(name) is not None


def test_system_properties_have_one_spelling() -> None:
    assert system_name("label") == system_name("SUBJECT") == "Label"
    assert system_name("scheduledenqueuetime") == "ScheduledEnqueueTimeUtc"
    assert system_name("LockToken") is None
