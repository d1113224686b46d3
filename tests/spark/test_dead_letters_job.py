"""Dead letters on real Spark: groups, a page, conditions and changes in SQL, from the command line to the queue."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.amqp.types import Int, Timestamp
from spillway.client import OutgoingMessage
from spillway.spark.jobs.dead_letters import (
    PurgeConfig,
    ResubmitConfig,
    ShowConfig,
    main,
    purge,
    resubmit,
    show,
    status_of,
    text_of,
)
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.job_directory import JobDirectoryError
from spillway.spark.triage.planned import dead_letters_of
from spillway.spark.triage.resubmitted import COUNT, MARK
from tests.spark.bus import Bus
from tests.spark.test_triage import killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


class Dead:
    """Two queues and a subscription with dead letters for two reasons."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.orders, self.bills = bus.queue(lock_s=5.0), bus.queue()
        topic = bus.topic("audit")
        self.audit = f"{topic}/subscriptions/audit"
        self.fill(self.orders, [0, 1, 2, 3, 4, 5])
        self.fill(self.bills, [6])
        bus.send(topic, [OutgoingMessage("<b>7</b>", message_id="id 7")])
        bus.dead_letter(self.audit, "<script>alert(1)</script>")
        self.access: dict[str, Any] = {"connection_string": bus.broker.connection_string}
        self.entities = (self.orders, self.bills, self.audit)

    def fill(self, queue: str, numbers: list[int]) -> None:
        """Odd ones die as TooBusy, even ones as BadInput; each with a line of its own."""
        messages = [
            OutgoingMessage(
                json.dumps({"customer": f"c{number % 3}"}),
                message_id=f"id {number}",
                subject="odd" if number % 2 else "even",
                application_properties={"n": Int(number)},
            )
            for number in numbers
        ]
        for number, message in zip(numbers, messages, strict=True):
            self.bus.send(queue, [message])
            why = f"order {number} failed\n  at line {number}"
            self.bus.dead_letter(queue, "TooBusy" if number % 2 else "BadInput", why)

    def left(self, entity: str) -> list[str]:
        return sorted(str(message.message_id) for message in self.bus.peek(dead_letters_of(entity)))


@pytest.fixture
def dead(bus: Bus) -> Dead:
    return Dead(bus)


def test_dead_letters_are_grouped_and_shown_and_nothing_is_changed(
    spark: "SparkSession", dead: Dead, tmp_path: Path
) -> None:
    page = tmp_path / "pages" / "dead.html"
    now = datetime.now(UTC) + timedelta(hours=2)
    config = ShowConfig(dead.entities, by="reason,entity,age,pattern", html=str(page), **dead.access)
    summary = show(spark, config, clock=lambda: now)
    assert (summary.messages, summary.groups_count) == (8, 4)
    first = summary.groups[0]
    assert (first["reason"], first["entity"], first["age"], first["messages"]) == ("BadInput", dead.orders, "day", 3)
    assert (first["pattern"], first["example"]["sequence_number"]) == ("order # failed", 1)
    assert {line["reason"]: line["messages"] for line in summary.totals["reason"]} == {
        "BadInput": 4, "TooBusy": 3, "<script>alert(1)</script>": 1,
    }  # fmt: skip
    told = text_of(summary)
    assert told.startswith("8 dead letters in 3 entities of ")
    assert re.search(rf"^ +3 .* BadInput +{dead.orders} +day +order # failed$", told, re.MULTILINE)
    text = page.read_text()
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "order # failed" in text and "3 reasons" not in text
    # By the first line of the error each is alone; the condition of a group chooses it.
    by_error = show(spark, ShowConfig(dead.entities, by="error", top=2, **dead.access))
    assert (by_error.groups_count, len(by_error.groups)) == (8, 2)
    assert "and 6 smaller groups" in text_of(by_error)
    chosen = show(spark, ShowConfig(dead.entities, where=first["where"], **dead.access), clock=lambda: now)
    assert (chosen.messages, [group["entity"] for group in chosen.groups]) == (3, [dead.orders] * 3)
    assert (dead.left(dead.orders), dead.left(dead.bills)) == ([f"id {n}" for n in range(6)], ["id 6"])
    with pytest.raises(OptionError, match="where: .*nothing_like_it"):
        show(spark, ShowConfig(dead.entities, where="nothing_like_it = 1", **dead.access))


def test_chosen_ones_are_changed_and_sent_again_once(
    spark: "SparkSession", dead: Dead, bus: Bus, tmp_path: Path
) -> None:
    to = bus.queue()
    given: dict[str, Any] = {
        "where": "reason = 'TooBusy' AND get_json_object(body, '$.customer') <> 'c2'",
        "to": to,
        "sets": (
            "subject=concat('again ', subject)",
            "session_id=get_json_object(body, '$.customer')",
            "application_properties.n=NULL",
            "application_properties.at=timestamp'2026-11-17 08:00:00'",
            "application_properties.old=int(application_properties['n'])",
        ),
        **dead.access,
    }
    dry = resubmit(spark, ResubmitConfig((dead.orders,), dry_run=True, **given))
    assert (dry.chosen, dry.is_dry, [line["messages"] for line in dry.lines]) == (2, True, [2])
    assert [sample["sequence_number"] for sample in dry.samples] == [2, 4]
    assert f"2 of {dead.orders} to {to}, with the ids they had ({to} does not drop duplicates)" in text_of(dry)
    assert "subject = 'again odd'" in text_of(dry)
    assert bus.peek(to) == []
    config = ResubmitConfig((dead.orders,), checkpoint=str(tmp_path / "again"), rate=1_000.0, **given)
    summary = resubmit(spark, config)
    assert (summary.done, summary.is_ended, summary.kept) == (2, True, [])
    arrived = bus.peek(to)
    assert [message.message_id for message in arrived] == ["id 1", "id 3"]
    assert [message.session_id for message in arrived] == ["c1", "c0"]
    properties = arrived[0].application_properties
    at_ms = int(datetime(2026, 11, 17, 8, tzinfo=UTC).timestamp() * 1000)
    assert {name: value for name, value in properties.items() if name != MARK} == {"at": at_ms, "old": 1, COUNT: 1}
    assert type(properties["at"]) is Timestamp and type(properties["old"]) is Int
    assert arrived[0].properties.subject == "again odd"
    assert dead.left(dead.orders) == ["id 0", "id 2", "id 4", "id 5"]
    # The same once more takes what has died since.
    dead.fill(dead.orders, [9])
    more = resubmit(spark, config)
    assert (more.chosen, more.done) == (1, 1)
    assert len(bus.peek(to)) == 3
    with pytest.raises(JobDirectoryError, match="its where is"):
        resubmit(spark, ResubmitConfig((dead.orders,), to=to, checkpoint=str(tmp_path / "again"), **dead.access))


def test_a_driver_that_is_killed_in_the_middle_is_started_again_and_sends_nothing_twice(
    spark: "SparkSession", dead: Dead, tmp_path: Path
) -> None:
    """Back to the queue that they died in; it has no duplicate detection."""
    config = ResubmitConfig(
        (dead.orders,), checkpoint=str(tmp_path / "again"), patience_s=12.0, rate=2.0, **dead.access
    )
    assert killed(lambda: resubmit(spark, config), "sent", after=1)
    summary = resubmit(spark, config)
    assert (summary.is_resumed, summary.is_ended, summary.left, summary.kept) == (True, True, 0, [])
    assert summary.done + summary.done_before == 6
    assert sorted(str(message.message_id) for message in dead.bus.peek(dead.orders)) == [f"id {n}" for n in range(6)]
    assert dead.left(dead.orders) == []


def test_a_purge_asks_before_it_deletes(spark: "SparkSession", dead: Dead) -> None:
    asked = purge(spark, PurgeConfig((dead.orders, dead.bills), where="reason = 'BadInput'", **dead.access))
    assert (asked.chosen, asked.done, status_of(asked)) == (4, 0, 1)
    assert "4 dead letters would be deleted. Nothing was: say --yes to delete" in text_of(asked)
    dry = purge(spark, PurgeConfig((dead.orders,), dry_run=True, yes=True, **dead.access))
    assert (dry.chosen, status_of(dry)) == (6, 0)
    assert dead.left(dead.orders) == [f"id {n}" for n in range(6)]
    confirmed = PurgeConfig((dead.orders, dead.bills), "reason = 'BadInput'", yes=True, max_messages=3, **dead.access)
    done = purge(spark, confirmed)
    assert (done.done, done.more, status_of(done)) == (3, 1, 0)
    assert "1 more were chosen than a run takes" in text_of(done)
    assert len(dead.left(dead.orders) + dead.left(dead.bills)) == 4


def test_the_module_runs_as_spark_submit_calls_it_and_prints_one_line_of_json(
    spark: "SparkSession", dead: Dead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    access = ["--connection-string", dead.bus.broker.connection_string]
    assert main(["show", *access, "--entity", dead.orders, "--entity", dead.bills, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["messages"] == 7
    assert main(["purge", *access, "--entity", dead.bills]) == 1
    words = ["resubmit", *access, "--entity", dead.bills, "--checkpoint", str(tmp_path / "c")]
    assert main([*words, "--set", "subject=1"]) == 2
    assert "set: subject is int; it has to be a string" in capsys.readouterr().err
    assert main(words) == 2  # another request than the checkpoint is of
    assert "is of something else: its set is" in capsys.readouterr().err
    words[-1] = str(tmp_path / "d")
    assert main(words) == 0
    assert f"1 of 1 of {dead.bills} to {dead.bills}" in capsys.readouterr().out
    assert len(dead.bus.peek(dead.bills)) == 1
    # No dead letters are left there: that is no error.
    assert main(["show", *access, "--entity", dead.bills]) == 0
    assert "no dead letters in 1 entity" in capsys.readouterr().out


def test_the_guides_program_shows_and_sends(spark: "SparkSession", dead: Dead, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    (program,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "dead_letters" in each]
    secret = tmp_path / "bus"
    secret.write_text(dead.bus.broker.connection_string)
    program = program.replace("env:BUS", f"file:{secret}").replace('"orders"', f'"{dead.orders}"')
    scope: dict[str, Any] = {"spark": spark}
    exec(program.replace('"again"', f'"{tmp_path / "again"}"'), scope)
    assert scope["found"].messages == 6
    assert (scope["sent"].done, len(dead.bus.peek(dead.orders))) == (3, 3)
