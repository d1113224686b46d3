"""Calls that take too long are ended, and only those."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from spillway.paired.deadlines import Deadlines

T = TypeVar("T")


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def limited(deadlines: Deadlines, call: Awaitable[T], until_s: float) -> T:
    with deadlines.limit(until_s):
        return await call


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def quick() -> int:
    await asyncio.sleep(0)
    return 7


async def test_a_call_that_ends_in_time_gives_its_result_or_its_own_error() -> None:
    deadlines = Deadlines()
    assert await limited(deadlines, quick(), now_s() + 60) == 7

    async def failing() -> None:
        raise OSError("its own")

    with pytest.raises(OSError, match="its own"):
        await limited(deadlines, failing(), now_s() + 60)
    deadlines.close()


async def test_a_call_that_takes_too_long_is_ended_and_its_task_goes_on() -> None:
    deadlines = Deadlines()
    with pytest.raises(TimeoutError):
        await limited(deadlines, for_ever(), now_s())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await limited(deadlines, quick(), now_s() + 60) == 7
    deadlines.close()


async def test_of_many_calls_those_are_ended_whose_time_has_come_also_if_it_came_later_to_the_timer() -> None:
    deadlines = Deadlines()
    waits = asyncio.Event()
    late = asyncio.create_task(limited(deadlines, waits.wait(), now_s() + 60))
    await asyncio.sleep(0)
    early = [asyncio.create_task(limited(deadlines, for_ever(), now_s() + delay_s)) for delay_s in (0.02, 0.01, 0.0)]
    ended = await asyncio.gather(*early, return_exceptions=True)
    assert [type(each) for each in ended] == [TimeoutError] * 3
    assert not late.done()
    waits.set()
    assert await late is True
    deadlines.close()


async def test_a_call_that_is_ended_raises_what_the_deadlines_were_given_for_that() -> None:
    deadlines = Deadlines(lambda: ConnectionError("the factory was closed"))
    call = asyncio.create_task(limited(deadlines, for_ever(), now_s() + 60))
    await asyncio.sleep(0)
    deadlines.end_all()
    with pytest.raises(ConnectionError, match="the factory was closed"):
        await call
    deadlines.close()


async def test_somebody_who_cancels_the_task_is_not_taken_for_the_timer() -> None:
    deadlines = Deadlines()
    task = asyncio.create_task(limited(deadlines, for_ever(), now_s() + 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadlines.close()


async def test_a_time_out_around_it_keeps_its_meaning() -> None:
    deadlines = Deadlines()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await limited(deadlines, for_ever(), now_s() + 60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await limited(deadlines, for_ever(), now_s() + 0.01)
    deadlines.close()


async def test_a_call_that_is_under_way_when_it_is_closed_still_ends_in_its_time() -> None:
    deadlines = Deadlines()
    call = asyncio.create_task(limited(deadlines, for_ever(), now_s() + 0.02))
    await asyncio.sleep(0)
    deadlines.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 10)
