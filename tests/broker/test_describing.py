"""What an administrator is shown."""

from spillway.broker.commands import CreateEntity, Describe, ListEntities
from spillway.broker.effects import Description, Descriptions, Failed
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.settlement import DEAD_LETTER, Settlement
from spillway.testing.core import message
from tests.broker.line import Line


def described(line: Line, path: str) -> Description:
    (answer,) = line.apply(Describe(700, path))
    assert isinstance(answer, Descriptions)
    return answer.descriptions[0]


def test_a_queue_is_shown_with_its_counts_dead_letters_included(line: Line) -> None:
    line.send(message(b"one"), message(b"two"), message(b"later", scheduled_ms=line.now_ms + 1_000))
    line.attach()
    (first,) = line.receive()
    line.settle(first, Settlement(DEAD_LETTER))
    shown = described(line, "Q")
    assert (shown.kind, shown.path) == (QUEUE, "q")
    assert (shown.counters.active, shown.counters.scheduled, shown.dead_letter_count) == (1, 1, 1)
    assert shown.size_bytes == len(b"onetwolater")


def test_entities_are_listed_by_name_and_page_by_page(line: Line) -> None:
    for name in ("b", "A", "c/d"):
        line.apply(CreateEntity(1, QUEUE, name, EntitySettings()))
    pages = []
    for skip in (0, 2, 4):
        (answer,) = line.apply(ListEntities(701, QUEUE, "", skip, 2))
        assert isinstance(answer, Descriptions)
        pages.append(([shown.path for shown in answer.descriptions], answer.has_more))
    assert pages == [(["A", "b"], True), (["c/d", "q"], False), ([], False)]


def test_topics_show_their_subscriptions_and_lists_keep_the_kinds_apart(line: Line) -> None:
    line.apply(CreateEntity(1, TOPIC, "t", EntitySettings()))
    line.apply(CreateEntity(2, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
    assert described(line, "t").subscription_count == 1
    assert described(line, "t/subscriptions/s").settings.rules[0].name == "$Default"
    for kind, path, wanted in ((QUEUE, "", ["q"]), (TOPIC, "", ["t"]), (SUBSCRIPTION, "t", ["t/Subscriptions/s"])):
        (answer,) = line.apply(ListEntities(3, kind, path, 0, 100))
        assert isinstance(answer, Descriptions)
        assert [shown.path for shown in answer.descriptions] == wanted


def test_what_is_not_there_is_not_found(line: Line) -> None:
    for request in (Describe(1, "nowhere"), ListEntities(2, SUBSCRIPTION, "nowhere", 0, 10)):
        (failed,) = line.apply(request)
        assert isinstance(failed, Failed)
