"""What a client does not read is held for it, and it pays for it."""

import asyncio
from typing import cast

import pytest

from spillway.model import limits
from spillway.model.budget import Account, Budget
from spillway.server.connection import LAST_READ_BYTES, ClientConnection
from tests.server.doubles import Bench, ScriptedPeer


class Pipe:
    """A transport whose client reads when the test says so."""

    def __init__(self) -> None:
        self.waiting = 0
        self.is_cut_off = False

    def writelines(self, parts: list[bytes]) -> None:
        self.waiting += sum(len(part) for part in parts)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_cut_off

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.is_cut_off = True


class Client:
    def __init__(self, bench: Bench, budget: Budget) -> None:
        self.peer = ScriptedPeer()
        self.account = self.peer.account = Account(budget, limits.MIB)
        self.connection = ClientConnection(bench.pump, lambda: self.peer, None, "here")
        self.pipe = Pipe()
        self.connection.connection_made(cast(asyncio.Transport, self.pipe))


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_what_a_client_does_not_read_is_charged_until_it_is_read(bench: Bench) -> None:
    client = Client(bench, Budget(10 * limits.MIB))
    client.connection.write([bytes(300_000)])
    client.connection.write([bytes(300_000)])
    assert client.account.held_bytes == 600_000
    client.pipe.waiting = 100_000
    client.connection.weigh()
    assert client.account.held_bytes == 100_000
    assert not client.pipe.is_cut_off


async def test_who_reads_nothing_is_cut_off_at_its_bound(bench: Bench) -> None:
    client = Client(bench, Budget(10 * limits.MIB))
    for _ in range(4):
        client.connection.write([bytes(300_000)])
    assert client.account.is_over
    assert client.pipe.is_cut_off


async def test_the_one_that_holds_most_is_told_and_closed_for_the_others(bench: Bench) -> None:
    budget = Budget(limits.MIB)
    large, small = Client(bench, budget), Client(bench, budget)
    large.connection.write([bytes(LAST_READ_BYTES // 2)])
    large.account.charge(600_000)
    small.account.charge(500_000)
    error = large.peer.close_error
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "memory-mb" in error.description
    assert not large.pipe.is_cut_off, "it has little to read, and is let to read it"
    assert small.peer.close_error is None
