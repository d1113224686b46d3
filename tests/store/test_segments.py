"""The files of the log: what is synced is read back, what is torn ends it, what is damaged is told."""

import errno
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.store.errors import LogDamaged, StoreTooNew
from spillway.store.segments import (
    FIRST_AT,
    FREE_MAX,
    GROWTH_BYTES,
    IOV_MAX,
    SECOND_BLOCK_AT,
    Files,
    SegmentLog,
    SyncFailed,
)
from tests.store.log_files import SECTOR_BYTES, FailingFiles, FlippedFiles, ImageFiles, TornFiles

TORN = FIRST_AT + 4096
SMALL = FIRST_AT + 1000  # a segment of a few frames


def records(number: int) -> bytes:
    return b"records of %d " % number * (number % 3 + 1)


def bodies(number: int) -> list[bytes]:
    return [b"body %d.%d" % (number, part) * 5 for part in range(number % 3)]


def append(log: SegmentLog, *numbers: int) -> None:
    for number in numbers:
        parts = bodies(number)
        assert log.append(records(number), parts, sum(map(len, parts))) == number


def made(path: Path, segment_bytes: int = SMALL, files: Files | None = None) -> SegmentLog:
    log = SegmentLog(path / "log", files, segment_bytes)
    log.open()
    log.make_directory()
    log.begin(0)
    return log


def read(path: Path, after: int = 0, files: FlippedFiles | None = None) -> list[tuple[int, bytes, bytes]]:
    log = SegmentLog(path / "log", files, SMALL)
    log.open()
    try:
        return [(frame.number, frame.meta, frame.bodies) for frame in log.frames(after)]
    finally:
        log.close()


def expected(*numbers: int) -> list[tuple[int, bytes, bytes]]:
    return [(number, records(number), b"".join(bodies(number))) for number in numbers]


def test_what_was_appended_is_read_back_in_order_through_all_segments(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, *range(1, 41))
    assert len(list((tmp_path / "log").iterdir())) > 5
    assert read(tmp_path) == expected(*range(1, 41))
    assert read(tmp_path, after=17) == expected(*range(18, 41))
    assert read(tmp_path, after=40) == []
    log.close()


def test_a_log_of_no_files_has_no_frames(tmp_path: Path) -> None:
    assert read(tmp_path) == []


def test_a_frame_longer_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, 1)
    body = b"x" * (GROWTH_BYTES + SMALL)
    log.append(b"long", [body], len(body))
    append(log, 3)
    assert [(number, len(whole)) for number, _, whole in read(tmp_path)][1] == (2, len(body))
    log.close()


def test_more_bodies_than_one_call_can_write_are_written(tmp_path: Path) -> None:
    log = made(tmp_path)
    parts = [b"%d" % number for number in range(2 * IOV_MAX)]
    log.append(b"many", parts, sum(map(len, parts)))
    assert read(tmp_path) == [(1, b"many", b"".join(parts))]
    log.close()


def test_released_segments_are_used_again_and_the_rest_is_bounded(tmp_path: Path) -> None:
    log = made(tmp_path)
    for number in range(1, 400):
        append(log, number)
        log.release(number - 1)
    assert len(list((tmp_path / "log").iterdir())) <= FREE_MAX + 3
    assert read(tmp_path, after=398) == expected(399)
    log.close()


def test_released_frames_of_a_former_use_are_no_frames(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, *range(1, 30))
    log.release(29)
    append(log, *range(30, 36))
    assert read(tmp_path, after=29) == expected(*range(30, 36))
    log.close()


def test_a_log_that_begins_too_late_is_damaged(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, *range(1, 30))
    log.close()
    sorted((tmp_path / "log").iterdir())[0].unlink()
    with pytest.raises(LogDamaged, match=r"begins with frame \d+, not 1.*move the files out of"):
        read(tmp_path)


def test_a_segment_that_is_missing_in_the_middle_is_damage(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, *range(1, 30))
    log.close()
    sorted((tmp_path / "log").iterdir())[2].unlink()
    with pytest.raises(LogDamaged):
        read(tmp_path)


def test_a_log_of_a_later_version_is_refused(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, 1)
    log.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spillway.store.segments.VERSION", 0)
        with pytest.raises(StoreTooNew, match="version 1"):
            read(tmp_path)


def used_bits(path: Path) -> range:
    """Of the one file, which is cut off behind them: the zeros that follow are many."""
    (file,) = (path / "log").iterdir()
    data = file.read_bytes().rstrip(b"\0")
    file.write_bytes(data + bytes(64))
    return range(len(data) * 8)


@pytest.mark.parametrize("has_witness", [True, False])
def test_no_flipped_bit_costs_more_than_bytes_of_one_body(tmp_path: Path, has_witness: bool) -> None:
    """Wherever it is: block, heads, records, tails. Bodies have checksums of their own in the records."""
    log = made(tmp_path, segment_bytes=1 << 20)
    append(log, 1, 2, 3)
    if has_witness:
        log.witness()
    log.close()
    whole = expected(1, 2, 3)
    files = FlippedFiles()
    bits = [bit for bit in used_bits(tmp_path) if bit < 60 * 8 or 2048 * 8 <= bit < 2108 * 8 or bit >= FIRST_AT * 8]
    for bit in bits:
        files.bit = bit
        found = read(tmp_path, files=files)
        heads = [(number, meta) for number, meta, _ in found]
        if has_witness:
            assert heads == [(number, meta) for number, meta, _ in whole], bit
        else:  # nothing proves that the last one was synced: it may be the torn end
            assert heads in ([(number, meta) for number, meta, _ in whole[:count]] for count in (2, 3)), bit
        differing = [
            sum(one != other for one, other in zip(mine[2], theirs[2], strict=True))
            for mine, theirs in zip(found, whole, strict=False)
        ]
        assert sum(differing) <= 1, bit
    files.bit = -1
    assert read(tmp_path, files=files) == whole


def test_both_copies_of_the_records_damaged_is_told_with_file_and_frame(tmp_path: Path) -> None:
    log = made(tmp_path, segment_bytes=1 << 20)
    append(log, 1, 2, 3)
    log.close()
    (path,) = (tmp_path / "log").iterdir()
    path.write_bytes(path.read_bytes().replace(records(2), b"x" * len(records(2))))
    with pytest.raises(LogDamaged, match=r"00000001\.seg is damaged: frame 2 at \d+: both copies of its records"):
        read(tmp_path)


def test_head_and_tail_damaged_is_told(tmp_path: Path) -> None:
    log = made(tmp_path, segment_bytes=1 << 20)
    append(log, 1, 2, 3)
    log.close()
    (path,) = (tmp_path / "log").iterdir()
    data = bytearray(path.read_bytes())
    at = data.find(records(2)) - 40
    data[at + 8] ^= 1
    end = data.find(records(2), at + 60) + len(records(2))
    data[end + 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match="frame 2 .*head and its tail"):
        read(tmp_path)


def test_a_message_cannot_contain_a_frame(tmp_path: Path) -> None:
    """Somebody sends what a segment looks like, even this very one: heads of another use have other salt."""
    log = made(tmp_path, segment_bytes=1 << 20)
    append(log, 1, 2)
    log.close()
    (path,) = (tmp_path / "log").iterdir()
    copied = path.read_bytes()[FIRST_AT : FIRST_AT + 1000]
    other = made(tmp_path / "other", segment_bytes=1 << 20)
    other.append(b"hostile", [copied], len(copied))
    other.close()
    assert read(tmp_path / "other") == [(1, b"hostile", copied)]


@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_cut_every_synced_frame_is_there_and_no_other_is_half_there(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = TornFiles()
    log = made(tmp_path, files=files)
    number = 0
    for _ in range(chance.randint(1, 25)):
        number += 1
        append(log, number)
        if chance.random() < 0.3:
            log.witness()
        if chance.random() < 0.5:
            log.release(max(log._released, number - chance.randint(0, 8)))
    # One more, cut off before its sync.
    synced = files.sync
    files.sync = lambda file: None  # type: ignore[method-assign]
    append(log, number + 1)
    files.sync = synced  # type: ignore[method-assign]
    shutil.copytree(tmp_path / "log", tmp_path / "cut" / "log")
    files.cut(tmp_path / "cut" / "log", chance)
    released = log._released
    found = read(tmp_path / "cut", after=released)
    wanted = expected(*range(released + 1, number + 1))
    assert found[: len(wanted)] == wanted
    rest = found[len(wanted) :]
    assert len(rest) <= 1 and all(frame[:2] == expected(number + 1)[0][:2] for frame in rest)
    log.close()


# -- torn in every way -------------------------------------------------------------------------------------------------


def torn_images(files: TornFiles, whole: bytes) -> Iterator[bytes]:
    """Every subset of the sectors that were not synced, then the same bytes up to any one of them."""
    ((_, unsynced),) = [each for each in files.unsynced.items() if each[1]]
    before = {at: data for at, data in unsynced.items() if data != whole[at : at + SECTOR_BYTES]}
    assert 3 <= len(before) <= 6
    for lost in itertools.product((False, True), repeat=len(before)):
        image = bytearray(whole)
        for (at, data), is_lost in zip(before.items(), lost, strict=True):
            if is_lost:
                image[at : at + SECTOR_BYTES] = data
        yield bytes(image)
    former = bytearray(whole)
    for at, data in before.items():
        former[at : at + SECTOR_BYTES] = data
    for at in range(len(whole)):
        if whole[at] != former[at]:
            yield whole[:at] + bytes(former[at:])


@pytest.mark.parametrize("stale", [0, 5])
@pytest.mark.parametrize("has_witness", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_frame_torn_at_any_byte_or_sector_is_whole_or_the_end(
    stale: int, has_witness: bool, is_first: bool, tmp_path: Path
) -> None:
    """`is_first`: of its segment, so that its block is torn too. `stale`: over frames of a former use."""
    files = TornFiles()
    log = made(tmp_path, segment_bytes=TORN, files=files)
    append(log, *range(1, stale + 1))
    log.begin(stale)
    last = stale + (0 if is_first else 2)
    append(log, *range(stale + 1, last + 1))
    if has_witness:
        log.witness()
    files.sync = lambda file: None  # type: ignore[method-assign]
    body = random.Random(1).randbytes(900)
    log.append(b"torn records", [body], len(body))
    segment = log._used[-1].path
    log.close()
    wanted = expected(*range(stale + 1, last + 1))
    seen: set[str] = set()
    for image in torn_images(files, segment.read_bytes()):
        again = SegmentLog(tmp_path / "log", ImageFiles(image), TORN)
        again.open()
        frames = list(again.frames(stale))
        again.close()
        assert [(each.number, each.meta, each.bodies) for each in frames[: len(wanted)]] == wanted
        rest = frames[len(wanted) :]
        seen.add("nothing" if not rest else "whole" if rest[0].bodies == body else "torn")
        assert len(rest) <= 1
        if rest:
            assert (rest[0].number, rest[0].meta) == (last + 1, b"torn records")
            assert not rest[0].is_proven(), "its bodies are not taken for damaged ones"
    assert seen == {"nothing", "whole", "torn"}


def test_damage_in_a_frame_that_is_folded_already_stops_nothing(tmp_path: Path) -> None:
    log = made(tmp_path, segment_bytes=1 << 20)
    append(log, 1, 2, 3, 4)
    log.close()
    (path,) = (tmp_path / "log").iterdir()
    whole = path.read_bytes()
    at = whole.find(records(2))
    for first, last in ((at - 40, at), (at - 40, whole.find(records(3)) - 44), (FIRST_AT, at)):
        path.write_bytes(whole[:first] + b"x" * (last - first) + whole[last:])
        assert read(tmp_path, after=2) == expected(3, 4)
    first, last = at - 44, whole.find(records(3))
    path.write_bytes(whole[:first] + b"x" * (last - first) + whole[last:])
    with pytest.raises(LogDamaged, match="frame 3"):  # which has no head to be found by
        read(tmp_path, after=2)


def test_a_block_of_which_one_copy_is_of_a_former_use_gives_no_number_twice(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, 1)
    path = log._used[-1].path
    former = path.read_bytes()
    log.begin(1)
    append(log, 2)
    log.close()
    for at in (0, SECOND_BLOCK_AT):
        now = bytearray(path.read_bytes())
        now[at : at + SECTOR_BYTES] = former[at : at + SECTOR_BYTES]
        (tmp_path / str(at) / "log").mkdir(parents=True)
        (tmp_path / str(at) / "log" / path.name).write_bytes(now)
        again = SegmentLog(tmp_path / str(at) / "log")
        again.open()
        assert again._last_use == 2
        again.close()


def test_a_removed_segment_that_a_cut_brings_back_hides_nothing(tmp_path: Path) -> None:
    """Uses are counted anew when the directory was empty."""
    log = made(tmp_path)
    append(log, *range(1, 20))
    former = {path: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    log.begin(19)
    log.remove()
    log = SegmentLog(tmp_path / "log", segment_bytes=SMALL)
    log.open()
    log.begin(19)
    append(log, 20, 21)
    log.close()
    for path, data in former.items():
        if not path.exists():
            path.write_bytes(data)
    assert read(tmp_path, after=19) == expected(20, 21)


def test_a_segment_whose_begin_is_damaged_twice_is_told(tmp_path: Path) -> None:
    log = made(tmp_path)
    append(log, 1)
    log.close()
    (path,) = (tmp_path / "log").iterdir()
    data = path.read_bytes()
    path.write_bytes(b"x" * FIRST_AT + data[FIRST_AT:])
    with pytest.raises(LogDamaged, match="what it begins with does not hold"):
        read(tmp_path)
    path.write_bytes(bytes(FIRST_AT) + data[FIRST_AT:])  # as a cut leaves a new file
    assert read(tmp_path) == []


# -- calls that fail ---------------------------------------------------------------------------------------------------


def calls_of(tmp_path: Path) -> list[str]:
    files = FailingFiles(0, 0)
    log = made(tmp_path / "count", files=files)
    files.calls.clear()
    play(log)
    return files.calls


def play(log: SegmentLog, may_be_full: bool = False) -> None:
    """So that segments are made, used again and removed. No space is waited for."""
    for number in range(1, 40):
        try:
            append(log, number)
            log.witness()
        except OSError as error:
            if error.errno != errno.ENOSPC or isinstance(error, SyncFailed) or not may_be_full:
                raise
            append(log, number)
        log.release(28 if number > 28 else 0)
    log.close()


def test_no_space_at_any_call_loses_nothing_and_is_gone_when_there_is_some(tmp_path: Path) -> None:
    calls = calls_of(tmp_path)
    assert set(calls) == {"open", "write", "sync", "remove", "sync directory"}
    for at, name in enumerate(calls, 1):
        if "sync" in name:
            continue
        for written in (0, 7) if name == "write" else (0,):
            path = tmp_path / f"{at}-{written}"
            files = FailingFiles(0, errno.ENOSPC, written=written)
            log = made(path, files=files)
            files.at = len(files.calls) + at
            play(log, may_be_full=True)
            assert read(path, after=28) == expected(*range(29, 40)), (at, name)
            shutil.rmtree(path)


@pytest.mark.parametrize("name", ["open", "write", "sync", "remove", "sync directory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_another_failure_is_raised_wherever_it_is_and_what_was_synced_before_is_there(
    tmp_path: Path, name: str, error: int
) -> None:
    """No space for a sync is one: what it was to write may be dropped, and a second one would not say so."""
    if error == errno.ENOSPC and "sync" not in name:
        return
    calls = calls_of(tmp_path)
    for at in [at for at, call in enumerate(calls, 1) if call == name]:
        path = tmp_path / str(at)
        files = FailingFiles(0, error)
        log = made(path, files=files)
        files.at = len(files.calls) + at
        with pytest.raises(OSError) as raised:
            play(log, may_be_full=True)
        assert raised.value.errno == error and isinstance(raised.value, SyncFailed) == ("sync" in name)
        assert len(files.calls) == files.at, "nothing more was done"
        done = log.last_number
        released = log._released
        log.close()
        found = read(path, after=released)
        assert found[: done - released] == expected(*range(released + 1, done + 1))
        assert len(found) <= done - released + 1
        shutil.rmtree(path)
