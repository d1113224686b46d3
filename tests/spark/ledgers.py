"""Ledgers on disk, as brokers leave them, made of raw rows."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from spillway.model.ledger import KIND_NAMES, DayPacker, LedgerRow
from spillway.spark.billing.charges import RawRow, day_text


def write_sealed(directory: Path, rows: Iterable[RawRow]) -> list[Path]:
    """DIR/ledger/day=…/NAMESPACE.jsonl.gz"""
    days: dict[tuple[str, str], list[LedgerRow]] = defaultdict(list)
    for row in rows:
        kind = KIND_NAMES.index(row.kind)
        line = LedgerRow(row.epoch_s // 60, row.entity, kind, row.operations, row.units, row.size_bytes)
        days[day_text(row.epoch_s), row.namespace].append(line)
    written = []
    for (day, namespace), lines in sorted(days.items()):
        path = directory / "ledger" / f"day={day}" / f"{namespace}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        packer = DayPacker(namespace)
        path.write_bytes(packer.pack(sorted(lines, key=LedgerRow.key)) + packer.finish())
        written.append(path)
    return written
