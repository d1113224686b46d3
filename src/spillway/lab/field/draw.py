"""Plans drawn from a seed. Pure: the same seed is the same plan, on every machine.

Weights, not special cases: what is rare in the field is rare here too, but what leads to trouble in combination (a peer
that was restarted while nobody sent, a second outage, a caller whose message nobody takes) has a good chance to meet.
"""

import random
from typing import Final

from spillway.lab.field import plan as plans
from spillway.lab.field.content import BAD, GOOD, ODD, SESSION_KINDS
from spillway.lab.field.plan import PRIMARY, SECONDARY, Ailment, PlannedEntity, PlannedSend, PlayPlan, Program

ACT_S: Final = 20.0  # from the first send to the last
CALM_S: Final = 3.0  # before the first ailment
HEALED_S: Final = 21.0  # the latest end of an ailment
TIMEOUT_S: Final = 15.0  # of which a primary that is down takes four to six where the machine has much to do
INTERVAL_S: Final = 2.0
BEATS: Final = 8  # of a program; between two of them nobody sends
SENDS: Final = 5  # of a beat
BEAT_S: Final = 0.5
WARM: Final = 5
PAUSE_S: Final = (1.0, 8.0)  # between two ailments of a side
KINDS_EACH: Final = 4  # bad and odd kinds that a program knows

ENTITIES: Final = (
    PlannedEntity("plain", dedup=True),
    PlannedEntity("loose"),
    PlannedEntity("grouped", sessions=True, dedup=True),
    PlannedEntity("small", dedup=True, size_mb=1),
    PlannedEntity("news", is_topic=True),
)
CONDITIONS: Final = (
    "amqp:internal-error",
    "amqp:resource-limit-exceeded",
    "com.microsoft:entity-disabled",
    "com.microsoft:timeout",
)
CLOSING: Final = ("well", "primary-frozen", "secondary-frozen", "both-frozen", "primary-down", "both-down")
PRIMARY_WEIGHTS: Final = {
    plans.KILL: 8,
    plans.CUT: 5,
    plans.FREEZE: 3,
    plans.UNREACHABLE: 2,
    plans.REFUSE: 3,
    plans.DISABLE: 1,
    plans.FILL: 2,
    plans.DELETE: 1,
    plans.SILENT: 1,
    plans.BUSY: 1,
    plans.SLOW: 1,
}
SECONDARY_WEIGHTS: Final = {
    plans.KILL: 8,
    plans.CUT: 4,
    plans.FREEZE: 1,
    plans.UNREACHABLE: 1,
    plans.REFUSE: 2,
    plans.BUSY: 1,
    plans.SLOW: 1,
}
SHORT_S: Final = (0.5, 4.0)
LONG_S: Final = (10.0, 15.0)  # longer than a call of a caller that is held
LONG_SHARE: Final = 0.3  # of what befalls the primary
BRIEF: Final = (plans.FREEZE, plans.SILENT, plans.BUSY, plans.SLOW)  # each try of these takes long enough
BRIEF_S: Final = (2.0, 7.0)
HOW_WEIGHTS: Final = {plans.ONE: 5, plans.TOGETHER: 6, plans.SEQUENCE: 3, plans.BATCH: 2, plans.SCHEDULE: 1}


def plan_of(seed: int) -> PlayPlan:
    chance = random.Random(seed)
    backlog_queues = chance.choice((1, 2, 2, 3))
    programs = _programs(chance)
    return PlayPlan(
        seed=seed,
        backlog_queues=backlog_queues,
        cool_down_s=chance.choice((5.0, 60.0, 60.0)),
        closing=chance.choice(CLOSING),
        entities=ENTITIES,
        programs=programs,
        ailments=(*_primary_lane(chance), *_secondary_lane(chance, backlog_queues)),
        sends=tuple(send for program in programs for send in _sends(chance, program)),
    )


def _programs(chance: random.Random) -> tuple[Program, ...]:
    """One of each front, so that every play has both; interval and `pending` as they come."""
    return tuple(
        Program(front, front, chance.choice((0.0, INTERVAL_S)), chance.choice(("raise", "hold")), TIMEOUT_S, 2)
        for front in (plans.ASYNCIO, plans.SYNC)
    )


def _primary_lane(chance: random.Random) -> list[Ailment]:
    found = []
    for at_s, what, lasts_s in _lane(chance, PRIMARY_WEIGHTS, (3, 4), LONG_SHARE):
        found.append(_of_primary(chance, at_s, lasts_s, what))
    return found


def _of_primary(chance: random.Random, at_s: float, lasts_s: float, what: str) -> Ailment:
    name = chance.choice([entity.name for entity in ENTITIES])
    if what in (plans.KILL, plans.FREEZE, plans.CUT, plans.UNREACHABLE):
        return Ailment(at_s, lasts_s, PRIMARY, what)
    if what == plans.FILL:
        name = "small"
    elif what == plans.DELETE:
        name = chance.choice(("plain", "loose", "news"))
    condition = chance.choice(CONDITIONS) if what == plans.REFUSE else ""
    delay_ms = chance.randrange(200, 1_200) if what == plans.SLOW else 0
    return Ailment(at_s, lasts_s, PRIMARY, what, (name,), condition, delay_ms)


def _secondary_lane(chance: random.Random, backlog_queues: int) -> list[Ailment]:
    found = []
    for at_s, what, lasts_s in _lane(chance, SECONDARY_WEIGHTS, (1, 5), 0.0):
        paths: tuple[str, ...] = (plans.EVERYTHING,)
        condition = ""
        if what == plans.REFUSE:  # some of its queues, never all: the others are to take the messages
            condition = chance.choice(CONDITIONS)
            count = chance.randrange(backlog_queues) if backlog_queues > 1 else 0
            if count == 0:
                continue
            paths = tuple(str(index) for index in sorted(chance.sample(range(backlog_queues), count)))
        delay_ms = chance.randrange(200, 1_200) if what == plans.SLOW else 0
        found.append(Ailment(at_s, lasts_s, SECONDARY, what, paths, condition, delay_ms))
    return found


def _lane(
    chance: random.Random, weights: dict[str, int], count: tuple[int, int], long_share: float
) -> list[tuple[float, str, float]]:
    """When, what and for how long, one after the other with a gap between two."""
    found = []
    at_s = CALM_S + chance.uniform(0.0, 2.0)
    for _ in range(chance.randint(*count)):
        what = chance.choices(list(weights), list(weights.values()))[0]
        span_s = BRIEF_S if what in BRIEF else LONG_S if chance.random() < long_share else SHORT_S
        lasts_s = 0.0 if what == plans.CUT else round(chance.uniform(*span_s), 1)
        if at_s + lasts_s > HEALED_S:
            continue
        found.append((round(at_s, 1), what, lasts_s))
        at_s += lasts_s + chance.uniform(*PAUSE_S)
    return found


def _sends(chance: random.Random, program: Program) -> list[PlannedSend]:
    """Beats with pauses between them: connections that nobody uses for a while are part of the field."""
    kinds = chance.sample([*BAD, *ODD], KINDS_EACH)
    # It has sent to every entity before anything happens, as a program has that runs for a while.
    found = [PlannedSend(0.0, program.name, 0, entity.name, GOOD, plans.TOGETHER, WARM) for entity in ENTITIES]
    beats_s = [chance.uniform(0.0, ACT_S) for _ in range(BEATS)]
    for beat_s in beats_s * SENDS:
        at_s = round(beat_s + chance.uniform(0.0, BEAT_S), 2)
        entity = chance.choice(ENTITIES)
        sender = chance.randrange(program.senders)
        how = chance.choices(list(HOW_WEIGHTS), list(HOW_WEIGHTS.values()))[0]
        kind = GOOD if chance.random() < 0.75 else chance.choice(kinds)
        if kind in SESSION_KINDS and not entity.sessions:
            entity = next(each for each in ENTITIES if each.sessions)
        if kind != GOOD:
            how = plans.ONE
        count = chance.randint(4, 6) if how in (plans.TOGETHER, plans.SEQUENCE, plans.BATCH) else 1
        found.append(PlannedSend(at_s, program.name, sender, entity.name, kind, how, count))
    return sorted(found, key=lambda each: each.at_s)
