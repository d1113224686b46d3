"""From the worker that receives messages to the process that keeps their locks, and the links of message sessions.

Where there is no such process (a system without Unix sockets, a directory that is not private, too many locks), the
worker renews them itself, for as long as it lives, and says so.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spillway.client import ReceivedMessage
from spillway.model.texts import count_text
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.operations import Operations
from spillway.spark.platform.session import say_on_stderr
from spillway.spark.source.declaration import PEEK_LOCK
from spillway.spark.source.lock_renewer import LockBatch, interval, lock_renewer_of
from spillway.spark.source.options import QUERY, ReadOptions
from spillway.spark.source.session_reception import SessionReception, SessionsWanted

if TYPE_CHECKING:
    from spillway.spark.source.keeper_client import KeeperClient
    from spillway.spark.source.session_relay import RelayedReception

_said: set[str] = set()


async def renew_locks(
    pool: ConnectionPool,
    access: Access,
    entity: str,
    messages: Sequence[ReceivedMessage],
    renew_s: float,
    batch: LockBatch | None,
) -> None:
    """See to it that the locks of these messages are renewed for `renew_s` seconds."""
    # Tokens only: the messages themselves are large, and are needed by nobody here.
    tokens = [message.lock_token for message in messages if message.lock_token is not None]
    if not tokens or renew_s <= 0:
        return
    every_s = interval(messages)
    client = keeper_client()
    if client is not None:
        from spillway.spark.source.keeper_place import KeeperUnavailable

        try:
            await client.renew(access, entity, tokens, every_s, renew_s, batch)
            return
        except KeeperUnavailable as error:
            _say(f"{error}; the Python worker renews locks itself, and Spark ends it after a minute without work")
    lock_renewer_of(pool).renew(access, entity, tokens, every_s, renew_s, batch)


def session_reception(
    pool: ConnectionPool, options: ReadOptions, wanted: SessionsWanted, batch: LockBatch | None, operations: Operations
) -> "SessionReception | RelayedReception":
    """Who receives the sessions of a task: the keeper, where locks have to outlive this process."""
    client = keeper_client() if options.mode == PEEK_LOCK and options.renew_s > 0 and wanted.names else None
    if client is None:
        return SessionReception(pool, options, wanted, batch, operations)
    from spillway.spark.source.session_relay import RelayedReception

    def instead(why: Exception) -> SessionReception:
        _say(f"{why}; the Python worker holds sessions itself, and Spark ends it after a minute without work")
        return SessionReception(pool, options, wanted, batch, operations)

    return RelayedReception(client, options, wanted, batch, operations, instead)


async def release_before(pool: ConnectionPool, batch: LockBatch | None) -> None:
    """Let others receive what earlier batches of this holder have left locked on this executor."""
    released = 0 if batch is None else await lock_renewer_of(pool).release_before(batch)
    client = keeper_client()
    if client is not None:
        from spillway.spark.source.keeper_place import KeeperUnavailable

        try:
            released += await client.release_before(batch)
        except KeeperUnavailable:
            pass  # who keeps locks next says so; what earlier batches have left locked runs out
    if released:
        say_on_stderr(
            f"{count_text(released, 'message')} of an earlier batch had not been settled when this one began, and "
            "can be received again, with one delivery more"
        )


def held_by(batch: LockBatch | None) -> LockBatch | None:
    """The batch with the name of its query, which only tasks know: the same for all starts from one checkpoint."""
    if batch is None or batch.holder != QUERY:
        return batch
    from pyspark import TaskContext

    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty("sql.streaming.queryId")
    return batch._replace(holder=f"query {query}" if query else f"start {batch.order[0]}")


def keeper_client() -> "KeeperClient | None":
    """The way to the lock keeper, where a system can have one."""
    if sys.platform == "win32":
        return None
    from spillway.spark.source.keeper_client import KeeperClient

    return KeeperClient()


def _say(text: str) -> None:
    """Once a process."""
    if text not in _said:
        _said.add(text)
        say_on_stderr(text)
