"""A watch: finds the backlog queues, also later ones, and ends in order."""

import asyncio
from collections import Counter

import pytest

from spillway.syphon import watching
from spillway.syphon.depths import Backlogs
from spillway.syphon.openers import opener_of_string
from spillway.syphon.outcomes import KEPT, MOVED, OutcomeCount
from spillway.syphon.watching import SyphonWatch, WatchOptions
from tests.paired.namespaces import Namespaces, eventually
from tests.syphon.backlogs import Backlog
from tests.syphon.test_contract import filled, made, until_at_home


class Listener:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.said: list[str] = []

    def told(self, count: OutcomeCount) -> None:
        self.counts[count.outcome] += count.messages


def watch_of(namespaces: Namespaces, name: str, listener: Listener, secondary: str = "") -> SyphonWatch:
    home = opener_of_string(namespaces.primary.connection_string)
    text = secondary or namespaces.secondary.connection_string
    away = opener_of_string(text)
    backlogs = Backlogs(text, "", name, 3, away)
    return SyphonWatch(home, away, backlogs, WatchOptions(long_poll_s=30.0), listener.told, listener.said.append)


@pytest.mark.parametrize("rule", ["", "listens"])
async def test_backlog_queues_that_are_made_later_are_found(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """With the right Manage by listing them, without it by trying to attach."""
    monkeypatch.setattr(watching, "LOOK_AGAIN_S", 0.2)
    listener = Listener()
    backlog = await made(namespaces)
    watch = watch_of(namespaces, backlog.name, listener, namespaces.secondary_with(rule) if rule else "")
    running = asyncio.create_task(watch.run())
    await eventually(lambda: watch.syphon is not None)
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(f"{backlog.name}/x-servicebus-transfer/1")
    both = Backlog.__new__(Backlog)
    both.namespaces, both.paths = namespaces, [f"{backlog.name}/x-servicebus-transfer/{index}" for index in (0, 1)]
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, both, queue, 10)
    await until_at_home(namespaces, queue, ids, 30.0)
    watch.stop()
    done = await asyncio.wait_for(running, 10.0)
    assert (done.moved, done.kept, done.queues) == (10, 0, 3 if rule else 2)
    assert listener.counts[MOVED] == 10


async def test_what_is_kept_is_counted_as_it_is_at_the_end(namespaces: Namespaces) -> None:
    listener = Listener()
    backlog = await made(namespaces, queues=2)
    watch = watch_of(namespaces, backlog.name, listener)
    running = asyncio.create_task(watch.run())
    nowhere = f"nowhere-{backlog.name}"
    await asyncio.to_thread(filled, backlog, nowhere, 4, "first")
    await eventually(lambda: listener.counts[KEPT] >= 2)
    await asyncio.to_thread(filled, backlog, nowhere, 20, "more")
    await eventually(lambda: watch.syphon is not None and sum(watch.syphon.held_counts().values()) == 24)
    watch.stop()
    done = await asyncio.wait_for(running, 10.0)
    assert (done.moved, done.kept) == (0, 24)
    assert {line["destination"] for line in done.lines} == {nowhere}


async def test_a_listener_that_has_gone_ends_the_run_in_order(namespaces: Namespaces) -> None:
    class Gone(Listener):
        def told(self, count: OutcomeCount) -> None:
            raise BrokenPipeError("nobody reads this")

    backlog = await made(namespaces)
    queue = backlog.destination()
    ids = await asyncio.to_thread(filled, backlog, queue, 5)
    watch = watch_of(namespaces, backlog.name, Gone())
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(watch.run(), 30.0)
    await until_at_home(namespaces, queue, ids)
    assert watch.syphon is not None and all(task.done() for task in watch.syphon.tasks)
