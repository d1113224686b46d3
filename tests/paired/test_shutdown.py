"""A task that lost a cancellation is cancelled again; nobody waits for it for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from spillway.client import Receiver
from spillway.paired import deadlines, shutdown
from spillway.paired.deadlines import Deadlines
from spillway.paired.shutdown import end
from tests.paired.namespaces import Namespaces

T = TypeVar("T")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told again after a moment, not after seconds."""
    monkeypatch.setattr(shutdown, "AGAIN_S", 0.05)
    monkeypatch.setattr(deadlines, "AGAIN_S", 0.05)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def deaf(times: int) -> None:
    """Goes on, so many times, as if nobody had cancelled it."""
    for _ in range(times):
        try:
            await for_ever()
        except asyncio.CancelledError:
            continue
    await for_ever()


async def limited(calls: Deadlines, call: Coroutine[Any, Any, T]) -> T:
    """Its time has come when it begins."""
    with calls.limit(asyncio.get_running_loop().time()):
        return await call


async def test_tasks_that_did_not_hear_of_their_end_are_told_again() -> None:
    async def failing() -> None:
        raise OSError("of its own")

    tasks = [asyncio.create_task(each) for each in (for_ever(), deaf(1), deaf(3), failing())]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end(*tasks)
    assert [task.cancelled() for task in tasks] == [True, True, True, False]
    await end()
    await end(*tasks)  # they have ended already


async def test_who_is_cancelled_while_ending_others_leaves_none_of_them_behind() -> None:
    task = asyncio.create_task(deaf(3))
    await asyncio.sleep(0)
    ender = asyncio.create_task(end(task))
    await asyncio.sleep(0)
    ender.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await ender
    assert task.cancelled()


async def test_a_call_that_did_not_hear_of_its_time_out_is_told_again() -> None:
    calls = Deadlines()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await limited(calls, deaf(3))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    calls.close()


async def test_a_call_that_gave_its_result_instead_of_ending_leaves_its_task_as_it_was() -> None:
    async def answering() -> int:
        try:
            await for_ever()
        except asyncio.CancelledError:
            return 7
        return 0

    calls = Deadlines()
    assert await limited(calls, answering()) == 7
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.1)  # nobody cancels it afterwards
    calls.close()


async def test_a_syphon_whose_receive_lost_the_cancellation_is_closed_all_the_same(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `asyncio.wait_for` of Python 3.11 does when a message arrives in that moment."""
    receive = Receiver.receive
    is_receiving, lost = asyncio.Event(), 0

    async def losing(self: Receiver, *args: Any, **options: Any) -> Any:
        nonlocal lost
        is_receiving.set()
        try:
            return await receive(self, *args, **options)
        except asyncio.CancelledError:
            lost += 1
            if lost == 1:
                return []
            raise

    monkeypatch.setattr(Receiver, "receive", losing)
    async with namespaces.paired(1, enable_syphon=True) as syphoning:
        async with asyncio.timeout(30):
            await is_receiving.wait()
        running = syphoning.primary.syphon
        assert running is not None
        async with asyncio.timeout(5):
            await running.close()
        assert lost >= 1
        assert all(task.done() for task in running.tasks)
