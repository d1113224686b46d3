"""Ids of accepted messages in memory, compact: what a dictionary does in 155 bytes an id, in 37.

Ids that fall on the same page lie one behind the other in it, the latest last, and are found by a search for their
digest. Pages are split one at a time as ids come (linear hashing), so that no single id pays for all. What is dead,
that is up to the number `floor`, lies at the front of every page and is cut off when the page is touched.
"""

from typing import Final

from spillway.model.message_ids import DIGEST_BYTES, ID_BYTES, number_at, place_at

PAGE_IDS: Final = 16  # on average


class IdTable:
    def __init__(self) -> None:
        self.pages: list[bytearray] = [bytearray()]
        self.mask = 0  # the number of pages when they last doubled, less one
        self.split_at = 0  # the next page to split: those before it were split since
        self.held_count = 0  # with the dead that are not cut off yet
        self.floor = 0
        self.trim_at = 0

    def find(self, digest: bytes) -> int:
        """The place of the latest message with this id; 0 if there is none."""
        page = self.pages[self._page_of(digest)]
        at = page.rfind(digest)
        while at >= 0 and at % ID_BYTES != 0:  # across the bytes of two ids
            at = page.rfind(digest, 0, at + DIGEST_BYTES - 1)
        if at < 0:
            return 0
        return place_at(page, at) if number_at(page, at) > self.floor else 0

    def add(self, digest: bytes, packed: bytes) -> None:
        """An id with a number above all there are; `packed` begins with its digest."""
        page = self.pages[self._page_of(digest)]
        if self.floor > 0 and page and number_at(page, 0) <= self.floor:
            self._trim(page)
        page += packed
        self.held_count += 1
        if self.held_count > len(self.pages) * PAGE_IDS:
            self._split()

    def raise_floor(self, number: int, pages: int) -> None:
        """Ids up to this number are dead. So many pages are looked through for them now, others when they are met."""
        self.floor = max(self.floor, number)
        for _ in range(min(pages, len(self.pages))):
            self.trim_at = (self.trim_at + 1) % len(self.pages)
            self._trim(self.pages[self.trim_at])

    def clear(self) -> None:
        """All are dead."""
        self.pages = [bytearray()]
        self.mask = 0
        self.split_at = 0
        self.held_count = 0
        self.trim_at = 0

    def _page_of(self, digest: bytes) -> int:
        """The page by Python's own hash, which nobody outside can foresee: no sender can make one page long."""
        hashed = hash(digest)
        index = hashed & self.mask
        if index < self.split_at:
            index = hashed & (self.mask * 2 + 1)
        return index

    def _trim(self, page: bytearray) -> None:
        end = 0
        while end < len(page) and number_at(page, end) <= self.floor:
            end += ID_BYTES
        if end > 0:
            del page[:end]
            self.held_count -= end // ID_BYTES

    def _split(self) -> None:
        self._trim(self.pages[self.split_at])
        old = bytes(self.pages[self.split_at])
        stay: list[bytes] = []
        go: list[bytes] = []
        bit = self.mask + 1
        for at in range(0, len(old), ID_BYTES):
            if hash(old[at : at + DIGEST_BYTES]) & bit:
                go.append(old[at : at + ID_BYTES])
            else:
                stay.append(old[at : at + ID_BYTES])
        self.pages[self.split_at] = bytearray(b"".join(stay))
        self.pages.append(bytearray(b"".join(go)))
        self.split_at += 1
        if self.split_at > self.mask:
            self.mask = self.mask * 2 + 1
            self.split_at = 0
