"""Shared access rules of entities in the core: checked, remembered, and gone with their entity."""

import base64

import pytest

from spillway.broker.commands import Command, CreateEntity, DeleteEntity, UpdateEntity
from spillway.broker.effects import AccessChanged, Done, Effect, Failed
from spillway.model.access import LISTEN, MANAGE, SEND, AccessBook, AccessRule
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, root_key
from spillway.model.errors import ArgumentError
from spillway.testing.core import CoreHarness

ONE = base64.b64encode(b"1" * 32).decode()
TWO = base64.b64encode(b"2" * 32).decode()


def ruled(*rules: AccessRule) -> EntitySettings:
    settings = EntitySettings()
    settings.access_rules = list(rules)
    return settings


class Ruled(CoreHarness):
    """With a book that is kept as the server keeps it: from the store at a start, then by what the core says."""

    book: AccessBook

    def __init__(self) -> None:
        super().__init__()
        self.book = AccessBook()

    def restart(self) -> None:
        super().restart()
        self.book = AccessBook()
        for scope, rules in self.namespace.directory.access_rules().items():
            self.book.put(scope, rules)

    def apply(self, *commands: Command) -> list[Effect]:
        said = super().apply(*commands)
        for effect in said:
            if isinstance(effect, AccessChanged):
                self.book.put(effect.scope, effect.rules)
        return [effect for effect in said if not isinstance(effect, AccessChanged)]


@pytest.fixture
def core() -> Ruled:
    made = Ruled()
    for number, (kind, path) in enumerate(((QUEUE, "Q"), (TOPIC, "T"))):
        rules = ruled(AccessRule("own", SEND | LISTEN, ONE, TWO, 5, 7), AccessRule("all", MANAGE, TWO, ONE))
        assert isinstance(made.apply(CreateEntity(number, kind, path, rules))[0], Done)
    return made


@pytest.mark.parametrize("path", ["q", "t"])
def test_rules_are_there_after_a_restart_as_they_were(core: Ruled, path: str) -> None:
    before = [rule.to_plain() for rule in core.book.of(path)]
    assert [plain["name"] for plain in before] == ["own", "all"]
    core.restart()
    assert [rule.to_plain() for rule in core.book.of(path)] == before


@pytest.mark.parametrize("path", ["q", "t"])
def test_rules_change_with_an_update_and_go_with_the_entity(core: Ruled, path: str) -> None:
    book = core.book
    revision = book.revision
    core.apply(UpdateEntity(9, path, ruled(AccessRule("own", SEND, ONE, TWO))))
    assert [(rule.name, rule.rights) for rule in book.of(path)] == [("own", SEND)]
    assert book.revision > revision
    revision = book.revision
    core.apply(DeleteEntity(9, path))
    assert book.of(path) == []
    assert book.revision > revision
    core.restart()
    assert core.book.of(path) == []


def test_a_name_is_known_as_long_as_some_rule_has_it(core: Ruled) -> None:
    book = core.book
    core.apply(UpdateEntity(9, "q", ruled(AccessRule("own", SEND, ONE, TWO))))
    assert book.knows("OWN") and book.knows("all")
    core.apply(DeleteEntity(9, "t"))
    assert book.knows("own") and not book.knows("all")
    core.apply(DeleteEntity(9, "q"))
    assert not book.knows("own")
    assert book.name_counts == {} and book.by_secret == {} and book.by_scope == {}


def test_what_has_no_rules_says_nothing_of_them() -> None:
    core = CoreHarness()
    said = core.apply(CreateEntity(1, QUEUE, "plain", EntitySettings()))
    said += core.apply(UpdateEntity(2, "plain", EntitySettings()), DeleteEntity(3, "plain"))
    assert not any(isinstance(effect, AccessChanged) for effect in said)


def test_rules_that_nobody_lost_a_right_by_need_no_second_look(core: Ruled) -> None:
    book = core.book
    revision = book.revision
    rules = [*book.of("q"), AccessRule("more", SEND, ONE, TWO)]
    core.apply(UpdateEntity(9, "q", ruled(*rules)))
    core.apply(CreateEntity(10, QUEUE, "other", ruled(AccessRule("own", SEND, TWO, ONE))))
    assert len(book.of("q")) == 3
    assert book.revision == revision


@pytest.mark.parametrize(
    "rules",
    [
        [AccessRule("bad name", SEND, ONE, TWO)],
        [AccessRule("a", 0, ONE, TWO)],
        [AccessRule("a", SEND, "short", TWO)],
        [AccessRule("a", SEND, ONE)],
        [AccessRule("a", SEND, ONE, TWO), AccessRule("A", SEND, ONE, TWO)],
        [AccessRule(f"r{number}", SEND, ONE, TWO) for number in range(13)],
    ],
)
def test_wrong_rules_are_refused_and_change_nothing(core: Ruled, rules: list[AccessRule]) -> None:
    for command in (CreateEntity(9, QUEUE, "new", ruled(*rules)), UpdateEntity(9, "q", ruled(*rules))):
        (failed,) = core.apply(command)
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, ArgumentError)
        assert ONE not in failed.error.description and "short" not in failed.error.description
    assert len(core.book.of("q")) == 2
    assert not core.namespace.exists("new")


def test_a_subscription_has_none_of_its_own(core: Ruled) -> None:
    settings = ruled(AccessRule("own", SEND, ONE, TWO))
    (failed,) = core.apply(CreateEntity(9, SUBSCRIPTION, "t/Subscriptions/s", settings))
    assert isinstance(failed, Failed)
    assert "takes the shared access rules of its topic" in failed.error.description
    core.apply(CreateEntity(9, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
    (failed,) = core.apply(UpdateEntity(9, "t/Subscriptions/s", settings))
    assert isinstance(failed, Failed)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("q", "q"),
        ("/A/b/", "a/b"),
        ("q/$management", "q"),
        ("q/$DeadLetterQueue/$management", "q"),
        ("a/b/Subscriptions/s/$DeadLetterQueue", "a/b"),
        ("t/Subscriptions", "t"),
        ("t/subscriptions/s/rules/r", "t"),
        ("a/subscriptionsx", "a/subscriptionsx"),
        ("a//$management", "a"),
        ("a//Subscriptions//s", "a"),
        ("a/Subscriptions//$management", "a"),
        ("a$b", "a$b"),
        ("$cbs", ""),
        ("$Resources/queues", ""),
        ("$spillway/faults/q", ""),
        ("", ""),
    ],
)
def test_every_path_belongs_to_one_queue_or_topic_or_to_the_namespace(path: str, root: str) -> None:
    assert root_key(path) == root
