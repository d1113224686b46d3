"""From a real outage to the report: a pairing fails over between two broker processes, and the job reads its files."""

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.paired import SendAvailabilityPairedNamespaceOptions
from spillway.paired.events import RECOVERED, SYPHONED
from spillway.spark.jobs.availability import AvailabilityConfig, run
from tests.paired.namespaces import Namespaces, Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def rehearse(namespaces: Namespaces, path: str, events: Path) -> None:
    """Twelve messages around an entity that refuses; it is mended, and they come home."""
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name())
    secondary, manager = namespaces.secondary_factory(), namespaces.manager()
    async with primary, secondary, manager:
        primary.record_events(events, process="live")
        options = SendAvailabilityPairedNamespaceOptions(
            manager, secondary, 1, timedelta(seconds=0.5), enable_syphon=True,
            ping_primary_interval=timedelta(seconds=1), pending="hold", syphon_long_poll=timedelta(seconds=1),
        )  # fmt: skip
        await primary.pair_namespace(options)
        sender = primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("before"))
        faults = namespaces.refuse(path)
        for number in range(12):
            await sender.send_messages(ServiceBusMessage(f"{number}"))
        faults.clear()
        pair = Pair(primary, secondary, manager, options)
        await pair.until(RECOVERED)
        await pair.until(SYPHONED, 12)


@pytest.mark.timeout(900)  # it may be the first that starts Spark
async def test_what_a_pairing_wrote_in_an_outage_becomes_that_outage(
    namespaces: Namespaces, spark: "SparkSession", tmp_path: Path
) -> None:
    path = namespaces.queue()
    await rehearse(namespaces, path, tmp_path / "events")
    said: list[str] = []
    config = AvailabilityConfig(tmp_path / "out", (tmp_path / "events",), report=tmp_path / "report.html")
    summary = run(spark, config, said.append)
    (outage,) = summary.outages
    assert (outage["entity"], outage["end"], outage["processes"]) == (path, "recovered", 1)
    assert (outage["diverted"], outage["syphoned"], summary.waiting) == (12, 12, 0)
    # Half a second of the loop's clock; each event is stamped by the wall clock a moment after it was decided.
    assert 0.4 <= outage["to_fail_over_s"] < 10 and outage["pings_answered"] == 1
    assert outage["to_empty_s"] is not None and "Quota" in outage["cause"]
    assert summary.remarks == [] and summary.set_aside == 0
    assert len(said) == 3 and json.dumps(asdict(summary))
    assert path in (tmp_path / "report.html").read_text(encoding="utf-8")
