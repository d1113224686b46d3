"""The entities of a namespace: found by path, made, changed and deleted.

A queue or subscription comes and goes with its dead-letter queue, a topic with its subscriptions.
"""

from spillway.broker.decided import Decided
from spillway.broker.duplicates import Duplicates, IdBudget
from spillway.broker.effects import AccessChanged
from spillway.broker.entity import Entity, Usage
from spillway.broker.faults import Faults
from spillway.broker.forwarding import Forwarding, refuse_forwards, target_of
from spillway.broker.incidents import Apart
from spillway.broker.lane import ReceiverLinks
from spillway.broker.loads import LoadNumberSource, Loads
from spillway.broker.locks import LockTokens
from spillway.broker.message_sessions import MessageSessions
from spillway.broker.queue import Queue
from spillway.broker.refill import Refill
from spillway.broker.rules.rule_list import CompiledRule
from spillway.broker.status import refuse_status
from spillway.broker.throttle import Share, Throttle
from spillway.broker.topic import PropertyAccess, Subscription, Topic
from spillway.broker.window import ResidentBudget
from spillway.model import limits
from spillway.model.access import AccessRule, access_rules_problem
from spillway.model.entity import (
    DEAD_LETTER_QUEUE,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
    dead_letter_path,
    entity_key,
    name_problem,
    settings_from_json,
    split_subscription,
    subscription_name_problem,
)
from spillway.model.errors import (
    ArgumentError,
    BrokerError,
    EntityAlreadyExists,
    EntityNotFound,
    NotAllowed,
    QuotaExceeded,
    entity_not_found,
)
from spillway.model.quotas import NO_LIMIT, Quotas
from spillway.model.records import EntityPut, EntityRow, Record, RulePut, RuleRemoved, RuleRow
from spillway.model.rules import (
    CorrelationFilter,
    Rule,
    default_rule,
    rule_from_json,
    rule_name_problem,
    unreadable_rule,
    weight_of,
)


class Directory:
    def __init__(self, namespace: str, tokens: LockTokens, access: PropertyAccess, quotas: Quotas) -> None:
        self.namespace = namespace
        self.tokens = tokens
        self.access = access
        self.quotas = quotas
        self.throttle = Throttle(namespace, quotas)
        self.budget = ResidentBudget(quotas.resident_bytes_max(), quotas.lock_bytes_max())
        self.rules_bytes = 0  # what the rules of all subscriptions take in memory
        self.id_budget = IdBudget(quotas.ids_in_memory_max())
        self.load_numbers = LoadNumberSource()
        self.loads: dict[int, Loads] = {}
        self.queues: dict[str, Queue] = {}  # by key: queues, subscriptions and dead-letter queues
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Entity] = {}
        self.apart: dict[str, Apart] = {}  # by key: out of service after a fault, in none of the three above
        self.receiver_links = ReceiverLinks()  # those that receive from one of these
        self.store_bytes = 0  # what all entities hold, if there is a limit to it
        self.faults = Faults(namespace)
        self.last_entity_id = 0
        self.entity_count = 0  # queues and topics
        self.subscription_count = 0

    # -- finding ------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Entity | None:
        key = entity_key(path)
        queue = self.queues.get(key)
        if queue is not None:
            return queue
        return self.topics.get(key)

    def not_found(self, path: str) -> BrokerError:
        """Why `find` has nothing."""
        apart = self.apart.get(entity_key(path)) if self.apart else None
        return entity_not_found(self.namespace, path) if apart is None else apart.error

    def access_rules(self) -> dict[str, list[AccessRule]]:
        """The shared access rules of every entity that has some, by key."""
        found: dict[str, list[AccessRule]] = {}
        for entity in self.by_id.values():
            if entity.settings.access_rules and not entity.is_part and not isinstance(entity, Subscription):
                found[entity_key(entity.path)] = entity.settings.access_rules
        return found

    def note_store(self, entity: Entity, size_bytes: int, now_ms: int) -> None:
        """What it holds now counts against the limit of the namespace, if there is one."""
        if self.quotas.store_mb != NO_LIMIT:
            self.store_bytes += size_bytes - entity.noted_bytes
            entity.noted_bytes = size_bytes
            self.throttle.note_store(self.store_bytes, now_ms)

    # -- making -------------------------------------------------------------------------------------------------

    def create(self, kind: str, path: str, settings: EntitySettings, decided: Decided) -> BrokerError | None:
        path = path.strip("/")
        if kind == SUBSCRIPTION and not settings.rules:
            settings.rules = [default_rule(decided.now_ms)]
        compiled: list[CompiledRule | None] = []
        error = self._refuse_create(kind, path, settings, compiled)
        if error is not None:
            return error
        settings.created_ms = settings.updated_ms = decided.now_ms
        if kind == TOPIC:
            self.last_entity_id += 1
            made: Entity = self._add_topic(self.last_entity_id, path, settings)
        else:
            entity_id = self.last_entity_id + 1
            self.last_entity_id += 2
            for rule in settings.rules:
                rule.created_ms = decided.now_ms
            queue = self._add(kind, entity_id, path, settings)
            self._add_dead_letters(entity_id + 1, queue)
            made = queue
        decided.mark_ready(made)  # something in it may fall due
        if settings.access_rules and not isinstance(made, Subscription):
            decided.emit(AccessChanged(entity_key(path), settings.access_rules))
        group = self._puts_of(made)
        if isinstance(made, Subscription):
            made.rules.compiled = compiled
            for rule in made.rules.rules:
                group.append(_put_of(made, rule))
        decided.remember(group)
        return None

    def _refuse_create(
        self, kind: str, path: str, settings: EntitySettings, compiled: list[CompiledRule | None]
    ) -> BrokerError | None:
        """What is wrong with an entity to be made, or None. Its rules are in `compiled` if they are good."""
        problem = subscription_name_problem(path) if kind == SUBSCRIPTION else name_problem(path)
        if problem is not None:
            return ArgumentError(f"'{path}' cannot be the name of a {kind}: {problem}.")
        if self.find(path) is not None or entity_key(path) in self.apart:
            return EntityAlreadyExists(f"'{path}' exists already in the namespace '{self.namespace}'.")
        if kind == SUBSCRIPTION:
            return (
                refuse_status(kind, settings)
                or self._refuse_access_rules(path, settings)
                or self._refuse_subscription(path, settings, compiled)
                or refuse_forwards(path, settings, self.queues, self.topics)
            )
        if self.entity_count >= self.quotas.entities:
            return QuotaExceeded(
                f"The namespace '{self.namespace}' has {self.entity_count} queues and topics, "
                f"the most it may have (limit entities)."
            )
        return (
            refuse_status(kind, settings)
            or self._refuse_access_rules(path, settings)
            or refuse_forwards(path, settings, self.queues, self.topics)
        )

    def _refuse_access_rules(self, path: str, settings: EntitySettings) -> BrokerError | None:
        if not settings.access_rules:
            return None
        problem = access_rules_problem(settings.access_rules)
        if split_subscription(path)[0]:
            problem = "a subscription takes the shared access rules of its topic"
        return None if problem is None else ArgumentError(f"AuthorizationRules of '{path}': {problem}.")

    def _refuse_subscription(
        self, path: str, settings: EntitySettings, compiled: list[CompiledRule | None]
    ) -> BrokerError | None:
        topic = self.topics.get(entity_key(split_subscription(path)[0]))
        if topic is None:
            return self.not_found(split_subscription(path)[0])
        if len(topic.subscriptions) >= self.quotas.subscriptions_per_topic:
            return QuotaExceeded(
                f"'{topic.path}' has {len(topic.subscriptions)} subscriptions, "
                "the most it may have (limit subscriptions-per-topic)."
            )
        if self.subscription_count >= self.quotas.subscriptions:
            return QuotaExceeded(
                f"The namespace '{self.namespace}' has {self.subscription_count} subscriptions, "
                "the most it may have (limit subscriptions)."
            )
        names: set[str] = set()
        for rule in settings.rules:
            try:
                compiled.append(self._compile(rule))
            except BrokerError as error:
                return error
            if rule.name.lower() in names:
                return EntityAlreadyExists(f"Two rules of '{path}' are called '{rule.name}'.")
            names.add(rule.name.lower())
        return self._refuse_filters(topic, settings.rules)

    def _refuse_filters(self, topic: Topic, rules: list[Rule]) -> BrokerError | None:
        """Each kind has its own quota over all subscriptions of a topic, and all of a namespace have their memory."""
        weight = 0
        for rule in rules:
            weight += weight_of(rule)
        if self.rules_bytes + weight > self.quotas.rules_bytes_max():
            return QuotaExceeded(
                f"The rules of the namespace '{self.namespace}' take {self.rules_bytes // limits.KIB} KB of memory and "
                f"may take {self.quotas.rules_bytes_max() // limits.KIB} (limit memory-mb)."
            )
        sql_count, correlation_count = topic.sql_count, topic.correlation_count
        more_sql = 0
        for rule in rules:
            if not isinstance(rule.filter, CorrelationFilter):
                more_sql += 1
        if more_sql and sql_count + more_sql > self.quotas.sql_filters_per_topic:
            return QuotaExceeded(
                f"'{topic.path}' has {sql_count} SQL filters in its subscriptions and may have "
                f"{self.quotas.sql_filters_per_topic} (limit sql-filters-per-topic)."
            )
        more_correlation = len(rules) - more_sql
        if more_correlation and correlation_count + more_correlation > self.quotas.correlation_filters_per_topic:
            return QuotaExceeded(
                f"'{topic.path}' has {correlation_count} correlation filters in its subscriptions and may have "
                f"{self.quotas.correlation_filters_per_topic} (limit correlation-filters-per-topic)."
            )
        return None

    def _compile(self, rule: Rule) -> CompiledRule:
        """Raises what is wrong with it."""
        problem = rule_name_problem(rule.name)
        if problem is not None:
            raise ArgumentError(f"'{rule.name}' cannot be the name of a rule: {problem}.")
        return CompiledRule(rule)

    def _add(self, kind: str, entity_id: int, path: str, settings: EntitySettings) -> Queue:
        loads = self._new_loads()
        if kind == SUBSCRIPTION:
            topic = self.topics[entity_key(split_subscription(path)[0])]
            queue: Queue = Subscription(entity_id, path, settings, topic, self.tokens, self.budget, loads)
            assert isinstance(queue, Subscription)
            topic.subscriptions[entity_key(path)] = queue
            topic.count_rules(queue.rules, 1)
            self.rules_bytes += queue.rules.weight
            queue.owners = [topic]
            queue.share = topic.share
            self.subscription_count += 1
        else:
            queue = Queue(entity_id, path, settings, None, self.tokens, self.budget, loads, Usage())
            queue.share = self._share_for(path, settings)
            self.entity_count += 1
        return self._enter(queue, loads)

    def _add_dead_letters(self, entity_id: int, parent: Queue) -> Queue:
        loads = self._new_loads()
        path = dead_letter_path(parent.path)
        queue = Queue(entity_id, path, parent.settings, parent, self.tokens, self.budget, loads, parent.usage)
        queue.share = parent.share
        parent.dead_letters = queue
        queue.owners = [parent, *parent.owners]
        return self._enter(queue, loads)

    def _add_topic(self, entity_id: int, path: str, settings: EntitySettings) -> Topic:
        loads = self._new_loads()
        topic = Topic(entity_id, path, settings, loads, self.access)
        topic.share = self._share_for(path, settings)
        self.entity_count += 1
        loads.owner = topic
        self._detect_duplicates(topic)
        self.topics[entity_key(path)] = topic
        self.by_id[entity_id] = topic
        return topic

    def _share_for(self, path: str, settings: EntitySettings) -> Share | None:
        return self.throttle.share_for(path, limits.PARTITIONS if settings.is_partitioned else 1)

    def _new_loads(self) -> Loads:
        return Loads(self.load_numbers, self.loads)

    def _enter(self, queue: Queue, loads: Loads) -> Queue:
        loads.owner = queue
        queue.lane.refill_step = Refill(queue, queue.lane)
        queue.faults = self.faults
        queue.throttle = self.throttle
        if queue.parent is None:
            self._detect_duplicates(queue)
        if target_of(queue.settings, queue.parent is not None):
            queue.forwarder = self._forwarding(queue)
        else:
            queue.sessions = self._sessions(queue)
        self.queues[entity_key(queue.path)] = queue
        self.by_id[queue.entity_id] = queue
        return queue

    def _sessions(self, queue: Queue) -> MessageSessions | None:
        if queue.settings.requires_session and queue.parent is None:
            return MessageSessions(queue, self.budget, self.receiver_links)
        return None

    def _forwarding(self, queue: Queue) -> Forwarding:
        return Forwarding(queue, self.queues, self.topics, self.apart, self.access, self._sessions(queue))

    def _detect_duplicates(self, entity: Entity) -> None:
        settings = entity.settings
        if settings.requires_duplicate_detection:
            entity.duplicates = Duplicates(entity.entity_id, entity.path, settings, entity.loads, self.id_budget)
            entity.duplicates.is_partitioned = settings.is_partitioned

    def recover(self, row: EntityRow) -> Entity:
        """As the store remembers it; what belongs to another comes after it."""
        put = row.put
        settings = settings_from_json(put.settings)
        settings.rules = [_rule_of(rule) for rule in row.rules]
        entity: Entity
        if put.kind == TOPIC:
            entity = self._add_topic(put.entity_id, put.path, settings)
        elif put.kind == DEAD_LETTER_QUEUE:
            parent = self.by_id[put.parent_id]
            assert isinstance(parent, Queue), "a dead-letter queue belongs to a queue"
            entity = self._add_dead_letters(put.entity_id, parent)
        else:
            entity = self._add(put.kind, put.entity_id, put.path, settings)
        entity.recover(row)
        return entity

    # -- changing -----------------------------------------------------------------------------------------------

    def refuse_update(self, entity: Entity, settings: EntitySettings) -> BrokerError | None:
        if settings.requires_duplicate_detection != entity.settings.requires_duplicate_detection:
            return self._cannot_change("RequiresDuplicateDetection", entity)
        if settings.is_partitioned != entity.settings.is_partitioned:
            return self._cannot_change("EnablePartitioning", entity)
        if not isinstance(entity, Queue):
            return refuse_status(TOPIC, settings) or self._refuse_access_rules(entity.path, settings)
        if entity.dead_letters is None:
            return NotAllowed(f"'{entity.path}' takes its settings from the entity it belongs to.")
        if settings.requires_session != entity.settings.requires_session:
            return self._cannot_change("RequiresSession", entity)
        return (
            refuse_status(QUEUE, settings)
            or self._refuse_access_rules(entity.path, settings)
            or refuse_forwards(entity.path, settings, self.queues, self.topics)
        )

    def _cannot_change(self, name: str, entity: Entity) -> BrokerError:
        return ArgumentError(
            f"The value for the {name} property of an existing entity ('{entity.path}') cannot be changed. "
            "Delete the entity and create it again."
        )

    def update(self, entity: Entity, settings: EntitySettings, decided: Decided) -> None:
        """Locks are lost when an entity changes (contract H16). The rules of a subscription stay as they are."""
        settings.created_ms = entity.settings.created_ms
        settings.updated_ms = decided.now_ms
        settings.rules = entity.settings.rules
        if not isinstance(entity, Subscription) and (settings.access_rules or entity.settings.access_rules):
            decided.emit(AccessChanged(entity_key(entity.path), settings.access_rules))
        for changed in self.with_dead_letters(entity):
            changed.settings = settings
            decided.mark_ready(changed)
            if isinstance(changed, Queue):
                changed.revoke_locks(decided)
                self._change_forwarding(changed, decided)
        if entity.duplicates is not None:
            entity.duplicates.change(settings, decided.now_ms)
        self.remember(entity, decided)

    def _change_forwarding(self, queue: Queue, decided: Decided) -> None:
        former = queue.forwarder
        if target_of(queue.settings, queue.parent is not None):
            queue.forwarder = self._forwarding(queue)
            if queue.sessions is not None:
                queue.sessions = None  # nobody holds any now: all their messages go one after the other
                queue.lane.window.restart(queue.counters.last_sequence_number)
        elif isinstance(former, Forwarding):
            former.stop(decided)

    def add_rule(self, subscription: Subscription, rule: Rule, decided: Decided) -> BrokerError | None:
        if subscription.rules.find(rule.name) is not None:
            topic, name = split_subscription(subscription.path)
            shown = f"{self.namespace}:Topic:{topic}|{name}|{rule.name}"
            return EntityAlreadyExists(f"The messaging entity '{shown}' already exists.")
        try:
            compiled = self._compile(rule)
        except BrokerError as error:
            return error
        if rule.created_ms == 0:  # else it takes the place of one that was there
            rule.created_ms = decided.now_ms
        refusal = self._refuse_filters(subscription.topic, [rule])
        if refusal is not None:
            return refusal
        subscription.topic.count_rules(subscription.rules, -1)
        subscription.rules.add(rule, compiled)
        subscription.topic.count_rules(subscription.rules, 1)
        self.rules_bytes += weight_of(rule)
        decided.remember([_put_of(subscription, rule)])
        return None

    def remove_rule(self, subscription: Subscription, name: str, decided: Decided) -> BrokerError | None:
        found = subscription.rules.find(name)
        if found is None:
            return EntityNotFound(
                f"The messaging entity 'sb://{self.namespace}/{subscription.path}/Rules/{name}' could not be found. "
                "List the rules of the subscription to see their names."
            )
        topic = subscription.topic
        topic.count_rules(subscription.rules, -1)
        index = subscription.rules.remove(found)
        topic.count_rules(subscription.rules, 1)
        if topic.publication is not None:
            topic.publication.leave_out(subscription, index)
        self.rules_bytes -= weight_of(found)
        decided.remember([RuleRemoved(subscription.entity_id, found.number)])
        return None

    def remember(self, entity: Entity, decided: Decided) -> None:
        """But for its rules."""
        decided.remember(self._puts_of(entity))

    def _puts_of(self, entity: Entity) -> list[Record]:
        settings = entity.settings.to_json_without_rules()
        if isinstance(entity, Topic):
            return [EntityPut(entity.entity_id, TOPIC, entity.path, settings, 0)]
        assert isinstance(entity, Queue), "an entity is a topic or a queue"
        dead_letters = entity.dead_letters
        assert dead_letters is not None, "what is changed by itself has a dead-letter queue"
        kind = SUBSCRIPTION if isinstance(entity, Subscription) else QUEUE
        parent_id = entity.topic.entity_id if isinstance(entity, Subscription) else 0
        return [
            EntityPut(entity.entity_id, kind, entity.path, settings, parent_id),
            EntityPut(dead_letters.entity_id, DEAD_LETTER_QUEUE, dead_letters.path, settings, entity.entity_id),
        ]

    # -- deleting -----------------------------------------------------------------------------------------------

    def whole(self, entity: Entity) -> list[Entity] | None:
        """Everything that goes with it, itself last; None if it cannot go by itself."""
        if isinstance(entity, Topic):
            gone: list[Entity] = []
            for subscription in entity.subscriptions.values():
                gone += self.with_dead_letters(subscription)
            gone.append(entity)
            return gone
        assert isinstance(entity, Queue), "an entity is a topic or a queue"
        if entity.dead_letters is None:
            return None
        return self.with_dead_letters(entity)

    def with_dead_letters(self, entity: Entity) -> list[Entity]:
        """What has the settings of this one, itself last."""
        if isinstance(entity, Queue) and entity.dead_letters is not None:
            return [entity.dead_letters, entity]
        return [entity]

    def unregister(self, entity: Entity) -> None:
        entity.usage.size_bytes -= entity.counters.size_bytes
        if entity.duplicates is not None:
            entity.duplicates.close()
        self.discard(entity)

    def discard(self, entity: Entity) -> None:
        """An entity is found no more, in whatever state it is."""
        key = entity_key(entity.path)
        if self.by_id.pop(entity.entity_id, None) is None:
            return
        if isinstance(entity, Subscription):
            entity.topic.subscriptions.pop(key, None)
            entity.topic.count_rules(entity.rules, -1)
            self.subscription_count -= 1
            self.rules_bytes -= entity.rules.weight
        elif isinstance(entity, Topic) or (isinstance(entity, Queue) and entity.parent is None):
            self.entity_count -= 1
        if isinstance(entity, Topic):
            self.topics.pop(key, None)
        else:
            self.queues.pop(key, None)


def _put_of(subscription: Subscription, rule: Rule) -> RulePut:
    return RulePut(subscription.entity_id, rule.number, rule.name, rule.to_json())


def _rule_of(row: RuleRow) -> Rule:
    """One that cannot be read takes its place all the same: see `BrokenRule`."""
    problem = row.problem
    if not problem:
        try:
            rule = rule_from_json(row.text)
            rule.number = row.number
            return rule
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    rule = unreadable_rule(row.name, problem)
    rule.number = row.number
    return rule
