"""SQL actions: SET and REMOVE."""

import pytest

from spillway.broker.rules.actions import compile_action
from spillway.model.errors import ArgumentError
from spillway.model.properties import ChangedProperties, Duration, Moment
from spillway.model.rule_values import rule_value
from spillway.model.rules import FilterError, SqlAction
from tests.broker.given_properties import given

SEED = bytes(range(16))
ORDER = given({"quantity": 10, "priority": "high", "Price": 2.5, "begun": Moment(0)}, {"Label": "red", "To": "x"})


def apply(expression: str, parameters: dict[str, object] | None = None) -> ChangedProperties:
    values = {name: rule_value(value) for name, value in (parameters or {}).items()}
    return compile_action(SqlAction(expression, values)).apply(ORDER, SEED)


def test_the_documented_example() -> None:
    changed = apply("SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';")
    assert changed.user_set == {"quantity": 5}
    assert changed.user_removed == {"priority"}
    assert changed.system_set == {"CorrelationId": "low"}


@pytest.mark.parametrize(
    ("expression", "user_set"),
    [
        ("SET x = 1", {"x": 1}),
        ("SET user.x = 'a'", {"x": "a"}),
        ("set [a b] = TRUE", {"a b": True}),
        ("SET x = 1 SET y = 2", {"x": 1, "y": 2}),
        ("SET x = 1;;; SET y = 2;", {"x": 1, "y": 2}),
        ("SET x = 1; SET y = x + 1", {"x": 1, "y": 2}),
        ("SET x = 1; SET X = 2", {"x": 2}),
        ("SET x = quantity * 2.0", {"x": 20.0}),
        ("SET price = 3", {"price": 3.0}),  # stays a double
        ("SET quantity = 'many'", {"quantity": "many"}),
        ("SET x = absent", {"x": None}),
        ("SET x = NULL", {"x": None}),
        ("SET x = priority + '-' + quantity", {"x": "high-10"}),
        ("SET x = sys.Label", {"x": "red"}),
        ("SET x = p('priority')", {"x": "high"}),
        ("REMOVE priority; SET x = priority", {"x": None}),
        ("SET x = begun + @d", {"x": Moment(5)}),
    ],
)
def test_set_makes_and_changes_user_properties(expression: str, user_set: dict[str, object]) -> None:
    assert apply(expression, {"@d": Duration(5)}).user_set == user_set


def test_a_new_property_is_spelt_as_written_and_removed_without_regard_to_case() -> None:
    changed = apply("SET NewOne = 1; SET Other = 2; REMOVE PRIORITY; REMOVE OTHER; REMOVE absent")
    assert changed.user_names == {"newone": "NewOne"}
    assert changed.user_removed == {"priority"}
    assert changed.has_user("newone")
    assert not changed.has_user("other")
    assert not changed.has_user("priority")
    assert changed.is_changed()


def test_a_property_removed_and_set_again_is_set() -> None:
    changed = apply("REMOVE priority; SET priority = 'low'")
    assert (changed.user_set, changed.user_removed) == ({"priority": "low"}, set())


@pytest.mark.parametrize(
    ("expression", "system_set"),
    [
        ("SET sys.Label = sys.Label + '.MyPostFix'", {"Label": "red.MyPostFix"}),
        ("SET sys.subject = 'x'", {"Label": "x"}),
        ("SET sys.To = quantity", {"To": "10"}),
        ("SET sys.MessageId = 'm'; SET sys.SessionId = 's'", {"MessageId": "m", "SessionId": "s"}),
        ("SET sys.ReplyTo = TRUE", {"ReplyTo": "True"}),
        ("REMOVE sys.Label", {"Label": None}),
        ("SET sys.Label = absent", {"Label": None}),
        ("SET sys.TimeToLive = @d", {"TimeToLive": Duration(5)}),
        ("SET sys.ScheduledEnqueueTimeUtc = begun + @d", {"ScheduledEnqueueTimeUtc": Moment(5)}),
    ],
)
def test_settable_system_properties(expression: str, system_set: dict[str, object]) -> None:
    assert apply(expression, {"@d": Duration(5)}).system_set == system_set


def test_a_system_property_that_was_set_is_seen_by_the_next_statement() -> None:
    assert apply("SET sys.To = 'a'; SET sys.To = sys.To + 'b'; REMOVE sys.Label; SET x = sys.Label").user_set == {
        "x": None
    }


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("SET sys.MessageId = p + p + p + 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'", "at most 128 characters"),
        ("SET sys.MessageId = ''", "cannot be empty"),
        ("SET sys.TimeToLive = 5", "a duration greater than zero"),
        ("SET sys.TimeToLive = begun - begun", "a duration greater than zero"),
        ("SET sys.ScheduledEnqueueTimeUtc = '2020-01-01'", "a time, not a string"),
        ("SET sys.Label = begun", "a string, not a time"),
        ("SET x = 1 / 0", "divided by zero"),
        ("SET x = 'a' - begun", "a string and a time"),
        ("SET x = 9223372036854775807; SET x = x + 1", "64 bits"),
    ],
)
def test_what_cannot_be_performed_is_a_filter_error(expression: str, text: str) -> None:
    message = given({"p": "p" * 40, "begun": Moment(0)})
    action = compile_action(SqlAction(expression))
    with pytest.raises(FilterError, match=text):
        action.apply(message, SEED)


@pytest.mark.parametrize(
    ("expression", "place", "details"),
    [
        ("EventType", "line=1, column=1", "expecting REMOVE or SET"),
        ("SET a", "line=1, column=6", "expecting ="),
        ("SET a = 1, SET b = 2", "line=1, column=10", "',' has no meaning here"),
        ("SET a = b = 1", "line=1, column=11", "expecting"),
        ("SET a = (b > 1)", "line=1, column=12", "has no meaning here"),
        ("REMOVE", "line=1, column=7", "expecting a property name"),
        ("SET and = 1", "line=1, column=5", "written in brackets: [name]"),
        ("SET sys.SequenceNumber = 1", "line=1, column=9", "SequenceNumber belongs to the broker; an action may set"),
        ("SET sys.EnqueuedTimeUtc = 1", "line=1, column=9", "belongs to the broker"),
        ("REMOVE sys.DeliveryCount", "line=1, column=12", "belongs to the broker"),
        ("REMOVE sys.MessageId", "line=1, column=12", "it can be set, not removed"),
        ("SET sys.body = 'x'", "line=1, column=9", "there is no system property 'body'"),
        ("SET x = sys.Nothing", "line=1, column=13", "there is no system property"),
        ("SET x = @y", "line=1, column=9", "there is no such parameter"),
    ],
)
def test_a_refused_action_says_where_and_what(expression: str, place: str, details: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        compile_action(SqlAction(expression))
    assert f"[Token {place}," in caught.value.description
    assert details in caught.value.description


def test_new_ids_differ_and_come_of_the_seed_alone() -> None:
    action = compile_action(SqlAction("SET a = newid(); SET b = newid()"))
    first = action.apply(ORDER, SEED).user_set
    assert first["a"] != first["b"]
    assert first == action.apply(ORDER, SEED).user_set
    assert first["a"] not in action.apply(ORDER, SEED[::-1]).user_set.values()


def test_the_message_itself_is_left_alone() -> None:
    apply("SET quantity = 0; REMOVE priority")
    assert (ORDER.user("quantity"), ORDER.user("priority")) == (10, "high")


def test_doubling_a_text_ends_at_the_size_of_a_property() -> None:
    action = compile_action(SqlAction("SET x = priority; " + "SET x = x + x;" * 31))
    with pytest.raises(FilterError, match="longer than 32768 characters"):
        action.apply(ORDER)


def test_an_action_has_at_most_32_statements() -> None:
    assert len(compile_action(SqlAction("SET x = 1;" * 32)).statements) == 32
    with pytest.raises(ArgumentError, match="at most 32 statements, this one has 33"):
        compile_action(SqlAction("SET x = 1;" * 33))
