"""The programs of the README and the guide run as they stand there."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.client.faults import Fault, RemoteFaults
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_a_queue_is_in_a_frame_in_the_readmes_five_lines(
    spark: "SparkSession", bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = [text for text in programs("README.md") if "servicebus" in text and "build_session" in text]
    assert len([line for line in program.splitlines() if line.strip()]) <= 5
    queue = bus.queue("hello")
    text, count = re.subn(r"CONNECTION = .*", lambda _: f"CONNECTION = {bus.options['connectionString']!r}", program)
    assert count == 1
    exec(text.replace('load("orders")', f'load("{queue}")'), {})
    assert "hello" in capsys.readouterr().out


def test_the_guides_programs_read_store_settle_and_write(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    first, locked, write = [text for text in programs("docs/spark.md") if "onRefused" not in text]
    queue, copies = bus.queue("one", "two"), bus.queue()
    scope: dict[str, Any] = {"BASE": str(tmp_path / "rows"), "CHECKPOINT": str(tmp_path / "checkpoint")}
    names = {"orders": queue, "copies": copies}

    def play(program: str) -> None:
        text = re.sub(r"os\.environ\[.*?\n\)\n", "", program, flags=re.DOTALL)
        exec(re.sub(r'(load|save)\("(\w+)"\)', lambda found: f'{found[1]}("{names[found[2]]}")', text), scope)

    # Workers that run already do not see a new variable: here the secret is in a file.
    secret = tmp_path / "bus"
    secret.write_text(bus.options["connectionString"])
    for program in (first, write, locked):
        play(program.replace("env:BUS", f"file:{secret}"))
    assert scope["query"].awaitTermination(90)
    assert len(bus.peek(copies)) == 2
    assert bus.peek(queue) == []
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 2


def test_the_guides_recipe_sends_every_message_once_through_a_break_and_a_start_from_nothing(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    (program,) = [text for text in programs("docs/spark.md") if "onRefused" in text]
    bodies = [f"body {index}" for index in range(500)]
    source, once = bus.queue(*bodies), bus.queue(requires_duplicate_detection=True)
    secret = tmp_path / "bus"
    secret.write_text(bus.options["connectionString"])
    text = program.replace("env:BUS", f"file:{secret}").replace('"once"', f'"{once}"')
    frame = spark.readStream.format("servicebus").options(**bus.options).load(source)
    faults = RemoteFaults(bus.broker.connection_string)
    broken = faults.add(Fault("drop", once, ["send"], after=200, count=1))
    for run in ("first", "again"):
        scope: dict[str, Any] = {
            "orders_as_they_come": frame,
            "REFUSED": str(tmp_path / "refused"),
            "CHECKPOINT": str(tmp_path / run),
        }
        exec(text, scope)
        assert scope["query"].awaitTermination(90)
    assert faults.remove(broken.number).hit == 1
    assert sorted(bus.bodies(once)) == sorted(bodies)
