"""The emulator's Config.json: what is read from it, and one line for each mistake (bad input B23)."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.emulator_config.properties import CORRELATION_KEYS, PROPERTIES_OF, RULE_PROPERTIES
from spillway.emulator_config.reader import PROBLEMS_SHOWN_MAX, EmulatorConfig, read_config
from spillway.emulator_config.rule_reader import AT_LEAST_ONE
from spillway.emulator_config.values import FILE_BYTES_MAX, ConfigError
from spillway.model.entity import FOR_EVER_MS, QUEUE, SUBSCRIPTION, TOPIC
from spillway.model.namespaces import namespace_name_problem
from spillway.model.rules import CorrelationFilter, SqlFilter, TrueFilter
from tests.emulator_config.sample_config import SAMPLE

QUEUE_PROPERTIES = PROPERTIES_OF[QUEUE]
TOPIC_PROPERTIES = PROPERTIES_OF[TOPIC]
SUBSCRIPTION_PROPERTIES = PROPERTIES_OF[SUBSCRIPTION]
QUEUE_AT = "$.UserConfig.Namespaces[0].Queues[0]"
PROPERTIES_AT = f"{QUEUE_AT}.Properties"
TOPIC_AT = "$.UserConfig.Namespaces[0].Topics[0]"
SUBSCRIPTION_AT = f"{TOPIC_AT}.Subscriptions[0]"
RULE_AT = f"{SUBSCRIPTION_AT}.Rules[0]"


def queue_file(**properties: Any) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Properties": properties}]}]}}


def topic_file(**members: Any) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": [{"Name": "n", "Topics": [{"Name": "t", **members}]}]}}


def subscription_file(**members: Any) -> dict[str, Any]:
    return topic_file(Subscriptions=[{"Name": "s", **members}])


def rule_file(**properties: Any) -> dict[str, Any]:
    return subscription_file(Rules=[{"Name": "r", "Properties": properties}])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "Config.json"


def read(path: Path, content: object) -> EmulatorConfig:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_config(path)


def mistakes(path: Path, content: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(path, content)
    lines = list(caught.value.lines)
    assert all(line.startswith(f"{path}: ") for line in lines), lines
    assert all("\n" not in line and len(line) < 600 for line in lines), lines
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_the_sample_is_read_as_the_emulator_reads_it(path: Path) -> None:
    config = read(path, SAMPLE)
    [namespace] = config.namespaces
    assert namespace.name == "sbemulatorns"
    assert [(entity.kind, entity.path) for entity in namespace.entities] == [
        (QUEUE, "queue.1"),
        (TOPIC, "topic.1"),
        *((SUBSCRIPTION, f"topic.1/Subscriptions/subscription.{number}") for number in range(1, 5)),
    ]
    for entity in namespace.entities:
        assert entity.settings.default_ttl_ms == 3_600_000
        assert entity.settings.lock_duration_ms == 60_000
        assert entity.settings.dead_letter_on_expiry is False
        if entity.kind != TOPIC:
            assert entity.settings.max_delivery_count == 3
    assert config.warnings == []


def test_the_rules_of_the_sample_are_read(path: Path) -> None:
    rules = [entity.settings.rules for entity in read(path, SAMPLE).namespaces[0].entities[2:]]
    assert [[rule.name for rule in of_one] for of_one in rules] == [
        ["app-prop-filter-1"],
        ["user-prop-filter-1"],
        [],
        ["sql-filter-1"],
    ]
    correlation = rules[0][0].filter
    assert isinstance(correlation, CorrelationFilter)
    assert correlation.to_plain() == {
        "kind": "correlation",
        "content_type": "application/text",
        "correlation_id": "id1",
        "label": "subject1",
        "message_id": "msgid1",
        "reply_to": "someQueue",
        "reply_to_session_id": "sessionId",
        "session_id": "session1",
        "to": "xyz",
        "properties": {},
    }
    user = rules[1][0].filter
    assert isinstance(user, CorrelationFilter)
    assert [(name, value.value()) for name, value in user.properties.items()] == [("prop3", "value3")]
    sql, action = rules[3][0].filter, rules[3][0].action
    assert isinstance(sql, SqlFilter) and action is not None
    assert sql.expression == "sys.MessageId = '123456' AND userProp1 = 'value1'"
    assert action.expression == "SET sys.To = 'Entity'"


def test_a_subscription_without_rules_says_nothing_about_them_and_with_none_gets_the_default(path: Path) -> None:
    said_nothing = read(path, subscription_file()).namespaces[0].entities[1]
    said_none = read(path, subscription_file(Rules=[])).namespaces[0].entities[1]
    assert said_nothing.settings.rules == []
    [rule] = said_none.settings.rules
    assert rule.name == "$Default" and isinstance(rule.filter, TrueFilter)


def test_values_of_correlation_properties_keep_their_types(path: Path) -> None:
    given = {"text": "x", "whole": 5, "large": 2**40, "part": 1.5, "flag": True}
    config = read(path, rule_file(FilterType="Correlation", CorrelationFilter={"Label": None, "Properties": given}))
    found = config.namespaces[0].entities[1].settings.rules[0].filter
    assert isinstance(found, CorrelationFilter)
    assert {name: value.value() for name, value in found.properties.items()} == given
    assert [value.kind for value in found.properties.values()] == ["string", "int", "long", "double", "boolean"]


def test_the_filter_that_the_type_does_not_name_is_a_warning(path: Path) -> None:
    both = {"SqlFilter": {"SqlExpression": "1=1"}, "CorrelationFilter": {"Label": "x"}}
    config = read(path, rule_file(FilterType="Sql", **both))
    at = f"{RULE_AT}.Properties.CorrelationFilter"
    assert config.warnings == [f"{path}: {at}: without effect: FilterType is Sql"]


def test_a_queue_without_properties_has_the_emulators_defaults(path: Path) -> None:
    config = read(path, {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}]}]}})
    settings = config.namespaces[0].entities[0].settings
    assert (settings.default_ttl_ms, settings.lock_duration_ms) == (3_600_000, 60_000)
    assert (settings.max_delivery_count, settings.dead_letter_on_expiry) == (3, False)
    assert (settings.requires_duplicate_detection, settings.duplicate_window_ms) == (False, 20_000)


def test_azures_wider_ranges_are_taken(path: Path) -> None:
    config = read(
        path,
        queue_file(
            DefaultMessageTimeToLive="P10675199DT2H48M5.4775807S",
            LockDuration="PT5M",
            MaxDeliveryCount=2_147_483_647,
            MaxSizeInMegabytes=81_920,
            DeadLetteringOnMessageExpiration=True,
            DuplicateDetectionHistoryTimeWindow="P7D",
            RequiresDuplicateDetection=True,
            RequiresSession=True,
        ),
    )
    settings = config.namespaces[0].entities[0].settings
    assert settings.default_ttl_ms == FOR_EVER_MS
    assert settings.lock_duration_ms == 300_000
    assert settings.max_delivery_count == 2_147_483_647
    assert settings.max_size_mb == 81_920
    assert settings.dead_letter_on_expiry is True
    assert settings.requires_session is True
    assert settings.requires_duplicate_detection is True
    assert settings.duplicate_window_ms == 7 * 86_400_000
    assert config.warnings == []


def test_a_value_that_only_azure_refuses_is_a_warning(path: Path) -> None:
    config = read(path, queue_file(DuplicateDetectionHistoryTimeWindow="PT5S"))
    at = f"{PROPERTIES_AT}.DuplicateDetectionHistoryTimeWindow"
    assert config.warnings == [f'{path}: {at}: "PT5S": Azure allows PT20S to P7D']


def test_any_number_of_namespaces_with_any_names(path: Path) -> None:
    names = ["contoso", "a", "CONTOSO-2", "9"]
    config = read(path, {"UserConfig": {"Namespaces": [{"Name": name} for name in names]}})
    assert [namespace.name for namespace in config.namespaces] == names


def test_a_byte_order_mark_is_accepted(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SAMPLE).encode())
    assert read_config(path).namespaces[0].name == "sbemulatorns"


DURATION = ", written like P1D, PT1H30M or PT5S"
TTL = f"allowed: a duration from PT1S to for ever{DURATION}"
LOCK = f"allowed: a duration from PT5S to PT5M{DURATION}"
WINDOW = f"allowed: a duration from PT5S to P7D{DURATION}"
COUNT = "allowed: a whole number from 1 to 2147483647"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("LockDuration", "PT5X", f'"PT5X": {LOCK}'),
        ("LockDuration", "PT4S", f'"PT4S": {LOCK}'),
        ("LockDuration", "PT5M1S", f'"PT5M1S": {LOCK}'),
        ("LockDuration", "P10675199D", f'"P10675199D": {LOCK}'),
        ("LockDuration", 60, f"60: {LOCK}"),
        ("LockDuration", None, f"null: {LOCK}"),
        ("LockDuration", "", f'"": {LOCK}'),
        ("LockDuration", "x" * 1_000, '"' + "x" * 59 + f"…: {LOCK}"),
        ("DefaultMessageTimeToLive", "PT0S", f'"PT0S": {TTL}'),
        ("DefaultMessageTimeToLive", "PT0.9S", f'"PT0.9S": {TTL}'),
        ("DefaultMessageTimeToLive", "P1X", f'"P1X": {TTL}'),
        ("DuplicateDetectionHistoryTimeWindow", "PT4S", f'"PT4S": {WINDOW}'),
        ("DuplicateDetectionHistoryTimeWindow", "P7DT1S", f'"P7DT1S": {WINDOW}'),
        ("MaxDeliveryCount", 0, f"0: {COUNT}"),
        ("MaxDeliveryCount", -1, f"-1: {COUNT}"),
        ("MaxDeliveryCount", 2**31, f"2147483648: {COUNT}"),
        ("MaxDeliveryCount", 3.0, f"3.0: {COUNT}"),
        ("MaxDeliveryCount", "3", f'"3": {COUNT}'),
        ("MaxDeliveryCount", True, f"true: {COUNT}"),
        ("MaxSizeInMegabytes", 0, "0: allowed: a whole number from 1 to 81920"),
        ("MaxSizeInMegabytes", 81_921, "81921: allowed: a whole number from 1 to 81920"),
        ("DeadLetteringOnMessageExpiration", "true", '"true": allowed: true or false'),
        ("DeadLetteringOnMessageExpiration", 1, "1: allowed: true or false"),
        ("RequiresSession", "yes", '"yes": allowed: true or false'),
        ("RequiresDuplicateDetection", "true", '"true": allowed: true or false'),
        ("ForwardTo", "other", '"other": allowed: a queue or topic of this namespace in this file'),
        ("ForwardTo", 5, "5: allowed: a string"),
        ("ForwardDeadLetteredMessagesTo", "d", '"d": allowed: a queue or topic of this namespace in this file'),
    ],
)
def test_a_wrong_property_is_one_line_with_path_value_and_what_is_allowed(
    path: Path, key: str, value: object, line: str
) -> None:
    assert mistakes(path, queue_file(**{key: value})) == [f"{PROPERTIES_AT}.{key}: {line}"]


def namespaces(*items: object) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": list(items)}}


NAMESPACE_NAME = "allowed: letters, digits and '-', a letter or digit first and last, at most 50 characters"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({}, "$.UserConfig: missing: it is required"),
        ([], "$: []: allowed: an object with UserConfig"),
        ("null", "$: null: allowed: an object with UserConfig"),
        ({"UserConfig": {}}, "$.UserConfig.Namespaces: missing: it is required"),
        ({"UserConfig": 5}, "$.UserConfig: 5: allowed: an object with Namespaces, Logging"),
        ({"UserConfig": {"Namespaces": {}}}, "$.UserConfig.Namespaces: an object: allowed: an array"),
        ({"UserConfig": {"Namespaces": []}}, "$.UserConfig.Namespaces: []: allowed: at least one namespace"),
        (namespaces({}), "$.UserConfig.Namespaces[0].Name: missing: it is required"),
        (namespaces({"Name": 1}), "$.UserConfig.Namespaces[0].Name: 1: allowed: a string"),
        (namespaces({"Name": "a/b"}), f'$.UserConfig.Namespaces[0].Name: "a/b": {NAMESPACE_NAME}'),
        (namespaces({"Name": ".."}), f'$.UserConfig.Namespaces[0].Name: "..": {NAMESPACE_NAME}'),
        (
            namespaces({"Name": "n"}, {"Name": "N"}),
            '$.UserConfig.Namespaces[1].Name: "N": '
            "allowed: a name of its own, whatever its case: $.UserConfig.Namespaces[0] has this one",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "q"}, {"Name": "Q"}]}),
            '$.UserConfig.Namespaces[0].Queues[1].Name: "Q": '
            f"allowed: a name of its own, whatever its case: {QUEUE_AT} has this one",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "a//b"}]}),
            f'{QUEUE_AT}.Name: "a//b": '
            "allowed: the parts of an entity name between slashes must not be empty, '.' or '..'",
        ),
        (
            namespaces({"Name": "n", "Queue": []}),
            "$.UserConfig.Namespaces[0].Queue: []: allowed: no such key; the keys here are Name, Queues, Topics",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "q", "Properties": []}]}),
            f"{PROPERTIES_AT}: []: allowed: an object with {', '.join(QUEUE_PROPERTIES)}",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "x"}], "Topics": [{"Name": "X"}]}),
            f'{TOPIC_AT}.Name: "X": allowed: a name of its own, whatever its case: {QUEUE_AT} has this one',
        ),
        (
            namespaces({"Name": "n", "Topics": [{"Name": "a/subscriptions/b"}]}),
            f'{TOPIC_AT}.Name: "a/subscriptions/b": '
            "allowed: a name without '/Subscriptions/', which leads to the subscriptions of a topic",
        ),
        (namespaces({"Name": "n", "Topics": 5}), "$.UserConfig.Namespaces[0].Topics: 5: allowed: an array"),
        (
            namespaces({"Name": "n", "Topics": [5]}),
            f"{TOPIC_AT}: 5: allowed: an object with Name, Properties, Subscriptions",
        ),
        (
            {"UserConfig": {"Namespaces": [{"Name": "n"}], "Logging": {"Type": "Syslog"}}},
            '$.UserConfig.Logging.Type: "Syslog": allowed: File or Console or File,Console',
        ),
    ],
)
def test_a_wrong_shape_is_one_line(path: Path, content: object, line: str) -> None:
    assert mistakes(path, content) == [line]


FORWARD = '"q": allowed: a queue or topic of this namespace in this file'


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            topic_file(Properties={"RequiresDuplicateDetection": "no"}),
            '.Properties.RequiresDuplicateDetection: "no": allowed: true or false',
        ),
        (
            topic_file(Properties={"DefaultMessageTimeToLive": "P1X"}),
            f'.Properties.DefaultMessageTimeToLive: "P1X": {TTL}',
        ),
        (
            topic_file(Properties={"LockDuration": "PT1M"}),
            f'.Properties.LockDuration: "PT1M": allowed: no such key; the keys here are {", ".join(TOPIC_PROPERTIES)}',
        ),
        (topic_file(Subscriptions={}), ".Subscriptions: an object: allowed: an array"),
        (topic_file(Subscriptions=[{}]), ".Subscriptions[0].Name: missing: it is required"),
        (
            topic_file(Subscriptions=[{"Name": "a/b"}]),
            ".Subscriptions[0].Name: \"a/b\": allowed: the name of a subscription has no '/'",
        ),
        (
            topic_file(Subscriptions=[{"Name": "x" * 51}]),
            f'.Subscriptions[0].Name: "{"x" * 51}": allowed: its name has at most 50 characters, this one has 51',
        ),
        (
            topic_file(Subscriptions=[{"Name": "s"}, {"Name": "S"}]),
            '.Subscriptions[1].Name: "S": '
            f"allowed: a name of its own, whatever its case: {SUBSCRIPTION_AT} has this one",
        ),
        (subscription_file(Properties={"ForwardTo": "q"}), f".Subscriptions[0].Properties.ForwardTo: {FORWARD}"),
        (
            subscription_file(Properties={"ForwardDeadLetteredMessagesTo": "q"}),
            f".Subscriptions[0].Properties.ForwardDeadLetteredMessagesTo: {FORWARD}",
        ),
        (
            subscription_file(Properties={"MaxDeliveryCount": 0}),
            f".Subscriptions[0].Properties.MaxDeliveryCount: 0: {COUNT}",
        ),
        (
            subscription_file(Properties={"RequiresDuplicateDetection": False}),
            ".Subscriptions[0].Properties.RequiresDuplicateDetection: false: "
            f"allowed: no such key; the keys here are {', '.join(SUBSCRIPTION_PROPERTIES)}",
        ),
        (subscription_file(Rules={}), ".Subscriptions[0].Rules: an object: allowed: an array"),
    ],
)
def test_a_mistake_in_a_topic_or_subscription_is_one_line(path: Path, content: object, line: str) -> None:
    assert mistakes(path, content) == [TOPIC_AT + line]


def sql(expression: object) -> dict[str, Any]:
    return rule_file(FilterType="Sql", SqlFilter={"SqlExpression": expression})


def correlation(**members: Any) -> dict[str, Any]:
    return rule_file(FilterType="Correlation", CorrelationFilter=members)


def action(expression: object) -> dict[str, Any]:
    return rule_file(FilterType="Sql", SqlFilter={"SqlExpression": "1=1"}, Action={"SqlExpression": expression})


SQL_AT = ".Properties.SqlFilter.SqlExpression"
ACTION_AT = ".Properties.Action.SqlExpression"
CORRELATION_AT = ".Properties.CorrelationFilter"
PARSING = "There was an error parsing the SQL expression."
VALUE = "allowed: a string, a number of at most 64 bits, true or false"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (subscription_file(Rules=[5]), ": 5: allowed: an object with Name, Properties"),
        (subscription_file(Rules=[{"Name": "r"}]), ".Properties: missing: it is required"),
        (
            subscription_file(
                Rules=[{"Name": "a/b", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}}}]
            ),
            ".Name: \"a/b\": allowed: the name of a rule has no '/'",
        ),
        (rule_file(), ".Properties.FilterType: missing: it is required"),
        (rule_file(FilterType="SQL"), '.Properties.FilterType: "SQL": allowed: Sql or Correlation'),
        (rule_file(FilterType=None), ".Properties.FilterType: null: allowed: Sql or Correlation"),
        (rule_file(FilterType=[]), ".Properties.FilterType: []: allowed: Sql or Correlation"),
        (rule_file(FilterType="Sql"), ".Properties.SqlFilter: missing: FilterType Sql requires it"),
        (
            rule_file(FilterType="Correlation", SqlFilter={"SqlExpression": "1=1"}),
            ".Properties.CorrelationFilter: missing: FilterType Correlation requires it",
        ),
        (
            rule_file(FilterType="Sql", SqlFilter="1=1"),
            '.Properties.SqlFilter: "1=1": allowed: an object with SqlExpression',
        ),
        (rule_file(FilterType="Sql", SqlFilter={}), f"{SQL_AT}: missing: it is required"),
        (sql(5), f"{SQL_AT}: 5: allowed: a string"),
        (sql(None), f"{SQL_AT}: null: allowed: a string"),
        (sql(""), f'{SQL_AT}: "": allowed: a condition in SQL: The SQL expression of a filter must not be empty.'),
        (
            sql("price >"),
            f'{SQL_AT}: "price >": allowed: a condition in SQL: {PARSING} [Token line=1, column=8, '
            "Token in error=the end, Additional details=syntax error, expecting an expression]",
        ),
        (
            sql("sys.Colour\n= 'red'"),
            f"{SQL_AT}: \"sys.Colour\\n= 'red'\": allowed: a condition in SQL: {PARSING} [Token line=1, column=5, "
            "Token in error=Colour, Additional details=there is no system property 'Colour']",
        ),
        (
            sql("a" * 1_025),
            f'{SQL_AT}: "{"a" * 59}…: allowed: a condition in SQL: '
            "The SQL expression of a filter has at most 1024 characters, this one has 1025.",
        ),
        (
            action("colour = 'red'"),
            f"{ACTION_AT}: \"colour = 'red'\": allowed: SET and REMOVE statements in SQL: {PARSING} [Token line=1, "
            "column=1, Token in error=colour, Additional details=syntax error, expecting REMOVE or SET]",
        ),
        (
            action(""),
            f'{ACTION_AT}: "": allowed: SET and REMOVE statements in SQL: '
            "The SQL expression of an action must not be empty.",
        ),
        (
            rule_file(
                FilterType="Sql", SqlFilter={"SqlExpression": "1=1"}, Action={"SqlExpression": "REMOVE a", "Sql": "x"}
            ),
            '.Properties.Action.Sql: "x": allowed: no such key; the keys here are SqlExpression',
        ),
        (correlation(), f"{CORRELATION_AT}: an object: allowed: {AT_LEAST_ONE}"),
        (correlation(Label=None, Properties={}), f"{CORRELATION_AT}: an object: allowed: {AT_LEAST_ONE}"),
        (correlation(Label=5), f"{CORRELATION_AT}.Label: 5: allowed: a string"),
        (
            correlation(Label=""),
            f'{CORRELATION_AT}.Label: "": allowed: a text to compare with; leave the key out if it does not matter',
        ),
        (
            correlation(Subject="x"),
            f'{CORRELATION_AT}.Subject: "x": allowed: no such key; the keys here are {", ".join(CORRELATION_KEYS)}',
        ),
        (
            correlation(Properties=["x"]),
            f"{CORRELATION_AT}.Properties: an array: allowed: an object with the properties to compare with",
        ),
        (correlation(Properties={"a": None}), f"{CORRELATION_AT}.Properties.a: null: {VALUE}"),
        (correlation(Properties={"a": {}}), f"{CORRELATION_AT}.Properties.a: an object: {VALUE}"),
        (correlation(Properties={"a": 2**64}), f"{CORRELATION_AT}.Properties.a: {2**64}: {VALUE}"),
        (
            correlation(Properties={"a": 1, "A": 2}),
            f"{CORRELATION_AT}: an object: allowed: "
            "The correlation property 'A' is given twice; the case of names does not matter.",
        ),
        (
            correlation(SessionId="x" * 129),
            f"{CORRELATION_AT}: an object: allowed: SessionId of a correlation filter has at most 128 characters.",
        ),
        (
            rule_file(FilterType="Sql", SqlFilter={"SqlExpression": "1=1"}, SqlFilters={}),
            f".Properties.SqlFilters: an object: allowed: no such key; the keys here are {', '.join(RULE_PROPERTIES)}",
        ),
    ],
)
def test_a_mistake_in_a_rule_is_one_line(path: Path, content: object, line: str) -> None:
    assert mistakes(path, content) == [RULE_AT + line]


def test_two_rules_of_one_subscription_need_two_names(path: Path) -> None:
    properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}}
    rules = [{"Name": name, "Properties": properties} for name in ("r", "R")]
    assert mistakes(path, subscription_file(Rules=rules)) == [
        f'{SUBSCRIPTION_AT}.Rules[1].Name: "R": allowed: a name of its own, whatever its case: {RULE_AT} has this one'
    ]


def test_a_secret_in_an_expression_is_not_printed_token_by_token(path: Path) -> None:
    [line] = mistakes(path, sql("SharedAccessKey hunter2hunter2"))
    assert line == f"{RULE_AT}{SQL_AT}: (a value that is not shown): allowed: a condition in SQL"


def test_an_unknown_property_lists_the_known_ones(path: Path) -> None:
    [line] = mistakes(path, queue_file(LockDurationn="PT1M"))
    keys = ", ".join(QUEUE_PROPERTIES)
    assert line == f'{PROPERTIES_AT}.LockDurationn: "PT1M": allowed: no such key; the keys here are {keys}'


def test_a_key_that_comes_twice_is_a_mistake(path: Path) -> None:
    text = '{"UserConfig": {"Namespaces": [{"Name": "a", "Name": "b"}]}}'
    assert mistakes(path, text) == ['$.UserConfig.Namespaces[0].Name: "b": allowed: each key once']


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "line 1, column 1: the end of the line or file: not JSON: Expecting value"),
        ("{\n  // ours\n}", 'line 2, column 3: "// ours": JSON has no comments'),
        ("/* ours */ {}", 'line 1, column 1: "/* ours */ {}": JSON has no comments'),
        ("{'UserConfig': 1}", "line 1, column 2: \"'UserConfig': 1}\": JSON has double quotes only"),
        ('{"UserConfig": NaN}', "a number that is too long, NaN or Infinity: allowed: plain numbers"),
        ('{"UserConfig": ' + "9" * 5_000 + "}", "a number that is too long, NaN or Infinity: allowed: plain numbers"),
        ('{"UserConfig": 1} x', 'line 1, column 19: "x": not JSON: Extra data'),
        ("[" * 100_000, "nested too deeply to be a configuration"),
    ],
)
def test_what_is_not_json_is_one_line_that_says_where(path: Path, text: str, line: str) -> None:
    assert mistakes(path, text) == [line]


@pytest.mark.parametrize("text", ['{"UserConfig": 1,\n}', '{"UserConfig": [1,\n]}'])
def test_a_trailing_comma_is_named_with_its_line_and_column(path: Path, text: str) -> None:
    [line] = mistakes(path, text)
    assert line.startswith(("line 1, column ", "line 2, column 1"))  # Python 3.13 points at the comma
    assert line.endswith(": JSON has no comma before a closing bracket")


def test_a_missing_file_is_one_line(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: cannot be read: No such file or directory",)


def test_a_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    assert caught.value.lines == (f"{tmp_path}: cannot be read: Is a directory",)


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root may read everything; step down for a moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)


def test_an_unreadable_file_is_one_line(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)
    with as_an_ordinary_user(), pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: cannot be read: Permission denied",)


def test_a_file_of_fifty_megabytes_is_refused_without_reading_it_all(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: larger than {FILE_BYTES_MAX // 1024 // 1024} MB, the most that is read",)


def test_a_device_without_end_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: larger than 16 MB"):
        read_config(Path("/dev/zero"))


def test_another_encoding_is_one_line(path: Path) -> None:
    path.write_bytes(json.dumps(SAMPLE).encode("utf-16"))
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: byte 0 is not UTF-8, the encoding that is allowed",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SharedAccessKey", "hunter2hunter2"),
        ("Password", "hunter2hunter2"),
        ("ForwardTo", "Endpoint=sb://x;SharedAccessKeyName=k;SharedAccessKey=hunter2hunter2"),
    ],
)
def test_a_secret_that_strayed_into_the_file_is_not_printed(path: Path, key: str, value: str) -> None:
    [line] = mistakes(path, queue_file(**{key: value}))
    assert "hunter2" not in line
    assert "(a value that is not shown)" in line


def test_all_mistakes_are_found_in_one_go_and_the_list_is_bounded(path: Path) -> None:
    queues = [{"Name": f"q{number}", "Properties": {"MaxDeliveryCount": 0}} for number in range(1_000)]
    lines = mistakes(path, namespaces({"Name": "n", "Queues": queues}))
    assert len(lines) == PROBLEMS_SHOWN_MAX + 1
    assert lines[-1] == "and 980 more mistakes"


def test_three_different_mistakes_are_three_lines(path: Path) -> None:
    lines = mistakes(path, queue_file(LockDuration="PT5X", MaxDeliveryCount=0, RequiresDuplicateDetection=1))
    assert [line.split(":")[0].rpartition(".")[2] for line in lines] == [
        "LockDuration",
        "MaxDeliveryCount",
        "RequiresDuplicateDetection",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(["Name"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(
    value=JSON,
    place=st.sampled_from(
        ["root", "user", "namespace", "queue", "properties", "name", *QUEUE_PROPERTIES, "topic", "subscription", "rule"]
        + ["rules", "filter", "sql", "action", "correlation", "values"]
    ),
)
def test_whatever_stands_in_the_file_the_answer_is_a_config_or_lines(
    tmp_path_factory: pytest.TempPathFactory, value: object, place: str
) -> None:
    contents: dict[str, object] = {
        "root": value,
        "user": {"UserConfig": value},
        "namespace": namespaces(value),
        "queue": namespaces({"Name": "n", "Queues": [value]}),
        "properties": namespaces({"Name": "n", "Queues": [{"Name": "q", "Properties": value}]}),
        "name": namespaces({"Name": value}),
        "topic": namespaces({"Name": "n", "Topics": [value]}),
        "subscription": topic_file(Subscriptions=[value]),
        "rules": subscription_file(Rules=value),
        "rule": subscription_file(Rules=[{"Name": "r", "Properties": value}]),
        "filter": rule_file(FilterType=value),
        "sql": sql(value),
        "action": action(value),
        "correlation": rule_file(FilterType="Correlation", CorrelationFilter=value),
        "values": correlation(Properties=value),
    }
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(contents.get(place) if place in contents else queue_file(**{place: value})))
    try:
        config = read_config(path)
    except ConfigError as error:
        assert error.lines
        assert all("\n" not in line and "\r" not in line for line in error.lines)
    else:
        assert all(namespace_name_problem(namespace.name) is None for namespace in config.namespaces)


def forward_file(**properties: Any) -> dict[str, Any]:
    """The queue `q` with these properties, a queue `other`, a topic `t` with a subscription `s`."""
    queues = [{"Name": "q", "Properties": properties}, {"Name": "other"}]
    return namespaces({"Name": "n", "Queues": queues, "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s"}]}]})


def test_entities_forward_to_queues_and_topics_of_the_file_wherever_they_stand_in_it(path: Path) -> None:
    path.write_text(json.dumps(forward_file(ForwardTo="OTHER", ForwardDeadLetteredMessagesTo="t")))
    settings = read_config(path).namespaces[0].entities[0].settings
    assert (settings.forward_to, settings.forward_dead_letters_to) == ("OTHER", "t")


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ({"ForwardTo": "Q"}, '.ForwardTo: "Q": allowed: a queue or topic other than itself'),
        ({"ForwardTo": "t/Subscriptions/s"}, f'.ForwardTo: "t/Subscriptions/s": {FORWARD.partition(": ")[2]}'),
        (
            {"ForwardDeadLetteredMessagesTo": "nowhere"},
            f'.ForwardDeadLetteredMessagesTo: "nowhere": {FORWARD.partition(": ")[2]}',
        ),
        (
            {"ForwardTo": "other", "RequiresSession": True},
            '.ForwardTo: "other": allowed: "", with RequiresSession: messages of sessions are not forwarded',
        ),
    ],
)
def test_a_wrong_destination_is_one_line(path: Path, properties: dict[str, Any], line: str) -> None:
    assert mistakes(path, forward_file(**properties)) == [PROPERTIES_AT + line]


def test_a_subscription_does_not_forward_to_its_own_topic(path: Path) -> None:
    (line,) = mistakes(path, subscription_file(Properties={"ForwardTo": "t"}))
    assert line.endswith('.Subscriptions[0].Properties.ForwardTo: "t": allowed: a queue or topic other than itself')


def test_the_entities_of_another_namespace_are_no_destinations(path: Path) -> None:
    first = {"Name": "one", "Queues": [{"Name": "a", "Properties": {"ForwardTo": "b"}}]}
    (line,) = mistakes(path, namespaces(first, {"Name": "two", "Queues": [{"Name": "b"}]}))
    assert line.endswith('Properties.ForwardTo: "b": allowed: a queue or topic of this namespace in this file')
