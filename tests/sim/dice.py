"""What is drawn at random: settings over their whole cross product, rules, messages, faults."""

import random
from collections.abc import Callable
from typing import Final

from spillway.amqp.message import Header, Properties, encode_data, encode_message
from spillway.amqp.types import Symbol, Timestamp
from spillway.dialect.admission import admit
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, statuses_of
from spillway.model.errors import ArgumentError
from spillway.model.faults import EVERYWHERE, KINDS, OPERATIONS, Fault
from spillway.model.message import Message
from spillway.model.rule_values import RuleValue
from spillway.model.rules import CorrelationFilter, FalseFilter, Rule, RuleFilter, SqlAction, SqlFilter, TrueFilter

QUEUES: Final = ("q0", "q1", "q2", "q3")
TOPICS: Final = ("t0", "t1")
SUBSCRIPTIONS: Final = ("s0", "s1", "s2")
SESSIONS: Final = ("a", "b", "c", "")
COLORS: Final = ("red", "blue")

LOCK_MS: Final = (5_000, 20_000)


class Sent:
    """A message as its sender knows it."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.color: str | None = None
        self.number = 0
        self.session_id: str | None = None
        self.message_id = ""
        self.partition_key: str | None = None
        self.ttl_ms: int | None = None
        self.scheduled_ms = 0
        self.is_admitted = False

    def says(self) -> str:
        parts = [self.name]
        if self.session_id is not None:
            parts.append(f"session={self.session_id!r}")
        if self.scheduled_ms:
            parts.append(f"at={self.scheduled_ms}")
        if self.ttl_ms is not None:
            parts.append(f"ttl={self.ttl_ms}")
        return " ".join(parts)


Answer = bool | None  # None: it cannot be evaluated


def _filters() -> dict[str, tuple[RuleFilter, Callable[[Sent], Answer]]]:
    return {
        "true": (TrueFilter(), lambda _: True),
        "false": (FalseFilter(), lambda _: False),
        "red": (SqlFilter("color = 'red'"), lambda sent: sent.color == "red"),
        "large": (SqlFilter("number > 5"), lambda sent: sent.number > 5),
        "in a session": (SqlFilter("sys.SessionId IS NOT NULL"), lambda sent: sent.session_id is not None),
        "session a": (CorrelationFilter(session_id="a"), lambda sent: sent.session_id == "a"),
        "blue": (
            CorrelationFilter(properties={"color": RuleValue("string", "blue")}),
            lambda sent: sent.color == "blue",
        ),
        "fails": (SqlFilter("number / 0 = 1"), lambda _: None),
        "fails at times": (
            SqlFilter("10 / (number - 3) > 1"),
            lambda sent: None if sent.number == 3 else 10 / (sent.number - 3) >= 2,
        ),
    }


FILTERS: Final = _filters()
# What an action does, and whether it fails.
ACTIONS: Final[dict[str, Callable[[Sent], bool]]] = {
    "SET sys.SessionId = 'a'": lambda _: False,
    "REMOVE sys.SessionId": lambda _: False,
    "SET sys.SessionId = color": lambda _: False,
    "SET sys.MessageId = 'same'": lambda _: False,
    "SET number = number + 1": lambda _: False,
    "SET sys.TimeToLive = 7": lambda _: True,
    "REMOVE color; SET sys.Label = 'x'": lambda _: False,
    "SET sys.PartitionKey = 'p'": lambda _: False,
    "SET sys.SessionId = sys.MessageId; SET sys.PartitionKey = sys.MessageId": lambda _: False,
}


def copies_of(rules: list[Rule], sent: Sent) -> tuple[int, int]:
    """How many copies of a message these rules make, and how many of them cannot be made."""
    made = failed = 0
    is_wanted = False
    for rule in rules:
        answer = _answer(rule.filter, sent)
        if answer is None or (answer and rule.action is not None and ACTIONS[rule.action.expression](sent)):
            failed += 1
        elif answer and rule.action is not None:
            made += 1
        elif answer:
            is_wanted = True
    return made + is_wanted, failed


def _answer(rule_filter: RuleFilter, sent: Sent) -> Answer:
    plain = rule_filter.to_plain()
    for known, answer in FILTERS.values():
        if known.to_plain() == plain:
            return answer(sent)
    raise AssertionError(f"a filter that nobody made: {plain}")


class Dice:
    """Of one step: the same seed and number make the same choices, whatever the steps before it did."""

    def __init__(self, seed: int, step: int) -> None:
        self.chance = random.Random(f"{seed}/{step}")

    def hit(self, probability: float) -> bool:
        return self.chance.random() < probability

    def settings(self, kind: str) -> EntitySettings:
        """Each on its own, so that all of them meet."""
        chance = self.chance
        settings = EntitySettings()
        settings.lock_duration_ms = chance.choice(LOCK_MS)
        settings.max_delivery_count = chance.choice((1, 2, 4))
        if self.hit(0.25):
            settings.default_ttl_ms = chance.choice((1, 1_500, 30_000, 600_000))
        settings.dead_letter_on_expiry = self.hit(0.5)
        settings.dead_letter_on_filter_error = self.hit(0.7)
        settings.is_partitioned = self.hit(0.3)
        settings.requires_session = kind != TOPIC and self.hit(0.4)
        if kind != SUBSCRIPTION:
            settings.requires_duplicate_detection = self.hit(0.3)
            settings.duplicate_window_ms = chance.choice((20_000, 600_000))
        if kind != TOPIC:
            if self.hit(0.25):
                settings.forward_to = chance.choice((*QUEUES, *TOPICS))
                if settings.requires_session and self.hit(0.9):  # together only where it is partitioned
                    settings.is_partitioned = self.hit(0.5)
                    settings.requires_session = settings.is_partitioned
            if self.hit(0.25):
                settings.forward_dead_letters_to = chance.choice((*QUEUES, *TOPICS))
        if self.hit(0.15):
            settings.status = chance.choice(statuses_of(kind))
        if self.hit(0.1):
            settings.auto_delete_ms = 300_000
        if kind == SUBSCRIPTION and self.hit(0.8):
            settings.rules = [self.rule(f"r{n}") for n in range(chance.randint(1, 3))]
        if kind == QUEUE and self.hit(0.03):
            settings.max_size_mb = 1
        return settings

    def changed(self, former: EntitySettings, kind: str) -> EntitySettings:
        """What may be changed, mostly."""
        settings = self.settings(kind)
        settings.rules = []
        if self.hit(0.9):
            settings.requires_session = former.requires_session
            settings.requires_duplicate_detection = former.requires_duplicate_detection
            settings.is_partitioned = former.is_partitioned
            if settings.requires_session and not settings.is_partitioned:
                settings.forward_to = ""
        if self.hit(0.5):
            settings.status = self.chance.choice(statuses_of(kind))
        return settings

    def rule(self, name: str) -> Rule:
        rule_filter = FILTERS[self.chance.choice(list(FILTERS))][0]
        action = SqlAction(self.chance.choice(list(ACTIONS))) if self.hit(0.5) else None
        return Rule(name, rule_filter, action, 0)

    def message(
        self, name: str, path: str, now_ms: int, ids: list[str], is_scheduled: bool = False
    ) -> tuple[Sent, Message]:
        chance = self.chance
        sent = Sent(name, path)
        sent.color = chance.choice((*COLORS, None))
        sent.number = chance.randint(0, 9)
        if self.hit(0.6):
            sent.session_id = chance.choice(SESSIONS)
        if self.hit(0.2):
            sent.partition_key = sent.session_id if self.hit(0.7) else "p"
        sent.message_id = chance.choice(ids) if ids and self.hit(0.2) else name
        if self.hit(0.2):
            sent.ttl_ms = chance.choice((0, 1, 2_000, 40_000))
        if is_scheduled or self.hit(0.2):
            sent.scheduled_ms = now_ms + chance.choice((-5, 1, 900, 6_000, 70_000))
        annotations: dict[object, object] = {}
        if sent.scheduled_ms:
            annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(sent.scheduled_ms)
        if sent.partition_key is not None:
            annotations[Symbol("x-opt-partition-key")] = sent.partition_key
        properties: dict[object, object] = {"number": sent.number}
        if sent.color is not None:
            properties["color"] = sent.color
        padding = b"." * chance.choice((0, 10, 900))
        raw = encode_message(
            header=None if sent.ttl_ms is None else Header(ttl_ms=sent.ttl_ms),
            message_annotations=annotations or None,
            properties=Properties(message_id=sent.message_id, group_id=sent.session_id),
            application_properties=properties,
            body=encode_data(b"<" + name.encode() + b">" + padding),
        )
        return sent, admit(raw, NoIds())

    def fault(self, paths: list[str]) -> Fault | None:
        """None: what was drawn makes no sense."""
        chance = self.chance
        kind = chance.choice(KINDS)
        operations = chance.sample(OPERATIONS, chance.choice((0, 1, 2, 3)))
        path = EVERYWHERE if not paths or self.hit(0.2) else chance.choice(paths)
        try:
            return Fault(
                kind,
                path,
                operations,
                condition="com.microsoft:server-busy" if kind == "refuse" else "",
                delay_ms=chance.choice((500, 3_000, 20_000)) if kind in ("slow", "hidden") else 0,
                probability=1.0 if kind == "restart" else chance.choice((0.2, 0.5, 1.0)),
                seed=chance.randint(0, 1_000),
                count=0 if kind == "restart" else chance.choice((0, 1, 3)),
                duration_ms=chance.choice((700, 4_000, 15_000)),
            )
        except ArgumentError:
            return None


class NoIds:
    """For messages without an id, of which there are none here."""

    def tracking_text(self, entity: str, now_ms: int) -> str:
        return ""

    def new_message_id(self) -> str:
        raise AssertionError("every message here has an id")
