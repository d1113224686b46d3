"""A client of a Spark Connect server that runs every job, and tells on stdout what became of each.

A process has either such a session or a regular one, so that this cannot be the process of the tests.
"""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spillway.spark.billing.charges import RawRow, Tariff
from spillway.spark.billing.metering_inputs import LedgerDirectory
from spillway.spark.billing.prices import find_list
from spillway.spark.jobs import availability, capture, compact, cost, metering, replay, syphon
from spillway.spark.platform.connect import is_connect, parallelism
from spillway.spark.platform.session import build_session
from tests.spark.event_files import Writer
from tests.spark.ledgers import write_sealed

NOON = 1_768_478_400  # 2026-01-15T12:00:00Z


def main(address: str, place: Path, primary: str, secondary: str, backlog: str, queue: str, target: str) -> None:
    spark = build_session("jobs", master=address, config={"spark.sql.shuffle.partitions": "2"}, say=quiet)
    tell("session", lambda: {"is_connect": is_connect(spark), "cores": parallelism(spark)})
    tell("again", lambda: {"is_same": build_session("again", say=quiet) is spark})
    lake, out = place / "lake", place / "out"
    write_sealed(place, [RawRow("contoso", NOON, "orders", "send", 10, 10, 1_000)])
    now = datetime.fromtimestamp(NOON, UTC) + timedelta(days=10)
    config = metering.MeteringConfig(out, (LedgerDirectory(place),), now=lambda: now)
    tell("metering", lambda: asdict(metering.run(spark, config, quiet)))
    tariff = Tariff(find_list("standard"))
    tell("cost", lambda: {"total": str(cost.run(spark, cost.CostConfig(out, place / "cost", tariff), quiet).total)})
    Writer(place / "events", "one").outage("orders", 10, 30, 90)
    heard = availability.AvailabilityConfig(place / "availability", (place / "events",))
    tell("availability", lambda: {"outages": len(availability.run(spark, heard, quiet).outages)})
    captures = capture.CaptureConfig((queue,), str(lake), connection_string=primary)
    tell("capture", lambda: asdict(capture.run(spark, captures, quiet)))
    tomorrow = datetime.now(UTC) + timedelta(days=2)
    compacts = compact.CompactConfig(str(lake))
    tell("compact", lambda: asdict(compact.run(spark, compacts, quiet, lambda: tomorrow)))
    replays = replay.ReplayConfig(str(lake), target, connection_string=primary)
    tell("replay", lambda: asdict(replay.run(spark, replays, quiet)))
    moves = syphon.SyphonConfig(primary, secondary, namespace_name=backlog, idle_s=0.3)
    tell("syphon", lambda: asdict(syphon.run(spark, moves)))
    watches = capture.CaptureConfig((queue,), str(lake), connection_string=primary, watch=True)
    tell("capture watch", lambda: asdict(capture.run(spark, watches, quiet)))
    tell("syphon watch", lambda: asdict(syphon.run(spark, syphon.SyphonConfig(primary, secondary, watch=True))))
    elsewhere = capture.CaptureConfig((queue,), "hdfs://nowhere/lake", connection_string=primary)
    tell("capture elsewhere", lambda: asdict(capture.run(spark, elsewhere, quiet)))
    spark.stop()


def quiet(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def tell(job: str, work: Callable[[], dict[str, Any]]) -> None:
    try:
        said = {"job": job, **work()}
    except Exception as error:
        traceback.print_exc()
        said = {"job": job, "error": type(error).__name__, "text": str(error)}
    print(json.dumps(said, default=str), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
