"""When entities must be looked at by themselves: one heap for all of them."""

import heapq

from spillway.broker.entity import Entity


class Timers:
    """`by_id`: the entities there are. One whose time has changed is in the heap twice: stale entries are skipped."""

    def __init__(self, by_id: dict[int, Entity]) -> None:
        self.by_id = by_id
        self.heap: list[tuple[int, int]] = []  # (when, entity id)

    def set(self, entity: Entity) -> None:
        due_ms = entity.due_ms()
        if due_ms != 0 and (entity.timer_ms == 0 or due_ms < entity.timer_ms):
            entity.timer_ms = due_ms
            heapq.heappush(self.heap, (due_ms, entity.entity_id))

    def next_ms(self) -> int:
        """When the next one is due; 0 if none is."""
        while self.heap:
            when, entity_id = self.heap[0]
            entity = self.by_id.get(entity_id)
            if entity is not None and entity.timer_ms == when:
                return when
            heapq.heappop(self.heap)
        return 0

    def pop_due(self, now_ms: int) -> Entity | None:
        """One whose time has come; it has no timer any more."""
        while self.heap and self.heap[0][0] <= now_ms:
            when, entity_id = heapq.heappop(self.heap)
            entity = self.by_id.get(entity_id)
            if entity is not None and entity.timer_ms == when:
                entity.timer_ms = 0
                return entity
        return None
