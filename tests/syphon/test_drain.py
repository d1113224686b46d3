"""A run that empties the backlog: gone on with after an interruption, ended when there is no way."""

import asyncio
import socket

import pytest

from spillway.client import ClientError
from spillway.client.faults import Fault, RemoteFaults
from spillway.syphon.depths import Backlogs, name_of
from spillway.syphon.drain import Drain, DrainOptions
from spillway.syphon.openers import opener_of_string
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog
from tests.syphon.test_contract import filled, ids_at, made


def drain_of(namespaces: Namespaces, backlog: Backlog, said: list[str], primary: str = "") -> Drain:
    home = opener_of_string(primary or namespaces.primary.connection_string)
    away = opener_of_string(namespaces.secondary.connection_string)
    backlogs = Backlogs(namespaces.secondary.connection_string, "", backlog.name, 3, away)
    return Drain(home, away, backlogs, DrainOptions(patience_s=0.0), lambda count: None, said.append)


async def test_a_connection_that_was_lost_in_the_middle_is_made_anew(namespaces: Namespaces) -> None:
    backlog = await made(namespaces)
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 200)
    RemoteFaults(namespaces.primary.connection_string).add(Fault("drop", queue, ["send"], count=1))
    said: list[str] = []
    done = await drain_of(namespaces, backlog, said).run()
    assert (done.moved, done.kept, done.after, done.is_all_home) == (200, 0, 0, True)
    assert sorted(await ids_at(namespaces, queue)) == sorted(ids)
    assert len(said) == 1 and "trying again" in said[0]


async def test_a_primary_that_is_not_there_ends_it_after_a_few_tries_and_nothing_is_lost(
    namespaces: Namespaces,
) -> None:
    backlog = await made(namespaces)
    await asyncio.to_thread(filled, backlog, backlog.destination(), 10)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        at = f"Endpoint=sb://127.0.0.1:{taken.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=a2V5;"
        drain = drain_of(namespaces, backlog, [], f"{at}UseDevelopmentEmulator=true")
        with pytest.raises(ClientError, match="cannot reach"):
            await drain.run()
    assert (drain.done.moved, drain.done.before) == (0, 10)
    assert sum(await backlog._left()) == 10


async def test_messages_that_somebody_else_holds_are_waited_for(namespaces: Namespaces) -> None:
    backlog = await made(namespaces, lock="PT5S")
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 20)
    away = await opener_of_string(namespaces.secondary.connection_string)()
    async with away:
        receiver = await away.receiver(backlog.paths[0])
        assert len(await receiver.receive(20, 5.0)) == 20
        said: list[str] = []
        done = await drain_of(namespaces, backlog, said).run()
    assert (done.moved, done.is_all_home) == (20, True)
    assert sorted(await ids_at(namespaces, queue)) == sorted(ids)
    assert "locked by somebody" in said[0]


async def test_a_backlog_without_queues_is_nothing_to_do(namespaces: Namespaces) -> None:
    backlog = await made(namespaces)
    backlog.name = "nobody"
    done = await drain_of(namespaces, backlog, []).run()
    assert (done.queues, done.before, done.is_all_home) == (0, 0, True)


def test_the_name_of_a_primary_is_the_one_that_senders_derive() -> None:
    key = "SharedAccessKeyName=k;SharedAccessKey=a2V5"
    assert name_of(f"Endpoint=sb://Contoso.servicebus.windows.net/;{key}") == "contoso"
    assert name_of(f"Endpoint=sb://localhost:5672;{key}") == "localhost-5672"
