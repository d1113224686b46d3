"""The files of the log: frames behind one another, in segments that are used again and again.

A segment begins with a block that says which use of the file this is, with salt of its own, and which frame is its
first. Then come frames, numbered without gaps through all segments:

    head · records · bodies · records once more · tail          the tail is the head once more

Every frame is synced before the next is written. So whatever follows a frame, a later one, a later segment or a
*witness* (a head without a frame, written behind the last one when there is nothing else to write), proves that the
frame was synced. A frame that is not whole is the torn end of a crash where nothing proves that, and damage where
something does. All that is needed to find the bytes of messages and to name them is there twice: one damaged place
costs at most one message, and that is told by entity and number.

Heads begin with salt of their segment, and end with a checksum over all of it: no message can contain bytes that are
taken for one. Files grow by zeros in pieces, before frames are written into them, and are used again as they are: a
sync has no metadata to write then.
"""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from spillway.store.directory import make_directory, sync_directory
from spillway.store.errors import LogDamaged, StoreError, StoreReadFailed, StoreTooNew
from spillway.store.own_files import NotOurFile, open_own

VERSION: Final = 1
SEGMENT_BYTES: Final = 16 * 1024 * 1024
GROWTH_BYTES: Final = 1024 * 1024
FIRST_AT: Final = 4096  # of the first frame
SECOND_BLOCK_AT: Final = 2048  # the first block has what it says twice
FREE_MAX: Final = 4  # segments that wait to be used again; more are removed
IOV_MAX: Final = 1000
READ_BYTES: Final = 1 << 24
ALIGNED_BYTES: Final = 8
SUFFIX: Final = ".seg"

_BLOCK: Final = struct.Struct("<8sIQQ16sI")  # magic, version, use, first frame, salt, checksum
_BLOCK_MAGIC: Final = b"SpWyLog\n"
_HEAD: Final = struct.Struct("<4sIQQIIII")  # mark, kind, number, use, sizes of records and bodies, checksums of both
_MARK_BYTES: Final = 4  # of the salt
_FRAME: Final = 1
_TAIL: Final = 2
_WITNESS: Final = 3


class Files(Protocol):
    """The calls that reach the disk. Tests have others, which fail, tear and forget."""

    def open(self, path: Path) -> int: ...
    def read(self, file: int, size: int) -> bytes: ...
    def write(self, file: int, buffers: list[bytes], at: int) -> int: ...
    def sync(self, file: int) -> None: ...
    def remove(self, path: Path) -> None: ...
    def make_directory(self, path: Path) -> None: ...
    def sync_directory(self, path: Path) -> None: ...


class SystemFiles:
    """The operating system's."""

    def open(self, path: Path) -> int:
        return open_own(path, os.O_RDWR | os.O_CREAT)

    def read(self, file: int, size: int) -> bytes:
        """So much of its beginning, or all there is."""
        pieces: list[bytes] = []
        at = 0
        while at < size and (piece := os.pread(file, min(READ_BYTES, size - at), at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def write(self, file: int, buffers: list[bytes], at: int) -> int:
        return os.pwritev(file, buffers, at)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        make_directory(path)

    def sync_directory(self, path: Path) -> None:
        sync_directory(path)


class SyncFailed(OSError):
    """A failed sync, of a file or a directory. Never tried again, also where it says that there was no space: what was
    written before it may be dropped, and not all of that would be written again."""


class Segment:
    """One file. `use` rises with every use of any file; 0: nothing in it counts."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self.file = file
        self.use = 0
        self.first = 0  # the number of its first frame
        self.last = 0  # and of its last, once it is full
        self.salt = b""
        self.size_bytes = os.fstat(file).st_size


class Head:
    """A head, tail or witness, as it was read."""

    def __init__(self, kind: int, number: int, meta_bytes: int, bodies_bytes: int, meta_checksum: int) -> None:
        self.kind = kind
        self.number = number
        self.meta_bytes = meta_bytes
        self.bodies_bytes = bodies_bytes
        self.meta_checksum = meta_checksum

    @property
    def frame_bytes(self) -> int:
        return frame_bytes(self.meta_bytes, self.bodies_bytes)


class LogFrame:
    """The content of one frame. Its records hold; whether its bodies do, their own checksums say."""

    def __init__(self, number: int, meta: bytes, bodies: bytes, reader: "_SegmentReader", at: int) -> None:
        self.number = number
        self.meta = meta
        self.bodies = bodies
        self.at = at
        self._reader = reader

    def is_proven(self) -> bool:
        """Whether it was synced. A body that does not hold is damage then; else the frame is the torn end."""
        return self._reader.is_proven(self)


def frame_bytes(meta_bytes: int, bodies_bytes: int) -> int:
    size = 2 * _HEAD.size + 2 * meta_bytes + bodies_bytes
    return size + -size % ALIGNED_BYTES


class SegmentLog:
    """The log of one journal. Used by one thread, but for `release`, which any thread may call."""

    def __init__(self, directory: Path, files: Files | None = None, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.growth_bytes = min(GROWTH_BYTES, segment_bytes)
        self.last_number = 0  # of the last frame
        self._files = SystemFiles() if files is None else files
        self._used: list[Segment] = []  # in the order of use
        self._free: list[Segment] = []
        self._at = 0
        self._has_witness = True  # of the last frame; as if, while there is none
        self._last_use = 0
        self._released = 0
        self._names = 0

    # -- opening and reading -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the segments that are there. Nothing is written."""
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            segment = self._open(path)
            self._free.append(segment)  # and closed with the others, whatever is found in it
            self._names = max(self._names, int(path.stem) if path.stem.isdigit() else 0)
            _read_block(segment, self._read(segment, FIRST_AT + _HEAD.size))
            self._last_use = max(self._last_use, segment.use)
        self._used = sorted((segment for segment in self._free if segment.use), key=_order_of)
        self._free = [segment for segment in self._free if not segment.use]

    def _open(self, path: Path) -> Segment:
        try:
            return Segment(path, self._files.open(path))
        except NotOurFile as error:
            raise StoreError(f"{error.filename} {error.strerror}") from error
        except OSError as error:
            raise StoreReadFailed(path, str(error)) from error

    def _read(self, segment: Segment, size: int) -> bytes:
        try:
            return self._files.read(segment.file, size)
        except OSError as error:
            raise StoreReadFailed(segment.path, str(error)) from error

    @property
    def is_empty(self) -> bool:
        return not self._used

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._used + self._free)

    def frames(self, after: int) -> Iterator[LogFrame]:
        """Frames behind the one with this number, in order, up to the end of the log."""
        expected = after + 1
        segments = self._used
        begin = 0
        for index, segment in enumerate(segments):
            if segment.first <= expected:
                begin = index
        if segments and segments[begin].first > expected:
            raise LogDamaged(self.directory, f"the log begins with frame {segments[begin].first}, not {expected}")
        number = segments[begin].first if segments else expected
        for index in range(begin, len(segments)):
            data = self._read(segments[index], segments[index].size_bytes)
            reader = _SegmentReader(segments[index], segments[index + 1 :], data)
            yield from reader.frames(number, expected)
            number = reader.number

    # -- writing -----------------------------------------------------------------------------------------------------

    def make_directory(self) -> None:
        """Make the directory, and sync names: a kill may have come between making a file and syncing its name."""
        self._files.make_directory(self.directory)
        self._files.sync_directory(self.directory.parent)
        if self._used or self._free:
            self._files.sync_directory(self.directory)

    def begin(self, last_number: int) -> None:
        """Everything is folded: all segments are free, and the next frame has the next number."""
        self._free += self._used
        self._used = []
        self.last_number = self._released = last_number

    def append(self, meta: bytes, bodies: list[bytes], bodies_bytes: int) -> int:
        """Write one frame and sync it: when this returns it survives a power cut. Its number.

        After OSError(ENOSPC) the same frame may be appended again; after `SyncFailed` and any other nothing may.
        """
        size = frame_bytes(len(meta), bodies_bytes)
        if not self._used or (self._at + size > self.segment_bytes and self._at > FIRST_AT):
            self._next_segment()
        segment = self._used[-1]
        number = self.last_number + 1
        sizes = (len(meta), bodies_bytes, crc32(meta))
        head = _pack_head(segment, _FRAME, number, *sizes)
        tail = _pack_head(segment, _TAIL, number, *sizes)
        buffers = [head, meta, *bodies] if len(bodies) < IOV_MAX - 4 else [head, meta, b"".join(bodies)]
        buffers += [meta, tail + bytes(-(2 * _HEAD.size + 2 * len(meta) + bodies_bytes) % ALIGNED_BYTES)]
        self._grow(segment, self._at + size + _HEAD.size)
        self._write(segment.file, buffers, size, self._at)
        try:
            self._files.sync(segment.file)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
        self._at += size
        self._has_witness = False
        self.last_number = segment.last = number
        return number

    def witness(self) -> None:
        """The last frame is synced, says who has nothing else to write. Not synced itself: a kill leaves it there.

        Nobody waits for it: where a file system has no space for what is written over, there is none this time.
        """
        if self._used and not self._has_witness:
            segment = self._used[-1]
            head = _pack_head(segment, _WITNESS, self.last_number + 1, 0, 0, 0)
            try:
                self._write(segment.file, [head], len(head), self._at)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            self._has_witness = True

    def release(self, upto: int) -> None:
        """Frames up to this one are in SQLite, synced: their segments may be used again. Called from any thread."""
        self._released = upto

    def _next_segment(self) -> None:
        """The next segment begins; of what has been released the longest ago, or a new one."""
        while self._used and self._used[0].last <= self._released:
            self._free.append(self._used.pop(0))
        while len(self._free) > FREE_MAX:
            extra = self._free.pop()
            os.close(extra.file)
            self._files.remove(extra.path)
        segment = self._free.pop(0) if self._free else self._make()
        use = self._last_use + 1
        salt = os.urandom(16)
        fields = _BLOCK.pack(_BLOCK_MAGIC, VERSION, use, self.last_number + 1, salt, 0)[:-4]
        block = (fields + struct.pack("<I", crc32(fields))).ljust(SECOND_BLOCK_AT, b"\0") * 2
        try:
            self._grow(segment, FIRST_AT + self.growth_bytes)
            self._write(segment.file, [block], len(block), 0)
        except OSError:
            segment.use = 0  # whatever is in it, no frame of this log is
            self._free.insert(0, segment)
            raise
        segment.use = use
        segment.salt = salt
        segment.first = self.last_number + 1
        segment.last = self.last_number
        self._last_use = use
        self._used.append(segment)
        self._at = FIRST_AT

    def _make(self) -> Segment:
        path = self.directory / f"{self._names + 1:08d}{SUFFIX}"
        segment = Segment(path, self._files.open(path))
        self._names += 1
        try:
            self._files.sync_directory(self.directory)
        except OSError as error:
            os.close(segment.file)
            raise SyncFailed(error.errno, error.strerror) from error
        return segment

    def _grow(self, segment: Segment, size_bytes: int) -> None:
        """Zeros up to there and some way further; synced with the next frame."""
        while segment.size_bytes < size_bytes:
            self._write(segment.file, [bytes(self.growth_bytes)], self.growth_bytes, segment.size_bytes)
            segment.size_bytes += self.growth_bytes

    def _write(self, file: int, buffers: list[bytes], size: int, at: int) -> None:
        written = self._files.write(file, buffers, at)
        if written == size:
            return
        rest = b"".join(buffers)
        while written < size:
            more = self._files.write(file, [rest[written:]], at + written)
            if more <= 0:
                raise OSError(errno.ENOSPC, "nothing more could be written")
            written += more

    # -- ending ------------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Everything is folded and the file alone holds it: no segment is needed any more."""
        segments = self._used + self._free
        self.close()
        for segment in segments:
            self._files.remove(segment.path)
        if segments:
            self._files.sync_directory(self.directory)

    def close(self) -> None:
        for segment in self._used + self._free:
            os.close(segment.file)
        self._used = []
        self._free = []


class _SegmentReader:
    """Reads one segment. `later` are those used after it."""

    def __init__(self, segment: Segment, later: list[Segment], data: bytes) -> None:
        self._segment = segment
        self._next_first = later[0].first if later else 0  # the number of the frame that the next segment begins with
        self._data = data
        self._mark = segment.salt[:_MARK_BYTES]
        self.number = 0  # of the frame that follows those that were read

    def frames(self, number: int, needed: int) -> Iterator[LogFrame]:
        """Those from `needed` on; it begins with `number`. Those before are folded, and nobody asks whether they hold.

        A cut may even have come while they were written over and the block in front of them was still the former one.
        """
        at = FIRST_AT
        while True:
            self.number = number
            head = self._head_at(at, number)
            if number < needed:
                if head is not None and head.kind == _FRAME:
                    at, number = at + head.frame_bytes, number + 1
                    continue
                place = self._next_head(at, number, needed)
                if place is None:
                    self.number = needed
                    return
                at, number = place
                continue
            if head is None and self._next_first != number:
                head = self._head_by_its_tail(at, number)
            if head is None or head.kind == _WITNESS:
                return
            frame = self._frame(at, head)
            if frame is None:
                return
            yield frame
            number += 1
            at += head.frame_bytes

    def _head_at(self, at: int, number: int) -> Head | None:
        """A frame's head with this number, or the witness that stands in its place."""
        head = self._any_head(at)
        return head if head is not None and head.number == number and head.kind in (_FRAME, _WITNESS) else None

    def _next_head(self, at: int, number: int, needed: int) -> tuple[int, int] | None:
        """Where the next frame begins, and its number. None: there is none that is needed."""
        found = at
        while (found := self._data.find(self._mark, found + 1)) >= 0:
            head = self._any_head(found)
            if head is not None and head.number > needed:
                raise self._damaged(found, needed, "it is not there, and later ones are")
            if head is not None and head.kind in (_FRAME, _WITNESS) and head.number > number:
                return found, head.number
        if self._next_first > needed:
            raise self._damaged(at, needed, "it is not there, and later ones are")
        return None

    def _any_head(self, at: int) -> Head | None:
        if at < 0 or at + _HEAD.size > len(self._data):
            return None
        packed = self._data[at : at + _HEAD.size]
        mark, kind, number, use, meta_bytes, bodies_bytes, meta_checksum, checksum = _HEAD.unpack(packed)
        if mark != self._mark or use != self._segment.use or checksum != crc32(packed[:-4] + self._segment.salt):
            return None
        return Head(kind, number, meta_bytes, bodies_bytes, meta_checksum)

    def _head_by_its_tail(self, at: int, number: int) -> Head | None:
        """A frame has no head that holds. None: nothing proves that it was ever there. Else its tail says the same."""
        proof = self._proof_behind(at, number)
        if proof is None:
            return None
        tail = self._tail_before(at, number, proof)
        if tail is None:
            raise self._damaged(at, number, "its head and its tail do not hold")
        return tail

    def _tail_before(self, at: int, number: int, proof: int) -> Head | None:
        """The tail of the frame that begins at `at`; it lies before the place that `proof` is at."""
        found = at
        while True:
            found = self._data.find(self._mark, found + 1, proof)
            if found < 0:
                return None
            head = self._any_head(found)
            if head is not None and head.kind == _TAIL and head.number == number:
                is_its_own = found == at + _HEAD.size + 2 * head.meta_bytes + head.bodies_bytes
                return head if is_its_own else None

    def _proof_behind(self, at: int, number: int) -> int | None:
        """Where something shows that the frame with this number was synced; None if nothing does."""
        found = at
        while True:
            found = self._data.find(self._mark, found + 1)
            if found < 0:
                break
            head = self._any_head(found)
            if head is not None and head.number > number:
                return found
        return len(self._data) if self._next_first > number else None

    def _frame(self, at: int, head: Head) -> LogFrame | None:
        """None: it is the torn end."""
        meta_at = at + _HEAD.size
        bodies_at = meta_at + head.meta_bytes
        again_at = bodies_at + head.bodies_bytes
        data = self._data
        bodies = data[bodies_at:again_at]
        for place in (meta_at, again_at):
            meta = data[place : place + head.meta_bytes]
            if len(meta) == head.meta_bytes and crc32(meta) == head.meta_checksum:
                break
        else:
            if self._proof_behind(at, head.number) is None:
                return None
            raise self._damaged(at, head.number, "both copies of its records are damaged")
        return LogFrame(head.number, meta, bodies, self, at)

    def is_proven(self, frame: LogFrame) -> bool:
        return self._proof_behind(frame.at, frame.number) is not None

    def _damaged(self, at: int, number: int, detail: str) -> LogDamaged:
        return LogDamaged(self._segment.path, f"frame {number} at {at}: {detail}")


def _order_of(segment: Segment) -> tuple[int, int]:
    """Uses are counted anew in an empty directory, and a cut can bring a removed file back: frames are not."""
    return segment.first, segment.use


def _pack_head(segment: Segment, kind: int, number: int, meta_bytes: int, bodies_bytes: int, checksum: int) -> bytes:
    packed = _HEAD.pack(segment.salt[:_MARK_BYTES], kind, number, segment.use, meta_bytes, bodies_bytes, checksum, 0)[
        :-4
    ]
    return packed + struct.pack("<I", crc32(packed + segment.salt))


def _read_block(segment: Segment, begin: bytes) -> None:
    """Both copies are of one use, but where a cut came between them: the later one counts, for its number was given."""
    for at in (0, SECOND_BLOCK_AT):
        packed = begin[at : at + _BLOCK.size]
        if len(packed) < _BLOCK.size:
            return
        magic, version, use, first, salt, checksum = _BLOCK.unpack(packed)
        if magic == _BLOCK_MAGIC and crc32(packed[:-4]) == checksum:
            if version > VERSION:
                raise StoreTooNew(
                    f"{segment.path} is a log of version {version}, this version of Spillway reads up to {VERSION}: "
                    f"use the version that wrote it, or a later one"
                )
            if use > segment.use:
                segment.use, segment.first, segment.salt = use, first, salt
    if not segment.use and any(begin[:FIRST_AT]) and any(begin[FIRST_AT:]):
        raise LogDamaged(segment.path, "what it begins with does not hold, and there are frames behind it")
