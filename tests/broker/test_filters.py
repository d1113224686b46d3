"""SQL and correlation filters: the documented language, row by row."""

import uuid

import pytest

from spillway.broker.rules.filters import Condition, SqlCondition, compile_filter
from spillway.model.errors import ArgumentError
from spillway.model.properties import Duration, Moment
from spillway.model.rule_values import RuleValue, rule_value
from spillway.model.rules import CorrelationFilter, FalseFilter, FilterError, SqlFilter, TrueFilter
from tests.broker.given_properties import given

OUTCOMES: dict[int, bool | None] = {0: False, 1: True, 2: None}
SOME_UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

ORDER = given(
    {
        "color": "blue",
        "quantity": 10,
        "Price": 2.5,
        "urgent": True,
        "nothing": None,
        "HR-EmployeeID": 7,
        "Contoso & Northwind": "both",
        "http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName": "account",
        "a]b": 1,
        'say "hi"': 2,
        "id": SOME_UUID,
        "raw": b"\x00\x01",
        "begun": Moment(1_000),
        "ended": Moment(61_000),
        "Größe": 3,
        "in": "reserved",
        "largest": 9_223_372_036_854_775_807,
        "least": -9_223_372_036_854_775_808,
        "pattern": "bl%",
    },
    {"Label": "the bus stop", "MessageId": "xxxx", "CorrelationId": "abc-1", "To": "Store5", "Size": 300},
)


def sql(expression: str, parameters: dict[str, object] | None = None) -> Condition:
    values = {name: rule_value(value) for name, value in (parameters or {}).items()}
    return compile_filter(SqlFilter(expression, values))


def outcome(expression: str, parameters: dict[str, object] | None = None) -> bool | None:
    """True, False, or None for unknown."""
    condition = sql(expression, parameters)
    assert isinstance(condition, SqlCondition)
    found = OUTCOMES[condition.predicate.test(ORDER)]
    assert condition.evaluate(ORDER) is (found is True)
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # examples of the documentation
        ("1=1", True),
        ("1=0", False),
        ("sys.Label LIKE '%bus%'", True),
        ("sys.label LIKE '%bus%' OR user.tag IN ('queue', 'topic', 'subscription')", True),
        ("sys.messageid = 'xxxx'", True),
        ("sys.correlationid like 'abc-%'", True),
        ("sys.label is not null", True),
        ("color='blue' AND quantity=10", True),
        ("user.color='red'", False),
        ("sys.To IN ('Store5','Store6','Store7') OR StoreId = 'Store8'", True),
        ("sys.To NOT IN ('Store1','Store2') OR StoreId NOT IN ('Store1','Store2')", True),
        ("StoreId IN('Store1', 'Store2', 'Store3')", None),
        ("\"http://schemas.microsoft.com/xrm/2011/Claims/EntityLogicalName\" = 'account'", True),
        ("quantity > 2.08", True),
        # names
        ("COLOR = 'blue'", True),
        ("[HR-EmployeeID] = 7", True),
        ("user.[HR-EmployeeID] = 7", True),
        ("\"Contoso & Northwind\" = 'both'", True),
        ("[a]]b] = 1", True),
        ('"say ""hi""" = 2', True),
        ("größe = 3", True),
        ("[in] = 'reserved'", True),
        ("sys.Subject = 'the bus stop'", True),
        ("sys.Size > 200", True),
        ("andy = 1", None),
        ("property('color') = 'blue'", True),
        ("p('CO' + 'LOR') = 'blue'", True),
        ("p('absent') = 'blue'", None),
        ("p('sys.Label') = 'the bus stop'", None),  # user properties only, as on Azure
        # comparisons
        ("quantity = 10", True),
        ("quantity <> 10", False),
        ("quantity != 11", True),
        ("quantity < 10", False),
        ("quantity <= 10", True),
        ("quantity > 9", True),
        ("quantity >= 11", False),
        ("color < 'c'", True),
        ("color = 'Blue'", False),  # case matters in values
        ("color >= 'blue'", True),
        ("'blue' = color", True),
        ("color <> 'red'", True),
        ("price = 2.5", True),
        ("quantity = 10.0", True),
        ("price > 2", True),
        ("price < 25E-1", False),
        ("urgent = TRUE", True),
        ("urgent <> false", True),
        ("id = id", True),
        ("id <> id", False),
        ("raw = raw", True),
        ("begun < ended", True),
        ("largest = 9223372036854775807", True),
        ("least = -9223372036854775808", True),
        ("+quantity = 10", True),
        # mixed types are unknown, and so is the negation
        ("color = 1", None),
        ("NOT (color = 1)", None),
        ("quantity = '10'", None),
        ("urgent = 1", None),
        ("urgent < TRUE", None),
        ("urgent = 'True'", None),
        ("id = '6ba7b810-9dad-11d1-80b4-00c04fd430c8'", None),
        ("id < id", None),
        ("raw > raw", None),
        ("begun = 1000", None),
        ("begun = color", None),
        ("quantity LIKE '10'", None),
        ("color IN (1, 'blue')", True),
        ("color IN (1, 'red')", None),
        # nothing
        ("absent = 1", None),
        ("absent <> 1", None),
        ("NOT absent = 1", None),
        ("nothing = 1", None),
        ("color = NULL", None),
        ("NULL = NULL", None),
        ("absent IS NULL", True),
        ("absent IS NOT NULL", False),
        ("nothing IS NULL", True),
        ("color IS NULL", False),
        ("p('color') IS NOT NULL", True),
        ("sys.ReplyTo IS NULL", True),
        ("sys.ReplyTo = 'x'", None),
        ("EXISTS(color)", True),
        ("EXISTS(nothing)", True),
        ("EXISTS (absent)", False),
        ("NOT EXISTS(absent)", True),
        ("EXISTS(sys.Label)", True),
        ("EXISTS(sys.ReplyTo)", False),
        ("absent + 1 = 2", None),
        ("-absent = 1", None),
        ("absent LIKE 'a'", None),
        ("color LIKE absent", None),
        ("absent IN (1, 2)", None),
        ("quantity IN (1, NULL)", None),
        ("quantity IN (10, NULL)", True),
        ("quantity NOT IN (1, NULL)", None),
        # logic
        ("color = 'blue' OR color = 'red' AND quantity = 0", True),
        ("(color = 'blue' OR color = 'red') AND quantity = 0", False),
        ("NOT color = 'red' AND quantity = 10", True),
        ("NOT (color = 'red' OR quantity = 10)", False),
        ("NOT NOT color = 'blue'", True),
        ("absent = 1 AND color = 'red'", False),
        ("absent = 1 AND color = 'blue'", None),
        ("absent = 1 OR color = 'blue'", True),
        ("absent = 1 OR color = 'red'", None),
        # arithmetic
        ("1 + 2 * 3 = 7", True),
        ("(1 + 2) * 3 = 9", True),
        ("10 - 2 - 3 = 5", True),
        ("100 / 10 / 5 = 2", True),
        ("-7 / 2 = -3", True),
        ("-7 % 3 = -1", True),
        ("7 % -3 = 1", True),
        ("7.5 % 2 = 1.5", True),
        ("7 / 2.0 = 3.5", True),
        ("- - 5 = 5", True),
        ("quantity / 4 = 2", True),
        ("quantity * price = 25", True),
        ("1.0 / 0 > 1E308", True),
        ("-1.0 / 0 < -1E308", True),
        ("0.0 / 0 = 0.0 / 0", False),
        ("0.0 / 0 <> 0.0 / 0", True),
        ("5.0 % 0 = 0", False),
        ("1E308 * 10 > 1E308", True),
        ("color + '-ish' = 'blue-ish'", True),
        ("color + 1 = 'blue1'", True),
        ("1.0 + color = '1blue'", True),
        ("color + urgent = 'blueTrue'", True),
        ("begun - begun < ended - begun", True),
        ("begun + (ended - begun) = ended", True),
        ("ended - (ended - begun) = begun", True),
        ("-(ended - begun) < ended - begun", True),
        # LIKE
        ("color LIKE 'blue'", True),
        ("color LIKE 'BLUE'", False),
        ("color LIKE 'b%'", True),
        ("color LIKE '%e'", True),
        ("color LIKE '%l%'", True),
        ("color LIKE 'b__e'", True),
        ("color LIKE 'b_e'", False),
        ("color LIKE '_%_%_%_%'", True),
        ("color LIKE '_%_%_%_%_'", False),
        ("color LIKE '%'", True),
        ("color LIKE ''", False),
        ("'' LIKE ''", True),
        ("'' LIKE '%%'", True),
        ("'' LIKE '_'", False),
        ("color NOT LIKE 'r%'", True),
        ("'ABC%' LIKE 'ABC\\%' ESCAPE '\\'", True),
        ("'ABCD' LIKE 'ABC\\%' ESCAPE '\\'", False),
        ("'a_b' LIKE 'a!_b' ESCAPE '!'", True),
        ("'axb' LIKE 'a!_b' ESCAPE '!'", False),
        ("'a!b' LIKE 'a!!b' ESCAPE '!'", True),
        ("'a%' LIKE 'a%%' ESCAPE '%'", True),
        ("'ab' LIKE 'a%%' ESCAPE '%'", False),
        ("color LIKE pattern", True),
        ("'it''s' = 'it''s'", True),
        ("'%\u2603%' LIKE '%\u2603_'", True),
    ],
)
def test_the_documented_language(expression: str, expected: bool | None) -> None:
    assert outcome(expression) is expected


@pytest.mark.parametrize(
    ("expression", "parameters", "expected"),
    [
        ("color = @wanted", {"@wanted": "blue"}, True),
        ("color = @wanted", {"wanted": "blue"}, True),
        ("color = @WANTED", {"@wanted": "blue"}, True),
        ("Quantity = @a AND Color = @b", {"@a": 10, "@b": "blue"}, True),
        ("quantity = @a", {"@a": 10.0}, True),
        ("urgent = @yes", {"@yes": True}, True),
        ("begun < @then", {"@then": Moment(2_000)}, True),
        ("(ended-begun) <= @timespan", {"@timespan": Duration(60_000)}, True),
        ("ended-begun <= @timespan", {"@timespan": Duration(59_999)}, False),
        ("id = @id", {"@id": SOME_UUID}, True),
        ("raw = @raw", {"@raw": b"\x00\x01"}, True),
        ("color LIKE @pattern", {"@pattern": "b%"}, True),
        ("color IN (@a, @b)", {"@a": "red", "@b": "blue"}, True),
        ("color = 'blue'", {"@unused": 1}, True),
        ("quantity = -@ten", {"@ten": -10}, True),
    ],
)
def test_parameters_stand_for_their_values(
    expression: str, parameters: dict[str, object], expected: bool | None
) -> None:
    assert outcome(expression, parameters) is expected


def test_a_parameter_may_be_a_time_as_the_sdk_writes_it() -> None:
    condition = compile_filter(SqlFilter("at = @at", {"@at": RuleValue("dateTime", "2020-07-05T11:12:13")}))
    assert condition.evaluate(given({"at": Moment(1_593_947_533_000)}))
    assert not condition.evaluate(given({"at": Moment(1_593_947_533_001)}))


def test_true_and_false_filters_need_no_properties() -> None:
    assert compile_filter(TrueFilter()).evaluate(given())
    assert not compile_filter(FalseFilter()).evaluate(given())


def test_a_condition_that_is_decided_is_not_looked_at_further() -> None:
    assert outcome("color = 'red' AND 1 / 0 = 1") is False
    assert outcome("color = 'blue' OR 1 / 0 = 1") is True


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("1 / 0 = 1", "cannot be divided by zero"),
        ("quantity % (quantity - 10) = 1", "cannot be divided by zero"),
        ("largest + 1 > 0", "does not fit into 64 bits"),
        ("least - 1 < 0", "does not fit into 64 bits"),
        ("largest * 2 > 0", "does not fit into 64 bits"),
        ("-least > 0", "does not fit into 64 bits"),
        ("least / -1 > 0", "does not fit into 64 bits"),
        ("color - 1 = 0", "'-' cannot be applied to a string and a number"),
        ("color * 'x' = 'x'", "'*' cannot be applied to a string and a string"),
        ("urgent + 1 = 2", "'+' cannot be applied to a boolean and a number"),
        ("-color = 1", "a string has no sign"),
        ("-urgent = FALSE", "A boolean has no sign"),
        ("begun + ended > begun", "cannot be applied to a time and a time"),
        ("begun + 1 > begun", "cannot be applied to a time and a number"),
        ("raw + 'x' = 'x'", "cannot be applied to bytes and a string"),
        ("color LIKE quantity", "pattern of LIKE is a string, not a number"),
        ("color LIKE pattern ESCAPE color", "ESCAPE character"),
        ("color LIKE pattern ESCAPE '%'", "must not end with its ESCAPE character"),
        ("color LIKE 'x' ESCAPE quantity", "ESCAPE character"),
        ("p(quantity) = 1", "the name as a string, not a number"),
    ],
)
def test_what_cannot_be_evaluated_is_a_filter_error(expression: str, text: str) -> None:
    with pytest.raises(FilterError, match=text.replace("*", r"\*").replace("+", r"\+")):
        sql(expression).evaluate(ORDER)


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (CorrelationFilter(correlation_id="abc-1"), True),
        (CorrelationFilter(correlation_id="ABC-1"), False),
        (CorrelationFilter(correlation_id="abc-1", label="the bus stop", message_id="xxxx", to="Store5"), True),
        (CorrelationFilter(correlation_id="abc-1", label="another"), False),
        (CorrelationFilter(reply_to="x"), False),
        (CorrelationFilter(session_id="x"), False),
        (CorrelationFilter(reply_to_session_id="x"), False),
        (CorrelationFilter(content_type="x"), False),
        (CorrelationFilter(properties={"color": rule_value("blue")}), True),
        (CorrelationFilter(properties={"COLOR": rule_value("blue")}), True),
        (CorrelationFilter(properties={"color": rule_value("Blue")}), False),
        (CorrelationFilter(properties={"absent": rule_value("blue")}), False),
        (CorrelationFilter(properties={"nothing": rule_value("")}), False),
        (CorrelationFilter(properties={"quantity": RuleValue("double", "10")}), True),
        (CorrelationFilter(properties={"quantity": RuleValue("long", "10")}), True),
        (CorrelationFilter(properties={"quantity": RuleValue("string", "10")}), False),
        (CorrelationFilter(properties={"price": RuleValue("double", "2.5")}), True),
        (CorrelationFilter(properties={"urgent": RuleValue("boolean", "true")}), True),
        (CorrelationFilter(properties={"urgent": RuleValue("int", "1")}), False),
        (CorrelationFilter(properties={"begun": RuleValue("dateTime", "1970-01-01T00:00:01Z")}), True),
        (CorrelationFilter(properties={"id": rule_value(SOME_UUID)}), True),
        (CorrelationFilter(label="the bus stop", properties={"color": rule_value("blue"), "id": rule_value(1)}), False),
    ],
)
def test_correlation_filters_want_every_value_equal(wanted: CorrelationFilter, is_wanted: bool) -> None:
    assert compile_filter(wanted).evaluate(ORDER) is is_wanted


def test_a_correlation_filter_without_a_value_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one property"):
        compile_filter(CorrelationFilter())


@pytest.mark.parametrize(
    ("expression", "place", "details"),
    [
        ("a", "line=1, column=2", "expecting a comparison"),
        ("TRUE", "line=1, column=5", "expecting a comparison, IN, LIKE or NOT"),
        ("a =", "line=1, column=4", "expecting an expression"),
        ("a == 1", "line=1, column=4", "expecting an expression"),
        ("a = 1 AND", "line=1, column=10", "expecting an expression, EXISTS or NOT"),
        ("and = 1", "line=1, column=1", "expecting an expression, EXISTS or NOT"),
        ("a = 1 = 2", "line=1, column=7", "expecting AND, OR or the end"),
        ("(a = 1", "line=1, column=7", "expecting )"),
        ("a = 1)", "line=1, column=6", "expecting the end"),
        ("a IN ()", "line=1, column=7", "expecting an expression"),
        ("a IS 5", "line=1, column=6", "expecting NOT or NULL"),
        ("sys.", "line=1, column=5", "expecting a property name"),
        ("a # 1", "line=1, column=3", "'#' has no meaning here"),
        ("a = 1\n or b ? 2", "line=2, column=7", "'?' has no meaning here"),
        ("a.b = 1", "line=1, column=1", "before the '.' stands sys or user"),
        ("sys.Colour = 1", "line=1, column=5", "there is no system property 'Colour'"),
        ("sys.LockToken = 1", "line=1, column=5", "there is no system property"),
        ("a = @b", "line=1, column=5", "there is no such parameter; given: none"),
        ("newid() = a", "line=1, column=1", "newid() is for actions"),
        ("upper(a) = 'A'", "line=1, column=1", "the functions are"),
        ("p() = 'A'", "line=1, column=1", "the functions are"),
        ("p(1) = 'A'", "line=1, column=3", "the name of a property is a string, not a number"),
        ("a LIKE 5", "line=1, column=8", "the pattern of LIKE is a string, not a number"),
        ("-'a' = 5", "line=1, column=1", "a string has no sign"),
    ],
)
def test_a_refused_filter_says_where_and_what(expression: str, place: str, details: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sql(expression)
    assert caught.value.description.startswith("There was an error parsing the SQL expression. [Token " + place + ",")
    assert details in caught.value.description
