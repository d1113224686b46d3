"""What is left in entities, as far as it can be seen without receiving: asked by the driver, without bodies."""

from spillway.client import ClientError
from spillway.spark.platform.connection_pool import ConnectionPool, connection_pool, plain
from spillway.spark.platform.patience import Patience, patiently
from spillway.spark.source.options import ReadOptions
from spillway.spark.source.sequence_bounds import NotInOneRow, first_from, has_active, last_of


class Leftovers:
    """Remembers where each entity ended when it was made; later messages are not counted as left."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._patience = Patience(options.access, ", ".join(options.entities[:5]))
        pool = connection_pool()
        self._ends: dict[str, int | None] = pool.run(self._find_ends(pool))
        self._looked_from = dict.fromkeys(options.entities, 0)  # behind deferred messages, which nobody receives

    def left(self) -> list[str]:
        """Entities that still have messages of then, locked ones too; those that number no order are left out."""
        pool = connection_pool()
        return pool.run(patiently(self._patience, lambda: self._find_left(pool)))

    @property
    def are_known(self) -> bool:
        """Not of entities whose partitions number their messages by themselves."""
        return None not in self._ends.values()

    async def _find_ends(self, pool: ConnectionPool) -> dict[str, int | None]:
        ends: dict[str, int | None] = {}
        for entity in self._options.entities:
            try:
                management = pool.management(await pool.connection(self._options.access), entity)
                first = await first_from(management, 0)
                ends[entity] = -1 if first is None else await last_of(management, first)
            except NotInOneRow:
                ends[entity] = None
            except ClientError as error:
                raise plain(error, entity, "Listen") from None
        return ends

    async def _find_left(self, pool: ConnectionPool) -> list[str]:
        found: list[str] = []
        for entity, end in self._ends.items():
            if end is None:
                continue
            try:
                management = pool.management(await pool.connection(self._options.access), entity)
                is_left, self._looked_from[entity] = await has_active(management, self._looked_from[entity], end)
            except ClientError as error:
                raise plain(error, entity, "Listen") from None
            if is_left:
                found.append(entity)
        return found
