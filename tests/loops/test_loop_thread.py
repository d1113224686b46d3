"""An event loop on a thread of its own: its start and end, calls from other threads, errors, and what a fork does."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from spillway.loops import loop_thread
from spillway.loops.loop_thread import LoopThread

SOON_S = 20.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("the test's")
    yield made
    made.close(SOON_S)


async def where() -> int:
    return threading.get_ident()


async def for_ever() -> None:
    await asyncio.Event().wait()


async def leave() -> None:
    sys.exit(3)


async def kept(begun: threading.Event, ended: list[str]) -> None:
    begun.set()
    try:
        await for_ever()
    finally:
        ended.append("seen out")


# -- start and calls --------------------------------------------------------------------------------------------------


def test_it_is_started_when_it_is_first_needed_and_only_once(thread: LoopThread) -> None:
    assert not thread.is_running
    first = thread.run(where())
    assert thread.is_running
    assert first == thread.run(where()) == thread.thread_id != threading.get_ident()
    assert thread.start() is False


def test_start_says_whether_it_was_started_now(thread: LoopThread) -> None:
    assert thread.start() is True
    assert thread.start() is False
    (found,) = [each for each in threading.enumerate() if each.ident == thread.thread_id]
    assert (found.name, found.daemon) == ("the test's", True)


def test_many_threads_may_start_it_and_there_is_one_loop(thread: LoopThread) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(lambda _: thread.run(where()), range(200)))) == 1


def test_a_function_is_called_on_the_loop(thread: LoopThread) -> None:
    assert thread.call(lambda: (threading.get_ident(), asyncio.get_running_loop())) == (thread.thread_id, thread.loop)


def test_what_is_submitted_is_under_way_before_anybody_waits(thread: LoopThread) -> None:
    begun = threading.Event()

    async def begin() -> str:
        begun.set()
        return "done"

    future = thread.submit(begin())
    assert begun.wait(SOON_S)
    assert future.result(SOON_S) == "done"


def test_an_error_is_its_callers_and_the_loop_goes_on(thread: LoopThread) -> None:
    async def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        thread.run(fail())
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    assert thread.run(where()) == thread.thread_id


def test_who_does_not_wait_any_longer_cancels_the_work(thread: LoopThread) -> None:
    begun, ended = threading.Event(), list[str]()
    with pytest.raises(TimeoutError):
        thread.run(kept(begun, ended), 0.05)
    until_s = time.monotonic() + SOON_S
    while not ended and time.monotonic() < until_s:
        time.sleep(0.01)
    assert ended == ["seen out"]


def test_an_interrupt_cancels_the_work(thread: LoopThread) -> None:
    begun, ended = threading.Event(), list[str]()
    thread.start()

    def interrupt() -> None:
        assert begun.wait(SOON_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(kept(begun, ended))
    assert thread.call(lambda: len(asyncio.all_tasks())) == 1
    assert ended == ["seen out"]


def test_a_call_from_its_own_loop_is_an_error_and_not_a_wait_for_itself(thread: LoopThread) -> None:
    async def nested() -> int:
        return thread.run(where())

    with pytest.raises(RuntimeError, match="the test's was called from its own event loop, and would wait for itself"):
        thread.run(nested())


def test_work_may_be_submitted_from_the_loop_itself(thread: LoopThread) -> None:
    async def nested() -> int:
        return await asyncio.wrap_future(thread.submit(where()))

    assert thread.run(nested()) == thread.thread_id


def test_what_is_thrown_away_in_the_middle_of_a_call_may_make_one_too(thread: LoopThread) -> None:
    """A generator that is collected closes what it has, by a call of its own, in whatever thread that happens."""
    thread.start()
    with thread._mutex:
        thread.submit(where()).result(SOON_S)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_closing_cancels_what_is_under_way_and_sees_it_out() -> None:
    thread, begun, ended = LoopThread("ours"), threading.Event(), list[str]()
    under_way = thread.submit(kept(begun, ended))
    assert begun.wait(SOON_S)
    loop = thread.loop
    thread.close(SOON_S)
    assert ended == ["seen out"]
    assert under_way.cancelled()
    assert loop.is_closed() and not thread.is_running
    assert thread not in loop_thread._LIVING


def test_closing_waits_for_generators_and_threads() -> None:
    thread, done = LoopThread("ours"), list[str]()

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            done.append("generator")

    def work() -> None:
        time.sleep(0.1)
        done.append("thread")

    async def begin() -> Any:
        found = numbers()
        await anext(found)
        asyncio.get_running_loop().run_in_executor(None, work)
        return found

    held = thread.run(begin())
    thread.close(SOON_S)
    assert sorted(done) == ["generator", "thread"]
    del held


def test_a_task_that_fails_while_it_is_seen_out_is_told_to_the_loops_handler() -> None:
    thread, told = LoopThread("ours"), list[BaseException]()

    async def stubborn() -> None:
        try:
            await for_ever()
        finally:
            raise LookupError("at the end")

    async def begin() -> "asyncio.Task[None]":
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        return task

    thread.run(begin())
    thread.close(SOON_S)
    assert [str(error) for error in told] == ["at the end"]


def test_closing_again_or_before_it_was_started_is_nothing() -> None:
    thread = LoopThread("ours")
    thread.close(0.0)
    thread.stop(0.0)
    assert thread.run(where()) == thread.thread_id, "it was not used up"
    thread.close(SOON_S)
    thread.close(SOON_S)
    thread.stop(SOON_S)


def test_a_task_that_does_not_end_is_a_time_out_and_leaves_the_caller_alone() -> None:
    thread, over = LoopThread("ours"), threading.Event()
    under_way = thread.submit(stuck(over))
    loop = thread.loop
    with pytest.raises(TimeoutError):
        thread.close(0.1)
    assert not under_way.done()
    until_s = time.monotonic() + SOON_S
    while loop.is_running() and time.monotonic() < until_s:
        time.sleep(0.01)
    over.set()
    loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()


async def stuck(over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


USES: dict[str, Callable[[LoopThread], object]] = {
    "run": lambda thread: thread.run(where()),
    "submit": lambda thread: thread.submit(where()),
    "call": lambda thread: thread.call(threading.get_ident),
    "start": lambda thread: thread.start(),
    "loop": lambda thread: thread.loop,
}


@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("end", [LoopThread.close, LoopThread.stop])
def test_use_after_the_end_is_an_error(end: Callable[[LoopThread, float], None], use: str) -> None:
    thread = LoopThread("ours")
    thread.start()
    loop = thread.loop
    end(thread, SOON_S)
    with pytest.raises(RuntimeError, match="the event loop of ours has stopped"):
        USES[use](thread)
    loop.close()


def test_what_is_refused_is_not_a_coroutine_that_nobody_awaited(recwarn: pytest.WarningsRecorder) -> None:
    thread = LoopThread("ours")
    thread.start()
    thread.close(SOON_S)
    for use in (thread.run, thread.submit):
        refused: Callable[[Coroutine[Any, Any, int]], object] = use
        with pytest.raises(RuntimeError):
            refused(where())
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


def test_the_owner_says_in_its_own_words_what_is_wrong() -> None:
    thread = LoopThread("ours", if_stopped="too late", if_on_loop="not here")

    async def nested() -> int:
        return thread.run(where())

    with pytest.raises(RuntimeError, match="^not here$"):
        thread.run(nested())
    thread.close(SOON_S)
    with pytest.raises(RuntimeError, match="^too late$"):
        thread.run(where())


def test_stopping_leaves_what_is_under_way_where_it_is() -> None:
    thread, begun, ended = LoopThread("ours"), threading.Event(), list[str]()
    under_way = thread.submit(kept(begun, ended))
    assert begun.wait(SOON_S)
    loop = thread.loop
    thread.stop(SOON_S)
    assert not thread.is_running and not loop.is_running()
    assert ended == [] and not under_way.done()
    (task,) = asyncio.all_tasks(loop)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_a_task_that_leaves_ends_the_loop_and_nobody_waits_for_ever() -> None:
    thread = LoopThread("ours")
    waiting = thread.submit(for_ever())
    with pytest.raises(SystemExit):
        thread.run(leave(), SOON_S)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(SOON_S)
    until_s = time.monotonic() + SOON_S
    while thread.is_running and time.monotonic() < until_s:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="has stopped") as refused:
        thread.run(where())
    assert refused.value.__cause__ is thread.error
    assert isinstance(thread.error, SystemExit) and thread.error.code == 3
    thread.close(SOON_S)


def test_a_thread_that_cannot_be_started_can_be_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread = LoopThread("ours")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.run(where())
    assert not thread.is_running
    assert thread.run(where()) == thread.thread_id
    thread.close(SOON_S)


# -- forks ------------------------------------------------------------------------------------------------------------


def in_a_fork(child: Callable[[], None]) -> int:
    """The exit status of a child that does this; an alarm ends it if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(int(SOON_S))
            child()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_in_a_fork_every_use_of_the_parents_is_refused(thread: LoopThread) -> None:
    thread.start()

    def child() -> None:
        for use in USES.values():
            with pytest.raises(RuntimeError, match="the event loop of the test's was started before this process was"):
                use(thread)
        assert not thread.is_running
        thread.close(0.1)
        thread.stop(0.1)

    assert in_a_fork(child) == 0
    assert thread.run(where()) == thread.thread_id, "and the parent's goes on"


def test_a_fork_has_loops_of_its_own(thread: LoopThread) -> None:
    thread.start()
    unused = LoopThread("for whoever needs it first")

    def child() -> None:
        for own in (LoopThread("own"), unused):
            assert own.run(where()) == own.thread_id
            own.close(SOON_S)

    assert in_a_fork(child) == 0
    assert unused.run(where()) == unused.thread_id
    unused.close(SOON_S)


def test_a_fork_in_the_middle_of_a_call_of_another_thread_is_not_stuck(thread: LoopThread) -> None:
    thread.start()
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with thread._mutex:
            held.set()
            assert free.wait(SOON_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SOON_S)

    def child() -> None:
        with pytest.raises(RuntimeError, match="before this process was forked"):
            thread.run(where())

    assert in_a_fork(child) == 0
    free.set()
    holder.join(SOON_S)


def test_a_fork_touches_nothing_that_the_parent_has_under_way(thread: LoopThread) -> None:
    """What waits for a connection in the parent is neither ended nor forgotten when the child throws things away."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    begun, ended = threading.Event(), list[str]()

    async def receive() -> bytes:
        begun.set()
        try:
            return await asyncio.get_running_loop().sock_recv(ours, 10)
        finally:
            ended.append("over")

    received = thread.submit(receive())
    assert begun.wait(SOON_S)
    loop = thread.loop
    thread.call(lambda: None)

    def child() -> None:
        assert loop.is_closed(), "so whoever throws it away here leaves it alone"
        gc.collect()
        assert ended == [] and not received.done()

    assert in_a_fork(child) == 0
    theirs.send(b"hello")
    assert received.result(SOON_S) == b"hello"
    for each in (ours, theirs):
        each.close()
