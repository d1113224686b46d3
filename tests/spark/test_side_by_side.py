"""Pieces of messages that many workers bring, handed out together."""

import asyncio
import time

from spillway.client import ReceivedMessage
from spillway.spark.source.side_by_side import GATHER_S, PIECE, SideBySide


def messages(count: int) -> list[ReceivedMessage]:
    return [ReceivedMessage(b"x") for _ in range(count)]


async def test_what_many_workers_bring_goes_on_in_pieces_and_nothing_is_left_out() -> None:
    async def bring() -> None:
        for _ in range(60):
            await asyncio.sleep(0)
            await side.put(messages(2))

    side = SideBySide(bring, 20)
    sizes = []
    while piece := await side.next():
        sizes.append(len(piece))
    assert sum(sizes) == 20 * 60 * 2
    assert all(PIECE <= size < PIECE + 40 for size in sizes[:-1]), sizes


async def test_few_messages_do_not_wait_for_others_that_do_not_come() -> None:
    ended = asyncio.Event()

    async def bring() -> None:
        await side.put(messages(1))
        await ended.wait()

    side = SideBySide(bring, 3)
    began_s = time.monotonic()
    assert len(await side.next()) == 3
    assert time.monotonic() - began_s >= GATHER_S * 0.9
    ended.set()
    assert await side.next() == []
