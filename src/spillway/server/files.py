"""Small files of the data directory that are written whole or not at all."""

import contextlib
import os
from pathlib import Path
from typing import Final

from spillway.store.directory import sync_directory

PRIVATE: Final = 0o600
READABLE: Final = 0o644


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """Replace the file in one step that survives a power cut, with its mode from the first byte on."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)
