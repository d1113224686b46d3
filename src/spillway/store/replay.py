"""What the log has and the file has not is put into the file: at a start, for a check, and to do without a log."""

import logging
from pathlib import Path
from typing import Final

from spillway.model.records import Turn
from spillway.store.database import Database
from spillway.store.errors import LogDamaged
from spillway.store.rows import DamagedAdded, DamagedRow
from spillway.store.segments import LogFrame, SegmentLog
from spillway.store.turn_codec import CodecError, TurnReader

log = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
BATCH_BYTES: Final = 16 * 1024 * 1024  # that are put into the file at a time


def log_directory(path: Path) -> Path:
    """Where the log of the journal at `path` is."""
    return path.with_suffix(LOG_SUFFIX)


class LogReplay:
    """Puts frames into the file, in order. `is_kept`: in transactions of its own; else in one that the caller ends."""

    def __init__(self, database: Database, segments: SegmentLog, is_kept: bool = True) -> None:
        self.frames_count = 0
        self.seals_before = 0
        self._database = database
        self._segments = segments
        self._is_kept = is_kept
        self._batch = database.new_batch()
        self._batch_bytes = 0
        self._damaged: list[DamagedRow] = []

    def run(self) -> None:
        database = self._database
        segments = self._segments
        if database.is_logged and not segments.directory.is_dir():
            raise LogDamaged(segments.directory, "it is missing, and with it what was acknowledged last")
        if segments.is_empty:
            return
        try:
            self._put_frames(database)
        except BaseException:
            if self._is_kept:
                database.roll_back()
            raise

    def _put_frames(self, database: Database) -> None:
        if self._is_kept:
            database.begin()
        upto = database.folded_upto
        for frame in self._segments.frames(upto):
            turns = self._turns_of(frame)
            if turns is None:
                break
            for turn in turns:
                self._batch.add(turn)
                self._batch_bytes += turn.size_bytes
                self.seals_before = max(self.seals_before, turn.seals_before)
            upto = frame.number
            self.frames_count += 1
            if self._batch_bytes >= BATCH_BYTES:
                self._write(upto)
                if self._is_kept:
                    database.commit()
                    database.begin()
        self._write(upto)
        if self._is_kept:
            database.commit()

    def _turns_of(self, frame: LogFrame) -> list[Turn] | None:
        """None: the frame is the torn end of the log; nobody was told that it is there."""
        reader = TurnReader(frame.meta, frame.bodies)
        try:
            turns = reader.read()
        except CodecError as error:
            text = f"frame {frame.number} has what this version does not understand: {error}"
            raise LogDamaged(self._segments.directory, text) from error
        if reader.damaged and not frame.is_proven():
            return None
        if reader.damaged:
            for turn in turns:
                for group in turn.groups:
                    for record in group:
                        if isinstance(record, DamagedAdded):
                            self._damaged.append(record.row)
        return turns

    def _write(self, upto: int) -> None:
        if not self._batch.is_empty:
            self._database.write(self._batch)
        for row in self._damaged:  # now that the file knows the entities that they are of
            self._database.note_damage(row)
        self._damaged.clear()
        self._database.put_folded(upto, self._database.is_logged)
        self._batch = self._database.new_batch()
        self._batch_bytes = 0
