"""Connections of a Spark process: kept between tasks, made anew when they are lost or the process was forked."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from spillway.client import Connection, ConnectionLost, EntityNotFound, OutgoingMessage
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool, connection_pool
from tests.tools.broker_process import BrokerProcess


def access(broker: BrokerProcess) -> Access:
    return Access(connection_string=broker.connection_string, timeout_s=10)


async def send(pool: ConnectionPool, where: Access, body: bytes) -> int:
    connection = await pool.connection(where)
    sender = await connection.sender("q")
    await sender.send(OutgoingMessage(body))
    await sender.close()
    return id(connection)


def test_a_connection_is_kept_and_made_anew_when_it_is_lost(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", queues=["q"]) as broker:
        where = access(broker)
        first = connection_pool().run(send(connection_pool(), where, b"1"))
        assert connection_pool().run(send(connection_pool(), where, b"2")) == first
        broker.kill()
        with pytest.raises(ConnectionLost):
            connection_pool().run(send(connection_pool(), where, b"lost"))
        broker.start()
        assert connection_pool().run(send(connection_pool(), where, b"3")) != first


def test_a_forked_process_has_connections_of_its_own(broker: BrokerProcess, tmp_path: Path) -> None:
    where = access(broker)

    async def look() -> tuple[int, Connection]:
        connection = await connection_pool().connection(where)
        with contextlib.suppress(EntityNotFound):  # it answers, which is all that matters
            await connection.management("nobody").peek()
        return os.getpid(), connection

    pid, ours = connection_pool().run(look())
    assert pid == os.getpid()
    told = tmp_path / "told"
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            told.write_text(str(connection_pool().run(look())[0]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert told.read_text() == str(child)
    assert connection_pool().run(look()) == (pid, ours)  # and ours is as it was
