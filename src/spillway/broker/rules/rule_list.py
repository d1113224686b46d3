"""The rules of a subscription: each compiled once, found by name, added and removed at the cost of that one."""

from bisect import bisect_left, insort

from spillway.broker.rules.actions import Action, compile_action
from spillway.broker.rules.filters import Condition, compile_filter
from spillway.model.errors import ArgumentError, BrokerError
from spillway.model.properties import MessageProperties
from spillway.model.rules import CorrelationFilter, FalseFilter, FilterError, Rule, weight_of


class CompiledRule:
    def __init__(self, rule: Rule) -> None:
        """Raises `BrokerError` if the rule cannot be understood."""
        self.rule = rule
        self.condition: Condition = compile_filter(rule.filter)
        self.action: Action | None = None if rule.action is None else compile_action(rule.action)
        self.is_broken = False


class Unreadable(Condition):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def evaluate(self, properties: MessageProperties) -> bool:
        raise FilterError(self.text)


class BrokenRule(CompiledRule):
    """One in the store that cannot be read or understood. Nobody knows which messages it wants: all are dead-lettered.

    Also where the subscription drops messages that a filter cannot be evaluated for: it is no fault of theirs.
    """

    def __init__(self, rule: Rule, error: BrokerError) -> None:
        super().__init__(Rule(rule.name, FalseFilter(), None, rule.created_ms))
        self.rule = rule
        self.condition = Unreadable(f"The rule '{rule.name}' cannot be understood: {error.description}")
        self.is_broken = True


class RuleList:
    """The rules in the order they are tried, which is that of their numbers. `rules` is the list of the settings.

    No step here but the first listing looks at all of them: there may be 100,000.
    """

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules
        # Each when it is first needed: starting is quick, and so is the first message.
        self.compiled: list[CompiledRule | None] = [None] * len(rules)
        self.by_key: dict[str, Rule] = {}
        self.keys: list[str] = []  # sorted, once somebody has asked for it
        self.is_sorted = False
        self.sql_count = 0  # with those that take all or nothing
        self.correlation_count = 0
        self.weight = 0
        self.last_number = 0
        for rule in rules:
            self._enter(rule)

    def _enter(self, rule: Rule) -> None:
        if rule.number <= self.last_number:
            rule.number = self.last_number + 1
        self.last_number = rule.number
        self.by_key[rule.name.lower()] = rule
        self._count(rule, 1)

    def _count(self, rule: Rule, by: int) -> None:
        self.weight += by * weight_of(rule)
        if isinstance(rule.filter, CorrelationFilter):
            self.correlation_count += by
        else:
            self.sql_count += by

    def find(self, name: str) -> Rule | None:
        return self.by_key.get(name.lower())

    def add(self, rule: Rule, compiled: CompiledRule) -> None:
        rule.number = 0
        self._enter(rule)
        self.rules.append(rule)
        self.compiled.append(compiled)
        if self.is_sorted:
            insort(self.keys, rule.name.lower())

    def remove(self, rule: Rule) -> int:
        """The place in the list where the rule was."""
        index = self._index_of(rule.number)
        del self.rules[index]
        del self.compiled[index]
        key = rule.name.lower()
        del self.by_key[key]
        if self.is_sorted:
            del self.keys[bisect_left(self.keys, key)]
        self._count(rule, -1)
        return index

    def _index_of(self, number: int) -> int:
        low = 0
        high = len(self.rules)
        while low < high:
            middle = (low + high) // 2
            if self.rules[middle].number < number:
                low = middle + 1
            else:
                high = middle
        return low

    def page(self, skip: int, top: int) -> list[Rule]:
        """The rules by name, as the service lists them."""
        if not self.is_sorted:
            self.keys = sorted(self.by_key)
            self.is_sorted = True
        return [self.by_key[key] for key in self.keys[skip : skip + top]]

    def compiled_at(self, index: int) -> CompiledRule:
        compiled = self.compiled[index]
        if compiled is None:
            rule = self.rules[index]
            try:
                compiled = BrokenRule(rule, ArgumentError(rule.problem)) if rule.problem else CompiledRule(rule)
            except BrokerError as error:  # what cannot be understood is refused when it is added, to this version
                compiled = BrokenRule(rule, error)
            self.compiled[index] = compiled
        return compiled
