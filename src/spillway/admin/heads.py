"""Heads of HTTP requests, read by h11 and judged more strictly.

It is lenient where two parsers may differ (a folded line, a bare line feed, a length said twice), we are not (bad input
B16). Every head is looked at, also that of a request that came behind another one.
"""

import re
from typing import Any, Final

import h11

HEAD_BYTES_MAX: Final = 64 * 1024
END_OF_HEAD: Final = b"\r\n\r\n"
AMBIGUOUS: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")  # a line that does not end, or goes on in the next
LENGTHS: Final = re.compile(rb"\r\ncontent-length[ \t]*:([^\r\n]*)", re.IGNORECASE)


class StrictConnection(h11.Connection):
    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self.searched = 0  # bytes of the next head that hold nothing wrong, however slowly the rest comes
        self.problem: tuple[int, str] | None = None  # status and text, for the client

    @property
    def has_rest(self) -> bool:
        """Something has come that is not a whole request yet."""
        return bool(self.trailing_data[0])

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            self.check_head(self.trailing_data[0])
        return super().next_event()

    def check_head(self, seen: bytes) -> None:
        end = seen.find(END_OF_HEAD, self.searched)
        stop = len(seen) if end < 0 else end
        if AMBIGUOUS.search(seen, self.searched, stop + 2):
            self.refuse(400, "A header line must end with CR LF, and must not go on in the next.")
        if stop > HEAD_BYTES_MAX:
            self.refuse(431, f"The head of a request has at most {HEAD_BYTES_MAX} bytes.")
        if end < 0:
            self.searched = max(0, len(seen) - len(END_OF_HEAD) + 1)
            return
        self.searched = 0
        lengths = LENGTHS.findall(seen, 0, end)
        if len(lengths) > 1 or (lengths and b"," in lengths[0]):
            self.refuse(400, "The header 'content-length' is there more than once.")

    def refuse(self, status: int, text: str) -> None:
        self.problem = (status, text)
        raise h11.RemoteProtocolError(text, status)
