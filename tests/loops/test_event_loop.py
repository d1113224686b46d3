"""A loop that a fork can leave alone, and that is like any other until then."""

import asyncio
import socket

from spillway.loops.event_loop import ForkableLoop, new_loop


def test_it_is_a_loop_like_any_other() -> None:
    loop = new_loop()
    assert isinstance(loop, ForkableLoop)
    assert loop.run_until_complete(asyncio.sleep(0, "slept")) == "slept"
    assert not loop.is_closed()
    loop.close()
    assert loop.is_closed()


def test_one_that_was_abandoned_is_closed_for_whoever_throws_it_away() -> None:
    loop = ForkableLoop()
    ours, theirs = socket.socketpair()
    loop.add_reader(ours, lambda: None)
    loop.abandon()
    assert loop.is_closed()
    loop.close()  # does nothing, and does not fail
    for each in (ours, theirs, loop._ssock, loop._csock):  # type: ignore[attr-defined]
        each.close()
