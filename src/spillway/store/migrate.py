"""The way back: a store with a log becomes one that versions without a log can read."""

from pathlib import Path
from typing import Final

from spillway.store.carry_over import BEFORE_LOG, carry_back
from spillway.store.database import Database
from spillway.store.errors import explain
from spillway.store.replay import LogReplay, log_directory
from spillway.store.segments import SegmentLog


def to_sqlite(path: Path) -> int:
    """Nobody has it open. What the log has goes into the file, then the log goes. How many frames there were.

    Every step is whole or not there: after a crash in between it may be done again, or the broker started.
    """
    database = Database(path)
    segments = SegmentLog(log_directory(path))
    try:
        database.catalogue()
        segments.open()
        was_interrupted = database.is_logged or not segments.is_empty
        replay = LogReplay(database, segments)
        replay.run()
        catalogue = database.catalogue()
        database.begin()
        if was_interrupted:
            database.skip_numbers(catalogue)
        database.put_folded(database.folded_upto, False)
        database.commit()
        segments.remove()
        carry_back(database.connection)
        database.close()
    except Exception as error:
        segments.close()
        database.abandon()
        explained = explain(error, path)
        if explained is error:
            raise
        raise explained from error
    if log_directory(path).is_dir():
        log_directory(path).rmdir()
    return replay.frames_count


FORMAT_AFTER: Final = BEFORE_LOG
