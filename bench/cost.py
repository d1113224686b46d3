"""`make bench-cost`: metering and cost over millions of ledger rows: time, peak memory, and whether it is linear.

Ledgers are written as brokers leave them, JSON lines packed by gzip, a file for each namespace and day; then both jobs
run, each size in a process of its own. The total is held against what the generator wrote down and, up to
`--plain-max` rows, against a sum in plain Python over the raw rows.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence" / "bench-cost.json"
NAMESPACES = ("east", "west")
KINDS = ("send", "receive", "settle", "empty_receive")
DAYS = 31
MINUTES = 1440
FIRST_DAY = datetime(2027, 1, 1, tzinfo=UTC)
SIZES = (5_000_000, 50_000_000)
MB = 1024 * 1024


# -- ledgers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    directory: str
    namespace: str
    day: int
    entities: int


def write_part(part: Part) -> tuple[str, int, dict[str, int]]:
    """One file: every entity and kind in every minute of a day. Answers with rows and units by kind."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    day = FIRST_DAY + timedelta(days=part.day)
    names = [f"queue-{number:03}" for number in range(part.entities)]
    if part.namespace == "west":  # a tenth of its entities are backlog queues
        names[: max(1, part.entities // 10)] = [
            f"east/x-servicebus-transfer/{number}" for number in range(max(1, part.entities // 10))
        ]
    each = len(names) * len(KINDS)
    minutes = np.repeat(np.arange(MINUTES), each)
    chance = np.random.default_rng([part.day, NAMESPACES.index(part.namespace)])
    operations = chance.integers(1, 40, size=MINUTES * each)
    sizes = operations * chance.integers(200, 2000, size=MINUTES * each)
    epoch = int(day.timestamp()) + minutes * 60
    texts = [(day + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ") for minute in range(MINUTES)]
    counted = pc.cast(pa.array(operations), pa.string())
    lines = pc.binary_join_element_wise(
        f'{{"format":1,"namespace":"{part.namespace}","minute":"',
        pa.array(texts).take(pa.array(minutes)),
        '","epoch_s":',
        pc.cast(pa.array(epoch), pa.string()),
        ',"entity":"',
        pa.array(np.tile(np.repeat(np.array(names), len(KINDS)), MINUTES)),
        '","kind":"',
        pa.array(np.tile(np.array(KINDS), MINUTES * len(names))),
        '","operations":',
        counted,
        ',"units":',
        counted,
        ',"bytes":',
        pc.cast(pa.array(sizes), pa.string()),
        "}\n",
        "",
    )
    path = Path(part.directory) / "ledger" / f"day={day:%Y-%m-%d}" / f"{part.namespace}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with path.open("wb") as file:
        for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
            file.write(packer.compress(memoryview(chunk.buffers()[2])))
        file.write(packer.flush())
    by_kind = {kind: int(operations[at :: len(KINDS)].sum()) for at, kind in enumerate(KINDS)}
    return part.namespace, MINUTES * each, by_kind


def write_ledgers(directory: Path, rows: int) -> dict[str, Any]:
    entities = max(1, round(rows / (DAYS * len(NAMESPACES) * MINUTES * len(KINDS))))
    parts = [Part(str(directory), name, day, entities) for day in range(DAYS) for name in NAMESPACES]
    began = time.monotonic()
    units: dict[str, dict[str, int]] = {name: dict.fromkeys(KINDS, 0) for name in NAMESPACES}
    count = 0
    with ProcessPoolExecutor(2) as pool:
        for namespace, made, by_kind in pool.map(write_part, parts):
            count += made
            for kind, number in by_kind.items():
                units[namespace][kind] += number
    size = sum(path.stat().st_size for path in directory.rglob("*.gz"))
    return {
        "rows": count,
        "files": len(parts),
        "packed_mb": round(size / MB),
        "entities": entities * len(NAMESPACES),
        "units": units,
        "written_s": round(time.monotonic() - began, 1),
    }


def expected_total(units: dict[str, dict[str, int]]) -> str:
    """From what the generator wrote: all of one month, all hours of it."""
    from spillway.spark.billing.prices import cents, find_list

    prices = find_list("standard")
    total = 0
    for by_kind in units.values():
        charged = sum(number for kind, number in by_kind.items() if kind in prices.charged_kinds)
        total += prices.operations_pico(charged) + DAYS * 24 * prices.base_per_hour_pico
    return str(cents(total))


def plain_sum(directory: Path) -> tuple[str, float]:
    from spillway.spark.billing.charges import Tariff, plain_total
    from spillway.spark.billing.ledger_files import rows_of
    from spillway.spark.billing.prices import cents, find_list

    began = time.monotonic()
    rows = (row for path in sorted(directory.rglob("*.gz")) for row in rows_of(path))
    total = plain_total(rows, Tariff(find_list("standard")))
    return str(cents(total)), round(time.monotonic() - began, 1)


# -- memory -------------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """The most that this process, its Java and its Python workers had in memory."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks = {"driver": 0, "java": 0, "workers": 0, "all": 0}
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.2):
            found = {"driver": 0, "java": 0, "workers": 0}
            for pid in family(os.getpid()):
                name, rss = seen(pid)
                kind = "driver" if pid == os.getpid() else "java" if name == "java" else "workers"
                found[kind] += rss
            found["all"] = sum(found.values())
            self.peaks = {kind: max(self.peaks[kind], found[kind]) for kind in self.peaks}


def family(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_s() -> float:
    """Of this process and all below it, ended ones that were waited for too. The load of others is not in it."""
    ticks = 0
    for pid in family(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(number) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def seen(pid: int) -> tuple[str, int]:
    """Shared pages of forked workers are counted in proportion, where the kernel tells."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return name, int(line.split()[1]) * 1024
    except OSError:
        pass
    return "", 0


# -- one run ------------------------------------------------------------------------------------------------------


def run_one(rows: int, place: Path, plain_max: int) -> dict[str, Any]:
    from spillway.spark.billing.charges import Tariff
    from spillway.spark.billing.metering_inputs import LedgerDirectory
    from spillway.spark.billing.prices import find_list
    from spillway.spark.jobs import cost, metering
    from spillway.spark.platform.session import build_session

    directory = place / "data"
    say(f"{rows:,} rows: writing ledgers")
    made = write_ledgers(directory, rows)
    watch = Watch()
    began = time.monotonic()
    spark = build_session("bench-cost")
    started_s = time.monotonic() - began
    watch.start()
    cpu_before = cpu_s()
    metered = metering.run(spark, metering.MeteringConfig(place / "out", (LedgerDirectory(directory),)))
    cpu_between = cpu_s()
    config = cost.CostConfig(place / "out", place / "cost", Tariff(find_list("standard")))
    report = cost.run(spark, config)
    cpu_after = cpu_s()
    watch.is_over.set()
    watch.join()
    assert metered.lines == made["rows"], (metered.lines, made["rows"])
    due = expected_total(made.pop("units"))
    assert report.total == due, (report.total, due)
    result = {
        **made,
        "start_s": round(started_s, 1),
        "metering_s": metered.seconds,
        "cost_s": report.seconds,
        "metering_cpu_s": round(cpu_between - cpu_before, 1),
        "cost_cpu_s": round(cpu_after - cpu_between, 1),
        "seconds": round(metered.seconds + report.seconds, 1),
        "rows_a_second": round(made["rows"] / (metered.seconds + report.seconds)),
        "metered_rows": metered.rows,
        "charges": report.lines,
        "total": report.total,
        "expected_total": due,
        "peak_mb": {kind: round(size / MB) for kind, size in watch.peaks.items()},
        "load_average": [round(load, 1) for load in os.getloadavg()],
    }
    if made["rows"] <= plain_max:
        say("the same in plain Python, over the raw rows")
        result["plain_total"], result["plain_s"] = plain_sum(directory)
        assert result["plain_total"] == report.total
    return result


def say(text: str) -> None:
    print(f"bench-cost: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, action="append", help="5 and 50 million by default")
    parser.add_argument("--plain-max", type=int, default=6_000_000)
    parser.add_argument("--place", type=Path, default=None, help="where to put the ledgers, 2 GB for 50 million rows")
    parser.add_argument("--no-evidence", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = given.rows or list(SIZES)
    if given.one:
        print(json.dumps(run_one(sizes[0], given.place, given.plain_max)))
        return 0
    results = []
    for rows in sizes:
        place = Path(tempfile.mkdtemp(prefix="bench-cost-", dir=given.place))
        try:
            command = [sys.executable, __file__, "--one", "--rows", str(rows), "--place", str(place)]
            command += ["--plain-max", str(given.plain_max)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
        finally:
            shutil.rmtree(place, ignore_errors=True)
        show(results[-1])
    written = {"made_by": "make bench-cost", "cores": os.cpu_count(), "runs": results}
    if len(results) > 1:
        first, last = results[0], results[-1]
        written["seconds_a_million"] = [round(each["seconds"] / each["rows"] * 1e6, 3) for each in results]
        growth = (last["seconds"] / last["rows"]) / (first["seconds"] / first["rows"])
        # What a run takes that has nothing to do with rows makes small ones dearer, so this is at most 1.
        written["growth_a_row"] = round(growth, 2)
        written["is_linear"] = growth <= 1.1
        longer = last["seconds"] / first["seconds"]
        print(f"{last['rows'] / first['rows']:.1f} times the rows take {longer:.1f} times as long")
    if not given.no_evidence:
        EVIDENCE.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return 0


def show(result: dict[str, Any]) -> None:
    peaks = ", ".join(f"{kind} {size:,} MB" for kind, size in result["peak_mb"].items())
    print(
        f"{result['rows']:,} rows in {result['files']} files ({result['packed_mb']:,} MB packed): "
        f"metering {result['metering_s']} s, cost {result['cost_s']} s, {result['rows_a_second']:,} rows/s, "
        f"{result['metering_cpu_s'] + result['cost_cpu_s']:.1f} s of CPU; "
        f"peak memory {peaks}; USD {result['total']}, as expected"
    )


if __name__ == "__main__":
    sys.exit(main())
