"""Ids of accepted messages in the journal that forgets: the same answers as the tables of SQLite, from a list."""

from bisect import bisect_right

from spillway.model.message import NEVER
from spillway.model.message_ids import DIGEST_BYTES, accepted_ms_of, number_of, place_at
from spillway.model.records import (
    IdRows,
    LoadIds,
    LoadIndexedIds,
    LoadOldIds,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    Query,
    Rows,
)


class IdMemory:
    """The ids of one entity. Every id is a row of its own."""

    def __init__(self) -> None:
        self._log: list[bytes] = []  # packed, in the order they were accepted
        self._index: dict[bytes, bytes] = {}  # packed, by digest
        self._indexed_upto = 0
        self._indexed_ms = 0

    @property
    def oldest_ms(self) -> int:
        return accepted_ms_of(place_at(self._log[0], 0)) if self._log else NEVER

    def add(self, record: MessageIdSeen) -> None:
        assert not self._log or _number(self._log[-1]) < record.sequence_number, "ids are accepted in order"
        self._log.append(record.packed)

    def index(self, record: MessageIdsIndexed) -> None:
        for packed in self._log[self._after(self._indexed_upto) : self._after(record.upto)]:
            self._index[packed[:DIGEST_BYTES]] = packed
        self._indexed_upto = record.upto
        self._indexed_ms = record.accepted_ms

    def evict(self, record: MessageIdsForgotten) -> None:
        end = self._after(record.upto)
        for packed in self._log[:end]:
            digest = packed[:DIGEST_BYTES]
            if digest in self._index and _number(self._index[digest]) <= record.upto:
                del self._index[digest]
        del self._log[:end]
        if record.upto >= self._indexed_upto:
            self._indexed_upto = self._indexed_ms = 0

    def answer(self, query: Query) -> Rows:
        rows = Rows([])
        if isinstance(query, LoadIds):
            start = self._after(max(query.after, self._indexed_upto))
            found = self._log[start : start + query.count]
            rows.is_cut = start + query.count < len(self._log)
            rows.ids = self._ids(found)
            if query.wants_records:
                rows.ids.records = b"".join(found)
        elif isinstance(query, LoadOldIds):
            end = 0
            while end < min(query.count, len(self._log)) and _accepted_ms(self._log[end]) <= query.before_ms:
                end += 1
            rows.ids = self._ids(self._log[:end])
            if end < len(self._log):
                rows.next_ms = _accepted_ms(self._log[end])
                rows.is_cut = rows.next_ms <= query.before_ms
        else:
            assert isinstance(query, LoadIndexedIds), f"a query the store does not know: {type(query).__name__}"
            rows.ids = IdRows()
            digests = dict.fromkeys(query.digests)
            rows.ids.records = b"".join(self._index[digest] for digest in digests if digest in self._index)
        return rows

    def _after(self, number: int) -> int:
        return bisect_right(self._log, number, key=_number)

    def _ids(self, found: list[bytes]) -> IdRows:
        ids = IdRows()
        ids.indexed_upto = self._indexed_upto
        ids.indexed_ms = self._indexed_ms
        if found:
            ids.count = sum(_number(packed) > self._indexed_upto for packed in found)
            ids.upto = _number(found[-1])
            ids.accepted_ms = _accepted_ms(found[-1])
        return ids


def _number(packed: bytes) -> int:
    return number_of(place_at(packed, 0))


def _accepted_ms(packed: bytes) -> int:
    return accepted_ms_of(place_at(packed, 0))
