"""Every call of the log and of its fold fails, finds no space, or is the last before the power goes.

The calls of a scripted run are counted, so that a new one is among them by itself.
"""

import copy
import errno
import random
import shutil
from pathlib import Path

import pytest

from spillway.store.check import check
from spillway.store.errors import LogDamaged, StoreError, StoreReadFailed
from spillway.store.sqlite import SqliteJournal
from tests.store.by_hand import ByHand, State, Story, found_in
from tests.store.crash_disk import IGNORED, CrashDisk

STEPS = 30
LIVES = 2
SEEDS = 4


class Cut:
    """A copy of the disk as a power cut left it, with how many turns were told and submitted by then."""

    def __init__(self, path: Path, told: int, submitted: int, call: str) -> None:
        self.path = path
        self.told = told
        self.submitted = submitted
        self.call = call


def made(root: Path) -> CrashDisk:
    """A disk with an empty store."""
    root.mkdir()
    journal = SqliteJournal(root / "journal.db")
    journal.recover()
    journal.close()
    return CrashDisk(root)


def cuts_of_a_life(disk: CrashDisk, story: Story, to: Path, chance: random.Random) -> list[Cut]:
    cuts: list[Cut] = []

    def before_call() -> None:
        if chance.randrange(SEEDS):
            return  # another one does it
        name = f"{len(disk.calls)} {disk.calls[-1] if disk.calls else 'nothing'}"
        cut = Cut(to / f"cut-{len(cuts)}", story.told, story.submitted, f"after call {name}")
        disk.cut(cut.path, chance)
        cuts.append(cut)

    disk.before_call = before_call
    hand = ByHand(disk, story)
    hand.recover()
    story.tell(hand, STEPS)
    hand.close()
    assert hand.failures == []
    return cuts


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_cut_between_any_two_calls_leaves_what_was_told_and_nothing_that_was_removed(
    seed: int, tmp_path: Path
) -> None:
    """And again in the life after it, its recovery included, on what the first cut left: stale frames, torn files."""
    chance = random.Random(seed)
    story = Story(seed)
    disk = made(tmp_path / "disk")
    for life in range(LIVES):
        to = tmp_path / f"life-{life}"
        to.mkdir()
        cuts = cuts_of_a_life(disk, story, to, chance)
        survivor = chance.randrange(len(cuts))
        for number, cut in enumerate(cuts):
            kept = to / "kept"
            if number == survivor:
                shutil.copytree(cut.path, kept)
            if number % 10 == 0:
                assert check(cut.path / "journal.db") == [], cut.call
            found = found_in(cut.path / "journal.db")
            assert found in story.states[cut.told : cut.submitted + 1], (life, cut.call)
            if number == survivor:
                state: State = found
            shutil.rmtree(cut.path)
        story.goes_on_from(state)
        disk = CrashDisk(to / "kept")


def test_a_file_whose_name_a_kill_left_unsynced_is_used_only_when_it_is_synced(tmp_path: Path) -> None:
    for seed in range(10):
        disk = made(tmp_path / f"disk-{seed}")
        story = Story(seed)
        first = ByHand(disk, story)
        first.recover()
        disk.fail_at, disk.error = len(disk.calls) + 2, errno.EIO
        story.tell(first, 1)
        assert disk.calls[-2:] == ["open", "sync directory"] and len(first.failures) == 1
        first.journal.close()
        story.goes_on_from(story.states[0])
        second = ByHand(disk, story)  # the power was never gone: what was not synced is not
        second.recover()
        story.tell(second, 1)
        disk.cut(tmp_path / f"cut-{seed}", random.Random(seed))
        assert story.told > 0
        assert found_in(tmp_path / f"cut-{seed}" / "journal.db") in story.states[story.told :]
        second.close()


def test_a_disk_that_says_synced_and_is_not_is_found_out(tmp_path: Path) -> None:
    """The negative control."""
    disk = made(tmp_path / "disk")
    disk.files.sync = lambda file: None  # type: ignore[method-assign]
    story = Story(1)
    (tmp_path / "cuts").mkdir()
    cuts = cuts_of_a_life(disk, story, tmp_path / "cuts", random.Random(1))
    lost = damaged = 0
    for cut in cuts[:40]:
        try:
            lost += found_in(cut.path / "journal.db") not in story.states[cut.told : cut.submitted + 1]
        except LogDamaged:
            damaged += 1
    assert lost and damaged


# -- calls that fail --------------------------------------------------------------------------------------------------


class Run:
    """One run of a script with a call that fails: on a disk of its own, to its end or as far as it comes."""

    def __init__(self, begun: "Begun", root: Path, fail_at: int = 0, error: int = 0) -> None:
        shutil.copytree(begun.root, root)
        self.disk = CrashDisk(root, fail_at, error)
        self.story = copy.deepcopy(begun.story)
        self.refused: BaseException | None = None  # at the start
        hand = self.hand = ByHand(self.disk, self.story)
        try:
            hand.recover()
        except Exception as error_at_start:
            self.refused = error_at_start
            hand.journal.close()
            return
        self.story.tell(hand, 14)
        try:
            hand.close()
        except StoreError as error_at_end:
            assert hand.failures == [], "close does not say again what was told"
            hand.failures.append(error_at_end)

    @property
    def calls_after(self) -> list[str]:
        return self.disk.calls[self.disk.fail_at :]

    def assert_kept(self, call: str, chance: random.Random) -> None:
        """All that was told is there, for the next process or after a power cut."""
        root = self.disk.root
        if chance.random() < 0.8:
            root = root.with_name(f"{root.name}-cut")
            self.disk.cut(root, chance)
        found = found_in(root / "journal.db")
        assert found in self.story.states[self.story.told : self.story.submitted + 1], (call, root.name)
        shutil.rmtree(self.disk.root)


class Begun:
    """A store that was killed with something in its log, so that a start has something to do."""

    def __init__(self, path: Path) -> None:
        self.root = path / "begun"
        self.story = Story(7)
        disk = made(path / "first")
        hand = ByHand(disk, self.story)
        hand.recover()
        self.story.tell(hand, 6)
        shutil.copytree(disk.root, self.root, ignore=shutil.ignore_patterns(*IGNORED))
        hand.close()


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    return Begun(tmp_path)


def calls_of(begun: Begun, root: Path) -> list[str]:
    run = Run(begun, root)
    assert run.refused is None and run.hand.failures == []
    assert run.story.told == run.story.submitted
    shutil.rmtree(root)
    return run.disk.calls


def last_of_the_fold(calls: list[str]) -> int:
    """The number of the call after which the file has everything."""
    return max(at for at, name in enumerate(calls, 1) if name.startswith("fold"))


def test_a_call_that_fails_ends_the_journal_is_not_tried_again_and_nothing_that_was_told_is_lost(
    begun: Begun, tmp_path: Path
) -> None:
    chance = random.Random(1)
    calls = calls_of(begun, tmp_path / "count")
    begins_to_remove = last_of_the_fold(calls)
    for at, name in enumerate(calls, 1):
        run = Run(begun, tmp_path / str(at), at, errno.EIO)
        call = f"{at} {name}"
        if run.refused is not None:
            assert isinstance(run.refused, StoreReadFailed if name == "read" else StoreError), (call, run.refused)
        elif at > begins_to_remove:
            assert run.hand.failures == [], call  # the file has everything, and that is all it takes
        else:
            assert [isinstance(error, StoreError) for error in run.hand.failures] == [True], (call, run.hand.failures)
            mine = "fold" if name.startswith("fold") else ("write", "sync")
            assert [each for each in run.calls_after if each.startswith(mine)] == [], call
        run.assert_kept(call, chance)


def test_a_call_that_finds_no_space_is_done_when_there_is_some_and_a_sync_never_is(
    begun: Begun, tmp_path: Path
) -> None:
    chance = random.Random(2)
    calls = calls_of(begun, tmp_path / "count")
    begins_to_remove = last_of_the_fold(calls)
    for at, name in enumerate(calls, 1):
        if name in ("read", "fold: truncate"):
            continue  # need none
        run = Run(begun, tmp_path / str(at), at, errno.ENOSPC)
        call = f"{at} {name}"
        if run.refused is not None:
            assert isinstance(run.refused, StoreError), (call, run.refused)
        elif "sync" in name and at <= begins_to_remove:
            assert len(run.hand.failures) == 1, call
            assert "sync" not in run.calls_after, call
        else:
            assert run.hand.failures == [], call
            assert run.story.told == run.story.submitted, call
        run.assert_kept(call, chance)
