"""`/$spillway/config`: a namespace as Config.json, read back by the reader of `spillway serve --config`."""

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from spillway.emulator_config.entities import NamespaceConfig
from spillway.emulator_config.properties import KEPT_BY_THE_BROKER, PROPERTIES_OF
from spillway.emulator_config.reader import read_config
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.pytest_plugin import LocalNamespace
from tests.admin.client import Client


@pytest.fixture
def namespace() -> Iterator[LocalNamespace]:
    with LocalNamespace("local") as opened:
        yield opened


@pytest.fixture
def administration(namespace: LocalNamespace) -> Iterator[ServiceBusAdministrationClient]:
    with namespace.administration() as client:
        yield client


def exported(namespace: LocalNamespace) -> tuple[dict[str, Any], list[str]]:
    client = Client(namespace.port)
    answered = client.ask("GET", "/$spillway/config")
    client.close()
    assert answered.status == 200, answered.body
    answer = json.loads(answered.body)
    return answer["config"], answer["warnings"]


def read_back(config: dict[str, Any], directory: Path) -> NamespaceConfig:
    path = directory / "Config.json"
    path.write_text(json.dumps(config))
    (read,) = read_config(path).namespaces
    return read


def comparable(settings: EntitySettings) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(settings.to_json())
    for rule in values["rules"]:
        rule["created_ms"] = 0
    return {name: value for name, value in values.items() if name not in KEPT_BY_THE_BROKER or name == "rules"}


def test_an_empty_namespace_is_a_file_too(namespace: LocalNamespace, tmp_path: Path) -> None:
    config, warnings = exported(namespace)
    assert warnings == []
    assert config == {
        "UserConfig": {
            "Namespaces": [{"Name": "local", "Queues": [], "Topics": []}],
            "Logging": {"Type": "Console"},
        }
    }
    assert read_back(config, tmp_path).entities == []


def test_every_property_is_said_since_the_emulators_defaults_are_others(namespace: LocalNamespace) -> None:
    namespace.queue("plain")
    namespace.topic("news")
    namespace.subscription("news", "all")
    config, warnings = exported(namespace)
    (found,) = config["UserConfig"]["Namespaces"]
    for_ever = "P10675199DT2H48M5.4775807S"
    assert found["Queues"] == [
        {
            "Name": "plain",
            "Properties": {
                "DeadLetteringOnMessageExpiration": False,
                "DefaultMessageTimeToLive": for_ever,
                "DuplicateDetectionHistoryTimeWindow": "PT10M",
                "ForwardDeadLetteredMessagesTo": "",
                "ForwardTo": "",
                "LockDuration": "PT1M",
                "MaxDeliveryCount": 10,
                "RequiresDuplicateDetection": False,
                "RequiresSession": False,
            },
        }
    ]
    (topic,) = found["Topics"]
    assert topic["Properties"]["DefaultMessageTimeToLive"] == for_ever
    assert topic["Subscriptions"][0]["Rules"] == []
    assert {*topic["Properties"], "MaxSizeInMegabytes"} == set(PROPERTIES_OF[TOPIC])
    assert set(topic["Subscriptions"][0]["Properties"]) == set(PROPERTIES_OF[SUBSCRIPTION])
    assert {*found["Queues"][0]["Properties"], "MaxSizeInMegabytes"} == set(PROPERTIES_OF[QUEUE])
    assert warnings == []


def test_what_is_read_back_is_what_was_there(
    namespace: LocalNamespace, administration: ServiceBusAdministrationClient, tmp_path: Path
) -> None:
    namespace.queue("b/second", lock_duration=timedelta(seconds=45), max_delivery_count=7)
    namespace.queue(
        "A-first",
        requires_session=True,
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live=timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500),
    )
    window = timedelta(minutes=3)
    namespace.queue("d", requires_duplicate_detection=True, duplicate_detection_history_time_window=window)
    namespace.queue("c", forward_to="A-first", forward_dead_lettered_messages_to="b/second")
    namespace.topic("news", default_message_time_to_live=timedelta(hours=2), max_size_in_megabytes=2048)
    namespace.subscription("news", "rules")
    for name, wanted, action in (
        ("sql", SqlRuleFilter("a = 'x\u00e9\"' AND b > 1"), SqlRuleAction("SET c = 'y'; REMOVE d")),
        ("correlation", CorrelationRuleFilter(label="l", content_type="t", properties={"p": "v", "n": 5}), None),
        ("kinds", CorrelationRuleFilter(properties={"f": 1.5, "yes": True, "long": 1 << 40}), None),
    ):
        administration.create_rule("news", "rules", name, filter=wanted, action=action)
    administration.delete_rule("news", "rules", "$Default")
    namespace.subscription("news", "default", dead_lettering_on_message_expiration=True, forward_to="b/second")
    config, warnings = exported(namespace)
    assert warnings == []
    (found,) = config["UserConfig"]["Namespaces"]
    assert [queue["Name"] for queue in found["Queues"]] == ["A-first", "b/second", "c", "d"]
    assert [each["Name"] for each in found["Topics"][0]["Subscriptions"]] == ["default", "rules"]
    read = read_back(config, tmp_path)
    assert [entity.path for entity in read.entities] == [
        "A-first",
        "b/second",
        "c",
        "d",
        "news",
        "news/Subscriptions/default",
        "news/Subscriptions/rules",
    ]
    directory = namespace._host.server.core.directory
    for entity in read.entities:
        there = directory.find(entity.path)
        assert there is not None
        mine, theirs = comparable(entity.settings), comparable(there.settings)
        if entity.path.endswith("rules"):  # the SDK calls all whole numbers long; they are equal by value
            assert [rule["name"] for rule in mine.pop("rules")] == [rule["name"] for rule in theirs.pop("rules")]
        assert mine == theirs, entity.path


def test_true_and_false_filters_are_said_in_sql(
    namespace: LocalNamespace, administration: ServiceBusAdministrationClient, tmp_path: Path
) -> None:
    namespace.topic("t")
    namespace.subscription("t", "s")
    administration.create_rule("t", "s", "never", filter=FalseRuleFilter())
    administration.create_rule("t", "s", "always", filter=TrueRuleFilter())
    config, warnings = exported(namespace)
    rules = config["UserConfig"]["Namespaces"][0]["Topics"][0]["Subscriptions"][0]["Rules"]
    said = {rule["Name"]: rule["Properties"] for rule in rules}
    assert said["$Default"] == said["always"] == {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}}
    assert said["never"]["SqlFilter"]["SqlExpression"] == "1=0"
    assert warnings == []
    assert len(read_back(config, tmp_path).entities) == 2


def test_what_the_file_has_no_words_for_is_listed(
    namespace: LocalNamespace, administration: ServiceBusAdministrationClient, tmp_path: Path
) -> None:
    namespace.queue("q", user_metadata="ours", enable_express=True, status="Disabled")
    namespace.queue("short", default_message_time_to_live=timedelta(milliseconds=500))
    namespace.topic("t", enable_batched_operations=False, auto_delete_on_idle=timedelta(hours=1))
    namespace.subscription("t", "s", dead_lettering_on_filter_evaluation_exceptions=False)
    namespace.subscription("t", "silent")
    administration.create_rule("t", "s", "parameters", filter=SqlRuleFilter("a = @x", {"@x": "y"}))
    administration.create_rule("t", "s", "typed", filter=CorrelationRuleFilter(properties={"t": timedelta(hours=1)}))
    administration.delete_rule("t", "silent", "$Default")
    config, warnings = exported(namespace)
    assert warnings == [
        "queue q: Config.json cannot express EnableExpress, Status, UserMetadata",
        "queue short: DefaultMessageTimeToLive is PT0.5S; PT1S is the least in Config.json",
        "topic t: Config.json cannot express AutoDeleteOnIdle, EnableBatchedOperations",
        "subscription t/Subscriptions/s: Config.json cannot express DeadLetteringOnFilterEvaluationExceptions",
        "subscription t/Subscriptions/s: rule parameters is left out: Config.json has no parameters of SQL expressions",
        "subscription t/Subscriptions/s: rule typed is left out: Config.json has no values of the type duration (t)",
        "subscription t/Subscriptions/silent: a rule that selects nothing stands for no rule at all",
    ]
    assert len(read_back(config, tmp_path).entities) == 5, "the file can be read all the same"


def test_no_key_of_a_rule_is_in_the_file(
    namespace: LocalNamespace, administration: ServiceBusAdministrationClient
) -> None:
    key = base64.b64encode(b"hush" * 8).decode()
    rule = AuthorizationRule(rights=["Send"], key_name="senders", primary_key=key)
    administration.create_queue("ruled", authorization_rules=[rule])
    config, warnings = exported(namespace)
    assert warnings == ["queue ruled: Config.json cannot express AuthorizationRules"]
    assert key not in json.dumps(config)
    assert "senders" not in json.dumps(config)


def test_who_may_not_manage_gets_no_file(namespace: LocalNamespace) -> None:
    client = Client(namespace.port)
    client.token = None
    assert client.ask("GET", "/$spillway/config").status == 401
    client.close()
