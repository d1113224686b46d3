"""Rules as clients write and read them: maps and described lists (docs/wire.md, "Rules over management")."""

import uuid
from collections.abc import Callable

import pytest

from spillway.amqp.codec import encode
from spillway.amqp.types import Decimal32, Described, Float, Int, Symbol, Timestamp, UInt, ULong
from spillway.dialect.rule_descriptions import read_rule, read_rule_name, rule_description
from spillway.model.errors import ArgumentError
from spillway.model.rule_values import RuleValue
from spillway.model.rules import CorrelationFilter, FalseFilter, Rule, RuleFilter, SqlAction, SqlFilter, TrueFilter
from tests.dialect.visit import NOW_MS

ID = uuid.UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
JS_NULLS: dict[object, object] = dict.fromkeys(
    [
        "correlation-id",
        "message-id",
        "to",
        "reply-to",
        "label",
        "session-id",
        "reply-to-session-id",
        "content-type",
        "properties",
    ]
)


def read(description: object, name: object = "r") -> Rule:
    return read_rule({"rule-name": name, "rule-description": description})


def correlation(fields: dict[object, object]) -> CorrelationFilter:
    found = read({"correlation-filter": fields}).filter
    assert isinstance(found, CorrelationFilter)
    return found


# -- added ------------------------------------------------------------------------------------------------------------


def test_an_sql_filter_without_an_action() -> None:
    rule = read({"sql-filter": {"expression": "a = 1"}})
    assert isinstance(rule.filter, SqlFilter)
    assert (rule.name, rule.filter.expression, rule.action, rule.created_ms) == ("r", "a = 1", None, 0)


def test_an_sql_filter_with_an_action_and_the_keys_that_dotnet_adds() -> None:
    rule = read({"sql-filter": {"expression": "1=1"}, "sql-rule-action": {"expression": "SET a = 1"}, "rule-name": "r"})
    assert rule.action is not None
    assert rule.action.expression == "SET a = 1"


def test_an_action_of_null_is_none() -> None:
    assert read({"sql-filter": {"expression": "1=1"}, "sql-rule-action": None}).action is None


def test_javascript_writes_every_key_of_a_correlation_filter_with_nulls() -> None:
    found = correlation({**JS_NULLS, "label": "orders"})
    assert found.to_plain() == CorrelationFilter(label="orders").to_plain()


def test_each_key_of_a_correlation_filter_has_its_place() -> None:
    keys = [key for key in JS_NULLS if key != "properties"]
    found = correlation({key: f"<{key}>" for key in keys})
    plain = {name.replace("_", "-"): text for name, text in found.to_plain().items() if name not in ("kind",)}
    assert plain == {**{key: f"<{key}>" for key in keys}, "properties": {}}


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("red", "string", "red"),
        (Symbol("red"), "string", "red"),
        (True, "boolean", "true"),
        (Int(5), "int", "5"),
        (UInt(5), "int", "5"),
        (5, "int", "5"),
        (2**40, "long", str(2**40)),
        (1.5, "double", "1.5"),
        (Float(1.5), "double", "1.5"),
        (Timestamp(0), "dateTime", "1970-01-01T00:00:00.000Z"),
        (ID, "guid", str(ID)),
        (b"\x01", "base64Binary", "AQ=="),
        (Described(Symbol("com.microsoft:timespan"), 15_000_000), "duration", "PT1.500S"),
        (
            Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000),
            "dateTime",
            "1970-01-01T00:00:00.000Z",
        ),
        (Described(Symbol("com.microsoft:uri"), "http://x"), "string", "http://x"),
    ],
)
def test_a_correlation_property_may_be_of_any_kind(value: object, kind: str, text: str) -> None:
    assert correlation({"properties": {"p": value}}).properties == {"p": RuleValue(kind, text)}


@pytest.mark.parametrize(
    ("description", "name", "field"),
    [
        ({"sql-filter": {"expression": "1=1"}}, None, "'rule-name'"),
        ({"sql-filter": {"expression": "1=1"}}, b"r", "'rule-name'"),
        (None, "r", "'rule-description'"),
        ("1=1", "r", "'rule-description'"),
        ([], "r", "'rule-description'"),
        ({}, "r", "'sql-filter' or 'correlation-filter'"),
        ({"sql-filter": {"expression": "1=1"}, "correlation-filter": {"to": "x"}}, "r", "either 'sql-filter' or"),
        ({"sql-filter": "1=1"}, "r", "'sql-filter'"),
        ({"sql-filter": {}}, "r", "'expression' of 'sql-filter'"),
        ({"sql-filter": {"expression": 1}}, "r", "'expression' of 'sql-filter'"),
        ({"sql-filter": {"expression": "1=1"}, "sql-rule-action": "SET"}, "r", "'sql-rule-action'"),
        ({"sql-filter": {"expression": "1=1"}, "sql-rule-action": {}}, "r", "'expression' of 'sql-rule-action'"),
        ({"correlation-filter": "x"}, "r", "'correlation-filter'"),
        ({"correlation-filter": {"label": 1}}, "r", "'label' of 'correlation-filter'"),
        ({"correlation-filter": {"message-id": ID}}, "r", "'message-id' of 'correlation-filter'"),
        ({"correlation-filter": {"properties": [1]}}, "r", "'properties'"),
        ({"correlation-filter": {"properties": {1: "x"}}}, "r", "'properties' of 'correlation-filter'"),
        ({"correlation-filter": {"properties": {"p": None}}}, "r", "'p' in 'properties'"),
        ({"correlation-filter": {"properties": {"p": [1]}}}, "r", "'p' in 'properties'"),
        ({"correlation-filter": {"properties": {"p": {"a": 1}}}}, "r", "'p' in 'properties'"),
        ({"correlation-filter": {"properties": {"p": Decimal32(b"1234")}}}, "r", "'p' in 'properties'"),
        ({"correlation-filter": {"properties": {"p": Timestamp(2**62)}}}, "r", "'p' in 'properties'"),
        ({"correlation-filter": {"properties": {"p": Described(Symbol("x"), 1)}}}, "r", "'p' in 'properties'"),
        (
            {"correlation-filter": {"properties": {"p": Described(Symbol("com.microsoft:uri"), 1)}}},
            "r",
            "'p' in 'properties'",
        ),
        (
            {"correlation-filter": {"properties": {"p": Described(Symbol("com.microsoft:timespan"), "1")}}},
            "r",
            "'p' in 'properties'",
        ),
    ],
)
def test_what_is_wrong_is_named(description: object, name: object, field: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read(description, name)
    assert field in caught.value.description


def test_the_name_of_a_rule_to_remove_is_a_string() -> None:
    assert read_rule_name({"rule-name": "r"}) == "r"
    with pytest.raises(ArgumentError, match="'rule-name' must be a string"):
        read_rule_name({"rule-name": 5})


# -- listed -----------------------------------------------------------------------------------------------------------

# Descriptors as eight-byte ulongs (docs/wire.md, "Filters are a digit shorter than actions").
RULE = "00 80 0000013700000004"
EMPTY_ACTION = "00 80 0000013700000005 45"
CREATED = "83 0000018bcfe56800"
NAME = "a1 01 72"


def golden(rule_filter: RuleFilter, action: SqlAction | None = None) -> str:
    return encode(rule_description(Rule("r", rule_filter, action, NOW_MS))).hex()


def as_hex(*parts: str) -> str:
    return "".join(parts).replace(" ", "")


def test_golden_bytes_of_a_true_filter() -> None:
    assert golden(TrueFilter()) == as_hex(RULE, "c0 23 04", "00 80 0000001370000007 45", EMPTY_ACTION, NAME, CREATED)


def test_golden_bytes_of_a_false_filter() -> None:
    assert golden(FalseFilter()) == as_hex(RULE, "c0 23 04", "00 80 0000001370000008 45", EMPTY_ACTION, NAME, CREATED)


def test_golden_bytes_of_an_sql_filter() -> None:
    sql = "00 80 0000001370000006 c0 08 02 a1 03 613d31 54 14"
    assert golden(SqlFilter("a=1")) == as_hex(RULE, "c0 2c 04", sql, EMPTY_ACTION, NAME, CREATED)


def test_golden_bytes_of_an_sql_action() -> None:
    action = "00 80 0000013700000006 c0 0c 02 a1 07 53455420613d31 54 14"
    parts = (RULE, "c0 30 04", "00 80 0000001370000007 45", action, NAME, CREATED)
    assert golden(TrueFilter(), SqlAction("SET a=1")) == as_hex(*parts)


def test_golden_bytes_of_a_correlation_filter() -> None:
    fields = "a1 01 63  a1 01 6d  a1 01 74  40  a1 01 6c  40  40  40"
    properties = "c1 0c 04  a1 01 61  54 05  a1 01 62  a1 01 78"
    correlated = f"00 80 0000001370000009 c0 1f 09 {fields} {properties}"
    wanted = CorrelationFilter(correlation_id="c", message_id="m", to="t", label="l")
    wanted.properties = {"a": RuleValue("int", "5"), "b": RuleValue("string", "x")}
    assert golden(wanted) == as_hex(RULE, "c0 43 04", correlated, EMPTY_ACTION, NAME, CREATED)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "5", Int(5)),
        ("long", "5", 5),
        ("short", "5", 5),
        ("unsignedLong", str(2**64 - 1), ULong(2**64 - 1)),
        ("boolean", "true", True),
        ("string", "5", "5"),
        ("double", "1.5", 1.5),
        ("dateTime", "1970-01-01T00:00:01Z", Timestamp(1_000)),
        ("duration", "PT1.5S", Described(Symbol("com.microsoft:timespan"), 15_000_000)),
        ("guid", str(ID), ID),
        ("base64Binary", "AQ==", b"\x01"),
    ],
)
def test_a_correlation_property_is_listed_in_its_type(kind: str, text: str, value: object) -> None:
    description = rule_description(Rule("r", CorrelationFilter(properties={"p": RuleValue(kind, text)}), None, 0))
    (listed, _, _, _) = _fields(description)
    found = _fields(listed)[8]
    assert isinstance(found, dict)
    assert (found["p"], type(found["p"])) == (value, type(value))


def _fields(described: object) -> list[object]:
    assert isinstance(described, Described)
    assert isinstance(described.descriptor, ULong)
    assert isinstance(described.value, list)
    return described.value


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"sql-filter": {"expression": "a LIKE '%ü'"}, "sql-rule-action": {"expression": "REMOVE a"}},
        lambda: {"correlation-filter": {**JS_NULLS, "to": "x", "properties": {"p": Int(1), "q": Timestamp(5)}}},
    ],
)
def test_what_was_added_is_what_is_listed(make: Callable[[], dict[object, object]]) -> None:
    rule = read(make())
    rule.created_ms = NOW_MS  # as the core stamps it
    (listed, action, name, created) = _fields(rule_description(rule))
    assert (name, created) == ("r", NOW_MS)
    if isinstance(rule.filter, SqlFilter):
        assert _fields(listed) == ["a LIKE '%ü'", 20]
        assert _fields(action) == ["REMOVE a", 20]
    else:
        assert _fields(listed) == [None, None, "x", None, None, None, None, None, {"p": 1, "q": 5}]
        assert _fields(action) == []
