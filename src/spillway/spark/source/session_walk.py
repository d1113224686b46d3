"""Which message sessions a batch of a stream is to look at: the next of a list that is asked for once a walk.

A batch can have but so many sessions, and an entity may have fifty thousand: to list all of them for each batch takes
longer than to receive those that it takes. What a batch leaves is in the next list, and so are sessions that are new.
"""

from collections.abc import Iterable, Sequence

from spillway.client import Management
from spillway.spark.source.sequence_bounds import sessions_of


class SessionWalk:
    """One stream's walks, by entity. A batch that is planned again has the same sessions."""

    def __init__(self) -> None:
        self._batch = 0
        self._planned: dict[str, list[str]] = {}  # of this batch
        self._left: dict[str, list[str]] = {}  # those that come next

    def is_under_way(self, entities: Iterable[str]) -> bool:
        """Whether sessions of these were listed that no batch was given yet."""
        return any(self._left.get(entity) for entity in entities)

    def begin(self, batch: int) -> None:
        if batch != self._batch:
            self._batch = batch
            self._planned = {}

    async def next(self, management: Management, count: int) -> Sequence[str]:
        """At most `count` sessions of this entity for the batch that was begun."""
        entity = management.path
        if entity not in self._planned:
            names = self._left.get(entity) or await sessions_of(management)
            self._planned[entity], self._left[entity] = names[:count], names[count:]
        return self._planned[entity]
