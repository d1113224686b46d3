"""What the writer writes, the reader reads to the same entities: every property, with values unlike both defaults."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.emulator_config.entities import EntityConfig, NamespaceConfig
from spillway.emulator_config.properties import (
    CORRELATION_TEXTS,
    KEPT_BY_THE_BROKER,
    OURS,
    PROPERTIES,
    PROPERTIES_OF,
    UNSAID,
)
from spillway.emulator_config.reader import read_config
from spillway.emulator_config.values import ConfigError
from spillway.emulator_config.writer import write_config
from spillway.model import limits
from spillway.model.access import SEND, AccessRule
from spillway.model.entity import (
    FOR_EVER_MS,
    QUEUE,
    STATUS_DISABLED,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
    subscription_path,
)
from spillway.model.rule_values import rule_value
from spillway.model.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    default_rule,
)
from tests.emulator_config.sample_config import SAMPLE

DAY_MS = 86_400_000
# For each property values that go there and back, the least and the most among them. `other` is a queue.
VALUES: dict[str, tuple[object, ...]] = {
    "DeadLetteringOnMessageExpiration": (False, True),
    "DefaultMessageTimeToLive": (FOR_EVER_MS, 1_000, 1_001, 3_600_000, DAY_MS + 7_384_500, 10_000 * DAY_MS),
    "DuplicateDetectionHistoryTimeWindow": (20_000, 20_500, 600_000, 7 * DAY_MS),
    "ForwardDeadLetteredMessagesTo": ("", "other", "OTHER"),
    "ForwardTo": ("", "other", "OTHER"),
    "LockDuration": (limits.LOCK_DURATION_MS_MIN, 45_250, limits.LOCK_DURATION_MS_MAX),
    "MaxDeliveryCount": (1, 3, 10, limits.DELIVERY_COUNT_MAX_MAX),
    "MaxSizeInMegabytes": (1, limits.ENTITY_SIZE_MB_DEFAULT, 2_048, limits.ENTITY_SIZE_MB_MAX),
    "RequiresDuplicateDetection": (False, True),
    "RequiresSession": (False, True),
}
CASES = [
    pytest.param(kind, key, value, id=f"{kind}-{key}-{value}")
    for kind, keys in PROPERTIES_OF.items()
    for key in keys
    for value in VALUES[key]
]


def correlation(texts: dict[str, str]) -> CorrelationFilter:
    """Texts by their keys in the file."""
    found = CorrelationFilter()
    for key, text in texts.items():
        setattr(found, CORRELATION_TEXTS[key], text)
    return found


FILTERS: dict[str, RuleFilter] = {
    "sql": SqlFilter("a = 'x\u00e9\"' AND b > 1"),
    **{key: correlation({key: "x"}) for key in CORRELATION_TEXTS},
    "texts": correlation({key: f"its {key}" for key in CORRELATION_TEXTS}),
    "values": CorrelationFilter(
        properties={
            name: rule_value(value)
            for name, value in (("text", "v"), ("int", 5), ("long", 1 << 40), ("part", 1.5), ("flag", True))
        }
    ),
}
# Values unlike the defaults of what the file cannot say.
OTHERS: dict[str, object] = {
    "access_rules": [AccessRule("senders", SEND, "first", "second")],
    "auto_delete_ms": 3_600_000,
    "dead_letter_on_filter_error": False,
    "is_batched": False,
    "is_express": True,
    "is_partitioned": True,
    "status": STATUS_DISABLED,
    "supports_ordering": False,
    "user_metadata": "ours",
}


def made(kind: str, **values: object) -> EntityConfig:
    """An entity called `it` of this kind, a subscription below the topic `news`."""
    settings = EntitySettings()
    if kind == SUBSCRIPTION:
        settings.rules = [default_rule(0)]
    for name, value in values.items():
        setattr(settings, name, value)
    return EntityConfig(kind, subscription_path("news", "it") if kind == SUBSCRIPTION else "it", settings)


def with_others(entity: EntityConfig) -> NamespaceConfig:
    """A namespace in which it can be, and can forward to."""
    topic = [EntityConfig(TOPIC, "news", EntitySettings())] if entity.kind == SUBSCRIPTION else []
    return NamespaceConfig("mine", [EntityConfig(QUEUE, "other", EntitySettings()), *topic, entity])


def there_and_back(namespace: NamespaceConfig, path: Path) -> NamespaceConfig:
    """Nothing is lost on the way, and nothing is warned of."""
    written = write_config(namespace)
    assert written.warnings == []
    path.write_text(json.dumps(written.content))
    config = read_config(path)
    assert config.warnings == []
    (read,) = config.namespaces
    return read


def plain(namespace: NamespaceConfig) -> list[tuple[str, str, dict[str, Any]]]:
    """The entities by kind and path, with all that they are set up with."""
    found = [(each.kind, each.path, json.loads(each.settings.to_json())) for each in namespace.entities]
    return sorted(found, key=lambda each: each[:2])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "Config.json"


def test_the_table_of_values_has_every_property() -> None:
    assert set(VALUES) == set(PROPERTIES)
    assert {key for keys in PROPERTIES_OF.values() for key in keys} == set(PROPERTIES)


@pytest.mark.parametrize(("kind", "key", "value"), CASES)
def test_a_property_is_read_as_it_was_written(path: Path, kind: str, key: str, value: object) -> None:
    namespace = with_others(made(kind, **{PROPERTIES[key]: value}))
    assert plain(there_and_back(namespace, path)) == plain(namespace)


def test_the_defaults_of_both_are_told_apart(path: Path) -> None:
    """A file that says nothing has the emulator's; what is written is Azure's, all of it."""
    written = write_config(with_others(made(QUEUE)))
    queue = written.content["UserConfig"]["Namespaces"][0]["Queues"][0]
    assert set(queue["Properties"]) == set(PROPERTIES_OF[QUEUE]) - set(OURS)
    queue["Properties"] = {}
    path.write_text(json.dumps(written.content))
    settings = read_config(path).namespaces[0].entities[0].settings
    assert (settings.max_delivery_count, settings.default_ttl_ms) == (3, 3_600_000)


@given(st.data())
def test_all_properties_together_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(sorted(PROPERTIES_OF)))
    values = {PROPERTIES[key]: data.draw(st.sampled_from(VALUES[key])) for key in PROPERTIES_OF[kind]}
    if values.get("requires_session"):
        values["forward_to"] = ""  # messages of sessions are not forwarded
    namespace = with_others(made(kind, **values))
    assert plain(there_and_back(namespace, tmp_path_factory.getbasetemp() / "any.json")) == plain(namespace)


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("action", [None, "SET c = 'y'; REMOVE d"])
def test_a_rule_is_read_as_it_was_written(path: Path, name: str, action: str | None) -> None:
    rules = [Rule(name, FILTERS[name], None if action is None else SqlAction(action), 0)]
    namespace = with_others(made(SUBSCRIPTION, rules=rules))
    assert plain(there_and_back(namespace, path)) == plain(namespace)


def test_rules_stay_in_their_order(path: Path) -> None:
    rules = [Rule(name, wanted, None, 0) for name, wanted in reversed(FILTERS.items())]
    namespace = with_others(made(SUBSCRIPTION, rules=rules))
    assert plain(there_and_back(namespace, path)) == plain(namespace)


def test_filters_that_have_no_sql_of_their_own_are_read_as_sql(path: Path) -> None:
    rules = [Rule("never", FalseFilter(), None, 0), Rule("always", TrueFilter(), None, 0)]
    read = there_and_back(with_others(made(SUBSCRIPTION, rules=rules)), path)
    found = [rule.filter for rule in read.entities[-1].settings.rules]
    assert [each.expression for each in found if isinstance(each, SqlFilter)] == ["1=0", "1=1"]


def test_the_sample_of_the_emulator_goes_there_and_back(path: Path) -> None:
    path.write_text(json.dumps(SAMPLE))
    (namespace,) = read_config(path).namespaces
    for entity in namespace.entities:
        if entity.kind == SUBSCRIPTION and not entity.settings.rules:
            entity.settings.rules = [default_rule(0)]  # as the broker makes it
    assert plain(there_and_back(namespace, path)) == plain(namespace)


def test_entities_in_any_order_are_one_file() -> None:
    paths = [(QUEUE, "b"), (TOPIC, "A-topic"), (QUEUE, "A"), (SUBSCRIPTION, "A-topic/Subscriptions/s")]
    entities = [EntityConfig(kind, path, EntitySettings()) for kind, path in paths]
    written = write_config(NamespaceConfig("n", entities)).content
    assert write_config(NamespaceConfig("n", entities[::-1])).content == written
    assert [queue["Name"] for queue in written["UserConfig"]["Namespaces"][0]["Queues"]] == ["A", "b"]


def test_a_setting_of_another_kind_of_entity_is_no_word_of_this_one() -> None:
    assert write_config(with_others(made(TOPIC, requires_session=True))).warnings == [
        "topic it: Config.json cannot express requires_session"
    ]


@pytest.mark.parametrize("name", sorted(UNSAID))
def test_what_the_file_cannot_say_is_a_line_with_the_name_that_administration_has_for_it(name: str) -> None:
    warnings = write_config(with_others(made(QUEUE, **{name: OTHERS[name]}))).warnings
    assert warnings == [f"queue it: Config.json cannot express {UNSAID[name]}"]


@pytest.mark.parametrize("name", sorted(UNSAID))
def test_what_the_file_cannot_say_stays_as_it_is_when_the_file_is_served(name: str) -> None:
    read = EntitySettings()
    read.retain_unconfigured_of(made(QUEUE, **{name: OTHERS[name]}).settings)
    assert getattr(read, name) == OTHERS[name] != getattr(EntitySettings(), name)


def test_every_setting_is_in_the_file_or_has_a_name_for_the_warning() -> None:
    settings = json.loads(EntitySettings().to_json())
    assert set(settings) == {*PROPERTIES.values(), *UNSAID, *KEPT_BY_THE_BROKER}


def test_a_mistake_has_its_lines() -> None:
    error = ConfigError("a: wrong", "b: wrong")
    assert (error.lines, str(error)) == (("a: wrong", "b: wrong"), "a: wrong\nb: wrong")
