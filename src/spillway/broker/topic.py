"""A topic: every message sent to it is copied to the subscriptions whose rules want it.

A subscription is a queue that nobody sends to. The body of a message is shared by its copies, unless a rule's action
changed one. Messages that no subscription wants are accepted and dropped.
"""

from collections import deque
from typing import Final

from spillway.broker.decided import Decided
from spillway.broker.effects import Effect
from spillway.broker.entity import Entity, Origin, Usage
from spillway.broker.loads import Loads
from spillway.broker.locks import LockTokens
from spillway.broker.queue import REASON_SESSION, Queue, session_text, with_reason
from spillway.broker.rules.rule_list import CompiledRule, RuleList
from spillway.broker.window import ResidentBudget
from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.message import ACTIVE, NEVER, SCHEDULED, Message, Overlay, StoredMessage
from spillway.model.properties import ChangedProperties, MessageProperties, RuleUnfinished
from spillway.model.records import ROW_BYTES, MessageAdded, MessageRemoved, Record
from spillway.model.rules import FilterError

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
        """The message with the properties that were changed since it was sent, where rules can see them."""
        return message


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
        self.rules = RuleList(settings.rules)

    def expiry_of(self, message: Message, now_ms: int) -> int:
        """The shortest of the message's, the topic's and our own."""
        ours = super().expiry_of(message, now_ms)
        topics = self.topic.expiry_of(message, now_ms)
        if ours == NEVER or (topics != NEVER and topics < ours):
            return topics
        return ours

    def try_rule(self, index: int, publication: "Publication", steps_max: int) -> int:
        """Whether this rule wants the message, and as what; the steps that it took.

        It goes on in another turn where they come to `steps_max`, at the next LIKE over a long text.
        """
        steps = 1
        if self.rules.compiled[index] is None:
            steps += self.rules.rules[index].compile_steps()
        rule = self.rules.compiled_at(index)
        properties = publication.properties
        before = properties.work
        properties.work_max = before + steps_max - steps
        publication.is_halfway = False
        try:
            if rule.condition.evaluate(properties):
                if rule.action is None:
                    publication.is_wanted = True
                else:
                    steps += limits.COPY_STEPS
                    changes = rule.action.apply(properties, self._seed_for(rule, publication.number))
                    properties.work += changes.work
                    changes.set_user(RULE_NAME, rule.rule.name)  # as Azure does
                    copy = self.topic.access.rewrite(publication.message, changes)
                    publication.copies.append(SubscriptionCopy(self, copy, "", ""))
        except FilterError as error:
            if self.settings.dead_letter_on_filter_error or rule.is_broken:
                publication.copies.append(SubscriptionCopy(self, publication.message, REASON_FILTER, error.description))
        except RuleUnfinished:
            publication.is_halfway = True
            return steps + properties.work - before
        properties.end_rule()
        return steps + properties.work - before

    def add_copy(
        self, copy: "SubscriptionCopy", number: int, overlay: Overlay | None, group: list[Record], decided: Decided
    ) -> None:
        if copy.reason:
            self._dead_letter(copy.reason, copy.text, copy.message, number, overlay, group, decided)
        else:
            self._copy(copy.message, number, overlay, group, decided)

    def _seed_for(self, rule: CompiledRule, number: int) -> bytes:
        """The seed of newid(): never the same for two copies, in this life or another."""
        return self.tokens.next() + b"%d %d " % (self.entity_id, number) + rule.rule.name.encode("utf-8", "replace")

    def _copy(
        self, message: Message, number: int, overlay: Overlay | None, group: list[Record], decided: Decided
    ) -> None:
        """An action may have set a time for it, or given or taken its session id."""
        decided.mark_ready(self)
        if self.lacks_session(message):
            text = session_text(self.path)
            self._dead_letter(REASON_SESSION, text, message, number, overlay, group, decided)
        elif message.scheduled_ms > decided.now_ms:
            self.schedule(message, self.next_number(), number, overlay, group, decided.now_ms)
        else:
            self.accept(message, self.next_number(), number, overlay, group, decided)

    def _dead_letter(
        self,
        reason: str,
        text: str,
        message: Message,
        number: int,
        overlay: Overlay | None,
        group: list[Record],
        decided: Decided,
    ) -> None:
        """A copy that this subscription cannot take."""
        target = self.dead_letters
        assert target is not None, "a subscription has a dead-letter queue"
        decided.mark_ready(target)
        stored = StoredMessage(message, target.next_number(), decided.now_ms)
        stored.enqueue_sequence_number = number
        stored.overlay = with_reason(overlay, reason, text[: limits.DEAD_LETTER_TEXT_CHARS_MAX])
        stored.overlay.dead_letter_source = self.path
        target.count(len(message.raw), ACTIVE)
        group.append(MessageAdded(target.entity_id, stored))
        target.lane.window.append(stored)


class SubscriptionCopy:
    """What a subscription gets of a message: a copy, or, with a reason, a dead letter."""

    def __init__(self, subscription: Subscription, message: Message, reason: str, text: str) -> None:
        self.subscription = subscription
        self.message = message
        self.reason = reason
        self.text = text


class Publication:
    """A message on its way through the rules of a topic: as far as the steps of a turn go, then on in the next.

    Trying rules changes nothing. What they say is done at once, in one group, when the last of them was tried: one copy
    if rules without an action match, and one more, changed, for every matching rule with one.
    """

    def __init__(
        self, topic: "Topic", message: Message, number: int, overlay: Overlay | None, properties: MessageProperties
    ) -> None:
        self.message = message
        self.number = number
        self.overlay = overlay
        self.properties = properties
        self.subscriptions = list(topic.subscriptions.values())
        self.at = 0
        self.rule_index = 0  # of the subscription there, to be tried next
        self.is_halfway = False  # through that rule: the steps were used up
        self.is_wanted = False  # by a rule of it without an action
        self.copies: list[SubscriptionCopy] = []
        self.steps = 0  # so far

    def run(self, steps_max: int) -> bool:
        """Whether the last rule was tried; no further than `steps_max` steps in all, and one LIKE."""
        while self.at < len(self.subscriptions):
            subscription = self.subscriptions[self.at]
            while self.rule_index < len(subscription.rules.rules):
                if self.steps >= steps_max:
                    return False
                self.steps += subscription.try_rule(self.rule_index, self, steps_max - self.steps)
                if self.is_halfway:
                    return False
                self.rule_index += 1
            if self.is_wanted:
                self.copies.append(SubscriptionCopy(subscription, self.message, "", ""))
                self.is_wanted = False
            self.rule_index = 0
            self.at += 1
        return True

    def leave_out(self, subscription: Subscription, index: int) -> None:
        """The rule that was there is removed while the others are tried: none of those behind it is passed over."""
        if self.at < len(self.subscriptions) and self.subscriptions[self.at] is subscription:
            if index < self.rule_index:
                self.rule_index -= 1

    def copy_steps(self) -> int:
        return limits.COPY_STEPS * len(self.copies)

    def finish(self, group: list[Record], decided: Decided) -> None:
        first = len(group)
        for copy in self.copies:
            if not copy.subscription.lane.is_closed:  # deleted while the others were asked
                copy.subscription.add_copy(copy, self.number, self.overlay, group, decided)
        weigh_once(self.message, group, first)


class Topic(Entity):
    """Publishes what is sent to it within the steps of its turn. What does not fit is put off.

    A message that is put off is stored with the schedule as due at once, in the group of its send, and published in
    turns to come, in one group with leaving the schedule; whoever sent it is answered then. While some are, all that
    come after them are put off too: the order is kept.
    """

    def __init__(
        self, entity_id: int, path: str, settings: EntitySettings, loads: Loads, access: PropertyAccess
    ) -> None:
        super().__init__(entity_id, path, settings, loads, Usage())
        self.access = access
        self.subscriptions: dict[str, Subscription] = {}  # by the key of their path
        self.put_off_upto = 0  # the number of the last message that was put off; 0: all are published
        self.owed: dict[int, Effect] = {}  # by the number of such a message: what is said when it is published
        self.backlog: deque[StoredMessage] = deque()  # due, read from the store, not yet published
        self.publication: Publication | None = None  # of the first of them
        self.is_fresh = True  # not sent to since the start: the store may have some that were put off
        self.sql_count = 0  # filters of all its subscriptions; with those that take all or nothing
        self.correlation_count = 0

    def count_rules(self, rules: RuleList, by: int) -> None:
        """Counts all rules of a subscription that comes (1) or goes (-1)."""
        self.sql_count += by * rules.sql_count
        self.correlation_count += by * rules.correlation_count

    def operations_per_message(self) -> int:
        """Every filter that is tried on it counts too, as in Azure."""
        return 1 + self.sql_count + self.correlation_count

    def enqueue(
        self, message: Message, number: int, group: list[Record], decided: Decided, origin: Origin | None
    ) -> None:
        """Copies have the number of the topic as their first, or that of where the message was first sent to."""
        if self.is_fresh:
            self.is_fresh = False
            if NEVER < self.next_due_ms <= decided.now_ms:
                self.put_off_upto = self.counters.last_sequence_number
        steps_left = decided.steps_left if origin is None else decided.chores_left
        if self.put_off_upto > 0 or steps_left <= 0 or decided.filters_left <= 0:
            self._put_off(message, number, origin, group, decided)
            return
        first_number = number if origin is None else origin.first_number
        publication = self._publication(message, first_number, None if origin is None else origin.overlay, decided)
        is_tried = publication.run(min(steps_left, decided.filters_left))
        decided.filters_left -= publication.steps
        steps = publication.steps + publication.copy_steps()
        if is_tried and steps <= steps_left:
            publication.finish(group, decided)
        else:
            steps = publication.steps
            self._put_off(message, number, origin, group, decided)
        if origin is None:
            decided.steps_left -= steps
        else:
            decided.chores_left -= steps

    def _publication(self, message: Message, number: int, overlay: Overlay | None, decided: Decided) -> Publication:
        source = None if overlay is None else overlay.dead_letter_source
        properties = self.access.read(message, number, decided.now_ms, source)
        return Publication(self, message, number, overlay, properties)

    def _put_off(
        self, message: Message, number: int, origin: Origin | None, group: list[Record], decided: Decided
    ) -> None:
        stored = StoredMessage(message, number, decided.now_ms)
        stored.enqueue_sequence_number = number
        if origin is not None:
            stored.enqueue_sequence_number = origin.first_number
            stored.overlay = origin.overlay
        stored.state = SCHEDULED
        stored.due_ms = decided.now_ms
        self.count(len(message.raw), SCHEDULED)
        group.append(MessageAdded(self.entity_id, stored))
        self.note_due(stored.due_ms)
        self.put_off_upto = number

    def owe(self, effect: Effect, since: int, decided: Decided) -> None:
        """The answer to a send: now, or when the last message of it is published, if one since this number is not."""
        if self.put_off_upto > since:
            self.owed[self.put_off_upto] = effect
        else:
            decided.emit(effect)

    def drain_owed(self) -> list[Effect]:
        owed = list(self.owed.values())
        self.owed.clear()
        return owed

    def activate(self, stored: StoredMessage, decided: Decided) -> None:
        """The time of a scheduled message has come: `serve` publishes it, in this turn or one to come."""
        self.backlog.append(stored)
        decided.mark_ready(self)

    def serve(self, decided: Decided) -> None:
        """Publish what is due, as far as the steps of the turn go."""
        has_served = False
        while self.backlog:
            stored = self.backlog[0]
            if decided.chores_left <= 0 or decided.filters_left <= 0:
                decided.continue_later(self, has_served)
                return
            if not decided.may_write(len(stored.message.raw)):
                self.evict_backlog()
                break
            has_served = True
            self._publish_some(stored, decided)
        if self.loads.suspended is not None:
            self.loads.suspended.resume(decided)

    def evict_backlog(self) -> None:
        """Messages that wait to be published leave memory: they are in the store, and read again."""
        self.backlog.clear()
        self.publication = None

    def _publish_some(self, stored: StoredMessage, decided: Decided) -> None:
        number = stored.sequence_number
        publication = self.publication
        if publication is None:
            first_number = stored.enqueue_sequence_number
            publication = self._publication(stored.message, first_number, stored.overlay, decided)
            self.publication = publication
        before = publication.steps
        is_tried = publication.run(before + min(decided.chores_left, decided.filters_left))
        decided.chores_left -= publication.steps - before
        decided.filters_left -= publication.steps - before
        if not is_tried:
            return
        decided.chores_left -= publication.copy_steps()
        self.uncount(len(stored.message.raw), SCHEDULED)
        group: list[Record] = [MessageRemoved(self.entity_id, number)]
        publication.finish(group, decided)
        decided.remember(group)
        self.publication = None
        self.backlog.popleft()
        answer = self.owed.pop(number, None)
        if answer is not None:
            decided.emit(answer)
        if number >= self.put_off_upto:
            self.put_off_upto = 0


def weigh_once(message: Message, group: list[Record], first: int) -> None:
    """The copies of a message share its bytes, in memory and in the store: one of them weighs for all."""
    is_weighed = False
    for at in range(first, len(group)):
        record = group[at]
        if isinstance(record, MessageAdded) and record.stored.message is message:
            if is_weighed:
                record.size_bytes = ROW_BYTES
            is_weighed = True
