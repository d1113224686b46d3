"""Opening files of the data directory: never through a link, and never what is no file at all.

Whoever can write to the directory, or could once, may have put a link there to make us write somewhere else, or a pipe
to make us wait.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

OPEN_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ_BYTES_MAX: Final = 1024 * 1024  # of what is read whole: keys, certificates, where a broker was served
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class NotOurFile(OSError):
    """There is something else than a plain file. `strerror` says what, and what to do."""


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a plain file. OSError if there is none, or something else."""
    try:
        file = os.open(path, flags | OPEN_FLAGS, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = "is a symbolic link, which is not followed: put the file itself there"
            raise NotOurFile(errno.ELOOP, text, str(path)) from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _no_file(path)
    return file


def _no_file(path: Path) -> NotOurFile:
    return NotOurFile(errno.EINVAL, "is no plain file: remove it", str(path))


def read_own(path: Path) -> bytes:
    """The content of a small file."""
    file = open_own(path, os.O_RDONLY)
    try:
        content = b""
        while len(content) <= READ_BYTES_MAX:
            piece = os.read(file, READ_BYTES_MAX + 1 - len(content))
            if not piece:
                return content
            content += piece
    finally:
        os.close(file)
    raise NotOurFile(errno.EFBIG, f"has more than {READ_BYTES_MAX:,} bytes", str(path))


def refuse_link(path: Path) -> None:
    """Refuses links among files that a library opens by name. One that is not there is no link."""
    try:
        os.close(open_own(path, os.O_RDONLY))
    except FileNotFoundError:
        return


def tighten_own(path: Path, mode: int) -> bool:
    """Take away what others may do with the file beyond `mode`. Whether there was something to take."""
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        is_too_open = bool(stat.S_IMODE(os.fstat(file).st_mode) & ~mode)
        if is_too_open:
            os.fchmod(file, mode)
        return is_too_open
    finally:
        os.close(file)


def open_to_others(directory: Path) -> str:
    """Why others can change what is in a directory, and what to do; empty if they cannot."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & OTHERS_WRITE:
        return ""
    return (
        f"others can write to {directory} (mode {mode:04o}), and so replace keys and messages: chmod go-w {directory}"
    )
