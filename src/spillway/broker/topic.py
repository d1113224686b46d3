"""A topic: every message sent to it is copied to the subscriptions whose rules want it.

A subscription is a queue that nobody sends to. The body of a message is shared by its copies, unless a rule's action
changed one. Messages that no subscription wants are accepted and dropped.
"""

from typing import Final

from spillway.broker.actions import Action, compile_action
from spillway.broker.decided import Decided
from spillway.broker.entity import Entity, Origin, Usage
from spillway.broker.filters import Condition, compile_filter
from spillway.broker.loads import Loads
from spillway.broker.locks import LockTokens
from spillway.broker.queue import Queue, with_reason
from spillway.broker.window import ResidentBudget
from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.message import ACTIVE, NEVER, SCHEDULED, Message, Overlay, StoredMessage
from spillway.model.properties import ChangedProperties, MessageProperties
from spillway.model.records import ROW_BYTES, MessageAdded, MessageRemoved, Record
from spillway.model.rules import CorrelationFilter, FilterError, Rule

REASON_FILTER: Final = "FilterEvaluationException"
RULE_NAME: Final = "RuleName"  # on copies that an action changed: the rule that did


class PropertyAccess:
    """Reads and rewrites encoded messages for the rules; the dialect knows how."""

    def read(
        self, message: Message, sequence_number: int, now_ms: int, dead_letter_source: str | None = None
    ) -> MessageProperties:
        return MessageProperties()

    def rewrite(self, message: Message, changes: ChangedProperties) -> Message:
        """`FilterError` if the changes make no message of it: too large, for one."""
        return message

    def merge(self, message: Message, overlay: Overlay) -> Message:
        """With the properties that were changed since it was sent among its own, where rules can see them."""
        return message


class CompiledRule:
    def __init__(self, rule: Rule) -> None:
        """Raises `BrokerError` if the rule cannot be understood."""
        self.rule = rule
        self.condition: Condition = compile_filter(rule.filter)
        self.action: Action | None = None if rule.action is None else compile_action(rule.action)


class Subscription(Queue):
    def __init__(
        self,
        entity_id: int,
        path: str,
        settings: EntitySettings,
        topic: "Topic",
        tokens: LockTokens,
        budget: ResidentBudget,
        loads: Loads,
    ) -> None:
        super().__init__(entity_id, path, settings, None, tokens, budget, loads, topic.usage)
        self.topic = topic
        self.compiled: list[CompiledRule] | None = None  # of settings.rules, when first needed: starting is quick

    def rules(self) -> list[CompiledRule]:
        """Raises `BrokerError` if one cannot be understood, which is found out when it is added."""
        compiled = self.compiled
        if compiled is None:
            compiled = [CompiledRule(rule) for rule in self.settings.rules]
            self.compiled = compiled
        return compiled

    def expiry_of(self, message: Message, now_ms: int) -> int:
        """The shortest of the message's, the topic's and our own."""
        ours = super().expiry_of(message, now_ms)
        topics = self.topic.expiry_of(message, now_ms)
        if ours == NEVER or (topics != NEVER and topics < ours):
            return topics
        return ours

    def offer(
        self,
        message: Message,
        number: int,
        overlay: Overlay | None,
        properties: MessageProperties,
        group: list[Record],
        decided: Decided,
    ) -> None:
        """One copy if rules without an action match, and one more, changed, for every matching rule with one."""
        is_wanted = False
        for rule in self.rules():
            try:
                if not rule.condition.evaluate(properties):
                    continue
                if rule.action is None:
                    is_wanted = True
                    continue
                changes = rule.action.apply(properties, self._seed_for(rule, number))
                changes.set_user(RULE_NAME, rule.rule.name)  # as Azure does
                copy = self.topic.access.rewrite(message, changes)
            except FilterError as error:
                self._dead_letter_for(error, message, number, overlay, group, decided)
                continue
            self._copy(copy, number, overlay, group, decided)
        if is_wanted:
            self._copy(message, number, overlay, group, decided)

    def _seed_for(self, rule: CompiledRule, number: int) -> bytes:
        """For newid(): never the same for two copies, in this life or another."""
        return self.tokens.next() + b"%d %d " % (self.entity_id, number) + rule.rule.name.encode("utf-8", "replace")

    def _copy(
        self, message: Message, number: int, overlay: Overlay | None, group: list[Record], decided: Decided
    ) -> None:
        """An action may have set a time for it."""
        decided.touch(self)
        if message.scheduled_ms > decided.now_ms:
            self.park(message, self.next_number(), number, overlay, group, decided.now_ms)
        else:
            self.take_in(message, self.next_number(), number, overlay, group, decided)

    def _dead_letter_for(
        self,
        error: FilterError,
        message: Message,
        number: int,
        overlay: Overlay | None,
        group: list[Record],
        decided: Decided,
    ) -> None:
        if not self.settings.dead_letter_on_filter_error:
            return
        target = self.dead_letters
        assert target is not None, "a subscription has a dead-letter queue"
        stored = StoredMessage(message, target.next_number(), decided.now_ms)
        stored.enqueue_sequence_number = number
        text = error.description[: limits.DEAD_LETTER_TEXT_CHARS_MAX]
        stored.overlay = with_reason(overlay, REASON_FILTER, text)
        stored.overlay.dead_letter_source = self.path
        target.count(len(message.raw), ACTIVE)
        group.append(MessageAdded(target.entity_id, stored))
        target.lane.window.append(stored)
        decided.touch(target)


class Topic(Entity):
    def __init__(
        self, entity_id: int, path: str, settings: EntitySettings, loads: Loads, access: PropertyAccess
    ) -> None:
        super().__init__(entity_id, path, settings, loads, Usage())
        self.access = access
        self.subscriptions: dict[str, Subscription] = {}  # by the key of their path

    def filter_counts(self) -> tuple[int, int]:
        """How many SQL filters and how many correlation filters all its subscriptions have."""
        sql_count = 0
        correlation_count = 0
        for subscription in self.subscriptions.values():
            for rule in subscription.settings.rules:
                if isinstance(rule.filter, CorrelationFilter):
                    correlation_count += 1
                else:
                    sql_count += 1
        return sql_count, correlation_count

    def operations_per_message(self) -> int:
        """Every filter that is tried on it counts too, as in Azure."""
        operations = 1
        for subscription in self.subscriptions.values():
            operations += len(subscription.settings.rules)
        return operations

    def enqueue(
        self, message: Message, number: int, group: list[Record], decided: Decided, origin: Origin | None
    ) -> None:
        """Copies have the number of the topic as their first, or that of where the message was first sent to."""
        if not self.subscriptions:
            return
        overlay: Overlay | None = None
        source: str | None = None
        if origin is not None:
            number = origin.first_number
            overlay = origin.overlay
            source = overlay.dead_letter_source
        properties = self.access.read(message, number, decided.now_ms, source)
        first = len(group)
        for subscription in self.subscriptions.values():
            subscription.offer(message, number, overlay, properties, group, decided)
        weigh_once(message, group, first)

    def activate(self, stored: StoredMessage, decided: Decided) -> None:
        """Published now, in one group with leaving the schedule."""
        self.uncount(len(stored.message.raw), SCHEDULED)
        group: list[Record] = [MessageRemoved(self.entity_id, stored.sequence_number)]
        self.enqueue(stored.message, stored.sequence_number, group, decided, None)
        decided.remember(group)


def weigh_once(message: Message, group: list[Record], first: int) -> None:
    """The copies of a message share its bytes, in memory and in the store: one of them weighs for all."""
    is_weighed = False
    for at in range(first, len(group)):
        record = group[at]
        if isinstance(record, MessageAdded) and record.stored.message is message:
            if is_weighed:
                record.size_bytes = ROW_BYTES
            is_weighed = True
