"""Files of JSON lines, packed or not, as executors read them: in pieces of bounded size, fields checked one by one.

What a line is about its readers know: ledgers and the events of pairings are read with this.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

READ_BYTES: Final = 1 << 20
CHUNK_BYTES: Final = 8 << 20  # of text, parsed at a time
LINE_BYTES_MAX: Final = 1 << 20
SHOWN_MAX: Final = 300  # characters of a bad line


class BadLine(NamedTuple):
    file: str
    line: int  # 0: the file as a whole
    reason: str
    text: str


class DamagedFile(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def whole(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    number = fields.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        allowed = f"{least}" if least == most else f"a whole number from {least} to {most}"
        raise ValueError(f"'{name}' must be {allowed}")
    return number


def words(fields: dict[str, Any], name: str) -> str:
    text = fields.get(name)
    if not isinstance(text, str) or not text:
        raise ValueError(f"'{name}' must be text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"'{name}' has half a character in it") from None
    return text


def shown(line: bytes) -> str:
    text = line[: 4 * SHOWN_MAX].decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)[:SHOWN_MAX]


def chunks_of(path: Path) -> Iterator[bytes]:
    """The text of a file, unpacked if it is packed, in pieces that end with a line. `DamagedFile`, OSError."""
    with path.open("rb") as file:
        pieces = unpacked(file) if path.suffix == ".gz" else iter(lambda: file.read(READ_BYTES), b"")
        yield from whole_lines(pieces, is_end_needed=path.suffix == ".gz")


def whole_lines(pieces: Iterator[bytes], is_end_needed: bool) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size < CHUNK_BYTES:
            continue
        text = b"".join(waiting)
        assert len(text) == size, "what waits is what was counted"
        end = text.rfind(b"\n") + 1
        if size - end > LINE_BYTES_MAX:
            raise DamagedFile(0, f"a line is longer than {LINE_BYTES_MAX:,} bytes")
        if end:
            yield text[:end]
        waiting, size = [text[end:]], size - end
    text = b"".join(waiting)
    if text and not text.endswith(b"\n"):
        if is_end_needed:
            raise DamagedFile(0, "the last line has no end: the file is cut short")
        text += b"\n"
    if text:
        yield text


def unpacked(file: IO[bytes]) -> Iterator[bytes]:
    """Also of several gzip files in one, as `cat` makes them."""
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    is_begun = False
    while data := file.read(READ_BYTES):
        while data:
            if inflating.eof:
                inflating, is_begun = zlib.decompressobj(16 + zlib.MAX_WBITS), False
            try:
                text = inflating.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise DamagedFile(0, f"gzip: {str(error).partition(': ')[2] or error}") from None
            is_begun = True
            if text:
                yield text
            data = inflating.unused_data if inflating.eof else inflating.unconsumed_tail
    if not inflating.eof:
        raise DamagedFile(0, "gzip: the file is cut short" if is_begun else "the file is empty")
