"""Where the next batch of a browsing stream begins and ends in each entity, as the driver plans it."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from spillway.client import ClientError, Management, ReceivedMessage
from spillway.spark.platform.connection_pool import NamespaceError, plain
from spillway.spark.platform.operations import CountedPool
from spillway.spark.source.byte_limits import count_within
from spillway.spark.source.dead_letters import DeadLetterWatch, Late, behind, entity_of, is_dead_letters
from spillway.spark.source.enqueued_times import start_at
from spillway.spark.source.entity_patterns import EntityPattern
from spillway.spark.source.options import FAIL, ReadOptions
from spillway.spark.source.positions import Position, end_position, peek_from, position_of
from spillway.spark.source.sequence_bounds import end_of

Offset = dict[str, Any]  # of each entity a position, as plain values


def positions(offset: Offset) -> dict[str, Position]:
    """Of an offset that was checked."""
    return {name: position_of(plain) or Position(0) for name, plain in offset.items()}


def check_offset(offset: Offset, options: ReadOptions) -> None:
    """A checkpoint of another query has other entities in it, or none. Of a pattern some may come and go."""
    is_known = set(offset) == set(options.entities)
    if options.entity_pattern:
        is_known = all(map(EntityPattern(options.entity_pattern).has, offset))
    if not is_known or None in [position_of(plain) for plain in offset.values()]:
        told = ", ".join(sorted(offset)[:5])
        raise ValueError(
            f"the checkpoint is of another query: it knows of {told}, and this one browses "
            f"{options.entity_pattern or ', '.join(options.entities[:5])}. Give every query a checkpointLocation of "
            "its own"
        )


async def beginnings(pool: CountedPool, options: ReadOptions, watch: DeadLetterWatch) -> Offset:
    """The offset that a query without a checkpoint begins at."""
    if options.start_time_ms is not None:
        connection = await pool.connection(options.access)
        managements = {entity: pool.management(connection, entity) for entity in options.entities}
        try:
            found = await asyncio.gather(*[start_at(one, options.start_time_ms) for one in managements.values()])
        except ClientError as error:
            raise plain(error, ", ".join(options.entities[:5]), "Listen") from None
        return dict(zip(managements, found, strict=True))
    if options.start_at is not None:
        return dict.fromkeys(options.entities, options.start_at)
    return await batch_ends(pool, options, dict.fromkeys(options.entities, 0), None, watch)


async def batch_ends(
    pool: CountedPool,
    options: ReadOptions,
    start: Offset,
    count_max: int | None,
    watch: DeadLetterWatch | None,
    target: Mapping[str, int] | None = None,
) -> Offset:
    """The rows of a batch are shared out among the entities that have any. None lies at or behind its `target`.

    Without a `watch` only the numbers are right, as far as they are asked for their own sake.
    """
    connection = await pool.connection(options.access)
    places = {entity: Place(pool.management(connection, entity)) for entity in options.entities}
    for entity in filter(is_dead_letters, options.entities if watch is not None else ()):
        places[entity] = Place(places[entity].management, pool.management(connection, entity_of(entity)), watch)
    try:
        at = {**dict.fromkeys(options.entities, Position(0)), **positions(start)}  # an entity that is new: all of it
        looked = await asyncio.gather(*[_begin(place, at[name], options) for name, place in places.items()])
        waiting = [begin for begin in looked if begin is not None]
        if target is not None:
            waiting = [begin for begin in waiting if begin.number < target.get(begin.entity, 0)]
        share = None if count_max is None else max(1, count_max // max(1, len(waiting)))
        waiting = waiting[:count_max]
        bytes_share = None if options.max_bytes is None else options.max_bytes // max(1, len(waiting))
        ends = await asyncio.gather(
            *[_end(places[begin.entity], begin, share, bytes_share, target) for begin in waiting]
        )
    except ClientError as error:
        raise plain(error, ", ".join(options.entities[:5]), "Listen") from None
    return {**start, **{begin.entity: end.to_plain() for begin, end in zip(waiting, ends, strict=True)}}


class Place(NamedTuple):
    """An entity that is browsed; of dead letters also the entity where they were before."""

    management: Management
    before: Management | None = None
    watch: DeadLetterWatch | None = None


class BatchBegin(NamedTuple):
    """The first new message of an entity, if there is one, and the dead letters that came late."""

    entity: str
    first: ReceivedMessage | None
    at: Position
    is_reset: bool
    late: Late

    @property
    def number(self) -> int:
        if self.late.numbers:
            return self.late.numbers[0]
        return 0 if self.first is None else self.first.sequence_number or 0


async def _begin(place: Place, at: Position, options: ReadOptions) -> BatchBegin | None:
    """None where nothing is new. An entity that is not the one of this position is begun anew, or an error."""
    found = await peek_from(place.management, at)
    is_reset = bool(found.reset)
    if is_reset:
        if options.on_reset == FAIL:
            raise NamespaceError(
                f"'{place.management.path}' is not the entity that the checkpoint is of, but was made anew: "
                f"{found.reset}. Messages up to number {at.next - 1:,} would be passed over. Say onReset=earliest to "
                "read it from its first message, or give the query another checkpointLocation"
            )
        at = Position(0)
        found = await peek_from(place.management, at)
    late = Late((), at.next)
    if place.before is not None and place.watch is not None:
        late = await place.watch.late(place.management, place.before, at)
    if found.first is None and not late.numbers:
        return None
    return BatchBegin(place.management.path, found.first, at, is_reset, late)


async def _end(
    place: Place, begin: BatchBegin, share: int | None, bytes_share: int | None, target: Mapping[str, int] | None
) -> Position:
    new = at = begin.at
    first = at.next
    if bytes_share is not None and share is not None:
        share = await count_within(place.management, begin.number, share, bytes_share)
    if begin.first is not None:
        first = begin.first.sequence_number or 0
        end = await end_of(place.management, first, share)
        if target is not None:
            end = min(end, target[begin.entity])
        if end > at.next:
            new = replace(await end_position(place.management, end, begin.first, at.passed), begins_at=None)
    if place.before is not None:
        new = await behind(place.management, place.before, at, begin.late, first, new, share)
    assert new.next >= at.next, "a position does not run backwards"
    return replace(new, begins_at=0 if begin.is_reset else None)
