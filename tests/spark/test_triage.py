"""Dead letters against a real broker, without Spark: what is sent again, what is written down, what is killed."""

import os
import signal
import threading
import uuid
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spillway.amqp.types import Int, Timestamp
from spillway.client import AmqpValue, OutgoingMessage, ReceivedMessage
from spillway.client.faults import Fault, RemoteFaults
from spillway.spark.platform.access import Access, OptionError
from spillway.spark.platform.connection_pool import NamespaceError, connection_pool
from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError
from spillway.spark.platform.operations import Operations
from spillway.spark.triage import journal as journals
from spillway.spark.triage.journal import BEGUN, FREE, SENT, TriageJournal
from spillway.spark.triage.locked_pass import PassOptions
from spillway.spark.triage.moving import purge, resubmit
from spillway.spark.triage.namespace import NamespaceDirectory, destination_problem
from spillway.spark.triage.planned import (
    Edit,
    Planned,
    dead_letters_of,
    key_of,
    kind_of,
    owner_of,
    settings_of,
)
from spillway.spark.triage.plans import TriagePlan, read_plan, write_plan
from spillway.spark.triage.request import ShowConfig, check
from spillway.spark.triage.resubmission import KEEP, SEND, UNSURE_TEXT, ResubmissionOptions, ResubmissionTarget
from spillway.spark.triage.resubmitted import COUNT, MARK, CannotEdit, new_id, resubmitted
from spillway.spark.triage.summaries import PurgeSummary, ResubmitSummary
from spillway.syphon.crash import AFTER, AT, RESUBMISSION_PLACES
from tests.spark.bus import Bus

NOW_MS = 1_800_000_000_000
MARKED = "0123456789abcdef" * 2
WINDOW = timedelta(minutes=10)
DETECTS: dict[str, Any] = {"requires_duplicate_detection": True, "duplicate_detection_history_time_window": WINDOW}


# -- bytes ------------------------------------------------------------------------------------------------------------


def again(raw: bytes, *edits: Edit, has_new_id: bool = False) -> ReceivedMessage:
    return ReceivedMessage(resubmitted(raw, MARKED, edits, NOW_MS, has_new_id=has_new_id))


def dead(**properties: Any) -> bytes:
    """As a dead-letter queue hands it out."""
    given = {
        "message_id": "m1",
        "application_properties": {"DeadLetterReason": "r", "DeadLetterErrorDescription": "e", "n": Int(7)},
        "annotations": {"x-opt-sequence-number": 5, "x-opt-enqueued-time": Timestamp(1), "x-opt-mine": "kept"},
        **properties,
    }
    return OutgoingMessage(**{"body": b"\x00body", **given}).encode()


def test_a_dead_letter_is_sent_as_it_was_without_what_the_service_added() -> None:
    message = again(dead(subject="s", session_id="g", time_to_live_ms=60_000, partition_key="g"))
    assert (message.message_id, message.body, message.session_id) == ("m1", b"\x00body", "g")
    assert (message.properties.subject, message.header.ttl_ms) == ("s", 60_000)
    assert message.annotations == {"x-opt-mine": "kept", "x-opt-partition-key": "g"}
    assert message.application_properties == {"n": 7, MARK: MARKED, COUNT: 1}
    assert type(message.application_properties["n"]) is Int
    twice = again(message.raw)
    assert twice.application_properties == {"n": 7, MARK: MARKED, COUNT: 2}
    value = again(dead(body=AmqpValue({"k": [1, uuid.UUID(int=3)]})))
    assert value.value == {"k": [1, uuid.UUID(int=3)]}


def test_fields_properties_and_body_are_changed_and_null_takes_them_out() -> None:
    raw = dead(subject="s", session_id="g", partition_key="g", time_to_live_ms=60_000, content_type="text/plain")
    message = again(
        raw,
        Edit("subject", "null", None),
        Edit("session_id", "string", "h"),
        Edit("content_type", "string", "a/b"),
        Edit("time_to_live_ms", "long", "5000"),
        Edit("scheduled_enqueue_time", "timestamp", str(NOW_MS + 1)),
        Edit("application_properties.n", "null", None),
        Edit("application_properties.t", "timestamp", str(NOW_MS)),
        Edit("application_properties.b", "boolean", "true"),
        Edit("body", "string", "näu"),
        has_new_id=True,
    )
    assert (message.properties.subject, message.session_id, message.properties.content_type) == (None, "h", "a/b")
    assert message.header.ttl_ms == 5_000
    assert message.properties.absolute_expiry_time == NOW_MS + 5_000
    # The old partition key was the old session's.
    assert message.annotations == {"x-opt-mine": "kept", "x-opt-scheduled-enqueue-time": NOW_MS + 1}
    assert message.application_properties == {"t": NOW_MS, "b": True, MARK: MARKED, COUNT: 1}
    assert type(message.application_properties["t"]) is Timestamp
    assert (message.body.decode(), message.message_id) == ("näu", "m1~0123456789abcdef")
    with pytest.raises(CannotEdit, match="time_to_live_ms is 0"):
        again(raw, Edit("time_to_live_ms", "long", "0"))
    with pytest.raises(CannotEdit, match="cannot be read"):
        again(b"\x00\x53")


def test_a_new_id_has_the_old_one_in_it_once_and_is_never_too_long() -> None:
    first = new_id("order 7", MARKED)
    assert first == "order 7~0123456789abcdef"
    assert new_id(first, "f" * 32) == "order 7~ffffffffffffffff"
    assert len(new_id("x" * 128, MARKED)) == 128
    assert new_id(None, MARKED) == "resubmitted~0123456789abcdef"
    assert new_id(uuid.UUID(int=1), MARKED).startswith("00000000-0000-0000-0000-000000000001~")


def test_settings_are_checked_by_name_and_type() -> None:
    (one, two) = settings_of(["subject = concat('a', '=b')", "application_properties.tries=1"])
    assert (one.name, one.expression, two.name) == ("subject", "concat('a', '=b')", "application_properties.tries")
    for wrong, said in (
        (["subject"], "NAME=EXPRESSION"),
        (["subject="], "NAME=EXPRESSION"),
        (["message_id='a'"], "there is no 'message_id' to change; subject, "),
        (["application_properties.=1"], "there is no"),
        (["subject=1", "subject=2"], "subject is there twice"),
    ):
        with pytest.raises(OptionError, match=said):
            settings_of(wrong)
    assert kind_of("application_properties.n", "int") == "int"
    assert kind_of("subject", "void") == "null"
    for name, sql_type, said in (
        ("subject", "int", "it has to be a string"),
        ("body", "void", "'' is an empty one"),
        ("time_to_live_ms", "double", "a whole number of milliseconds"),
        ("application_properties.n", "decimal(2,1)", "cast it to string, boolean"),
    ):
        with pytest.raises(OptionError, match=said):
            kind_of(name, sql_type)


# -- a broker ---------------------------------------------------------------------------------------------------------


def access_of(bus: Bus, patience_s: float = 20.0) -> Access:
    return Access(connection_string=bus.broker.connection_string, patience_s=patience_s)


class Triage:
    """A queue with dead letters, some of them chosen, and a destination."""

    def __init__(self, bus: Bus, directory: Path, *, detects: bool, lock_s: float = 5.0, count: int = 6) -> None:
        self.bus = bus
        self.queue = bus.queue(*[f"body {index}" for index in range(count)], lock_s=lock_s)
        bus.dead_letter(self.queue, "bad")
        self.dead = dead_letters_of(self.queue)
        self.to = bus.queue(**(DETECTS if detects else {}))
        self.directory = JobDirectory(None, str(directory))
        # All but the second and the last.
        self.chosen = [message for index, message in enumerate(bus.peek(self.dead)) if index not in (1, count - 1)]
        self.bodies = sorted(message.body.decode() for message in self.chosen)
        self.others = sorted(set(bus.bodies(self.dead)) - set(self.bodies))
        plan = TriagePlan({self.queue: [Planned(self.key(message)) for message in self.chosen]}, {self.to: detects})
        write_plan(self.directory, plan)

    def key(self, message: ReceivedMessage) -> Any:
        return key_of(self.queue, message.sequence_number or 0, message.enqueued_time_ms or 0)

    def run(self, unsure: str = KEEP, patience_s: float = 12.0, chunk: int = 2) -> ResubmitSummary:
        access = access_of(self.bus)
        facts = NamespaceDirectory(access).destination(self.to)
        plan = read_plan(self.directory)
        assert plan is not None
        summary = ResubmitSummary(chosen=plan.count)
        resubmit(
            connection_pool(),
            plan,
            self.directory,
            lambda _: facts,
            PassOptions(access, patience_s, chunk),
            lambda has_new_ids: ResubmissionOptions(access, "ns", has_new_ids, unsure),
            Operations(),
            summary,
        )
        return summary

    def home(self) -> list[str]:
        return sorted(self.bus.bodies(self.to))

    def left(self) -> list[str]:
        return sorted(self.bus.bodies(self.dead))


def killed(work: Callable[[], object], place: str, after: int = 0) -> bool:
    """In a copy of this process, that dies there; whether it did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: this one waits for the copy
        child = os.fork()
    if child == 0:
        try:
            os.environ.update({AT: place, AFTER: str(after)})
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_killed_at_any_place_every_dead_letter_is_home_once(bus: Bus, tmp_path: Path) -> None:
    # In the first chunk of two, and in the second; the locks of the dead end while the next ones die.
    cases = {
        (place, after, detects): Triage(bus, tmp_path / f"{place}{after}{detects}", detects=detects)
        for place, after in (*[(place, 0) for place in RESUBMISSION_PLACES], ("sent", 1))
        for detects in (True, False)
    }
    for (place, after, detects), triage in cases.items():
        assert killed(triage.run, place, after), (place, after, detects)
    for (place, after, detects), triage in cases.items():
        summary = triage.run()
        case = (place, after, detects, summary)
        assert summary.is_ended and summary.left == summary.gone == 0, case
        if place == "begun" and not detects:
            # Nothing was sent, but nobody can know: they stay, and are told.
            assert summary.unsure == 2 and [line["reason"] for line in summary.kept] == [UNSURE_TEXT], case
            write_plan(triage.directory, TriagePlan({triage.queue: [Planned(triage.key(one)) for one in triage.chosen]},
                                              {triage.to: False}))  # fmt: skip
            assert triage.run(SEND).done == 2, case
        else:
            assert summary.done + summary.done_before == len(triage.bodies), case
            assert summary.kept == [], case
        assert triage.home() == triage.bodies, case
        assert triage.left() == triage.others, case
        assert read_plan(triage.directory) is None, case
        assert TriageJournal(triage.directory).entries == {}, case


def test_what_a_consumer_took_after_a_kill_is_not_sent_twice_and_is_told(bus: Bus, tmp_path: Path) -> None:
    triage = Triage(bus, tmp_path / "journal", detects=False)
    assert killed(triage.run, "sent")
    taken = sorted(bus.bodies(triage.to))
    assert len(taken) == 2
    bus.dead_letter(triage.to, "consumed")
    summary = triage.run()
    assert (summary.unsure, summary.done, summary.is_ended) == (2, 2, True)
    assert sorted([*taken, *triage.home()]) == triage.bodies
    assert triage.left() == sorted([*taken, *triage.others])
    # The next run knows of them too.
    assert set(TriageJournal(triage.directory).entries) == {
        triage.key(message) for message in triage.chosen if message.body.decode() in taken
    }


def test_after_the_window_a_destination_is_looked_through_and_asked_no_more_than_that(bus: Bus, tmp_path: Path) -> None:
    triage = Triage(bus, tmp_path / "journal", detects=True)
    keys_ = [triage.key(message) for message in triage.chosen]
    TriageJournal(triage.directory).begin(keys_, at_ms=0)  # by a run long ago
    there = OutgoingMessage("came", application_properties={MARK: keys_[0].mark("ns")})
    bus.send(triage.to, [there])
    summary = triage.run()
    assert (summary.done, summary.unsure, bus.bodies(triage.to)) == (1, 3, ["came"])
    assert len(triage.left()) == 5


def test_a_destination_that_had_the_message_not_long_ago_takes_it_again(bus: Bus, tmp_path: Path) -> None:
    """With the id that it had it would be dropped as a duplicate of itself, and be nowhere."""
    queue = bus.queue("one", **DETECTS)
    bus.dead_letter(queue, "bad")
    triage = Triage(bus, tmp_path / "other", detects=True)
    triage.queue = triage.to = queue
    (message,) = bus.peek(dead_letters_of(queue))
    write_plan(triage.directory, TriagePlan({queue: [Planned(triage.key(message))]}, {queue: True}))
    assert triage.run().done == 1
    (back,) = bus.peek(queue)
    assert (back.body, back.message_id) == (b"one", f"m0~{triage.key(message).mark('ns')[:16]}")
    assert back.application_properties == {MARK: triage.key(message).mark("ns"), COUNT: 1}
    assert bus.peek(dead_letters_of(queue)) == []


@pytest.mark.parametrize("detects", [True, False], ids=["drops duplicates", "does not"])
def test_a_connection_that_is_lost_while_sending_costs_no_message_and_makes_none_twice(
    bus: Bus, tmp_path: Path, detects: bool
) -> None:
    triage = Triage(bus, tmp_path / "journal", detects=detects)
    faults = RemoteFaults(bus.broker.connection_string)
    broken = faults.add(Fault("drop", triage.to, ["send"], after=1, count=1))
    summary = triage.run()
    assert faults.remove(broken.number).hit == 1
    assert summary.is_ended
    assert summary.unsure == 0 if detects else summary.unsure <= 2
    assert sorted([*triage.home(), *triage.left()]) == sorted([*triage.bodies, *triage.others])


def test_a_message_that_is_refused_stays_and_its_neighbours_go(bus: Bus, tmp_path: Path) -> None:
    triage = Triage(bus, tmp_path / "journal", detects=False)
    large = Edit("body", "string", "x" * 300_000)
    planned = [
        Planned(triage.key(message), (large,) if index == 0 else ()) for index, message in enumerate(triage.chosen)
    ]
    write_plan(triage.directory, TriagePlan({triage.queue: planned}, {triage.to: False}))
    summary = triage.run()
    assert (summary.done, summary.unsure) == (3, 0)
    ((reason, count, example),) = [(line["reason"], line["messages"], line["example"]) for line in summary.kept]
    assert "message-size-exceeded" in reason and (count, example) == (1, triage.chosen[0].sequence_number)
    assert triage.left() == sorted([triage.chosen[0].body.decode(), *triage.others])
    assert TriageJournal(triage.directory).entries == {}


def test_a_destination_that_is_not_there_ends_the_run_and_nothing_is_lost(bus: Bus, tmp_path: Path) -> None:
    triage = Triage(bus, tmp_path / "journal", detects=False)
    plan = read_plan(triage.directory)
    assert plan is not None
    write_plan(triage.directory, TriagePlan(plan.by_entity, {"nowhere": False}))
    triage.to = "nowhere"
    with pytest.raises(NamespaceError, match="there is no entity 'nowhere'"):
        triage.run()
    assert len(triage.left()) == 6
    assert read_plan(triage.directory) is not None


def test_a_purge_deletes_what_was_chosen_and_gives_back_the_rest(bus: Bus, tmp_path: Path) -> None:
    triage = Triage(bus, tmp_path / "unused", detects=False, lock_s=60.0)
    plan = read_plan(triage.directory)
    assert plan is not None
    gone = Planned(key_of(triage.queue, 999, 1))
    operations, summary = Operations(), PurgeSummary()
    plan.by_entity[triage.queue].append(gone)
    purge(connection_pool(), plan, PassOptions(access_of(bus), 0.0), operations, summary)
    assert (summary.done, summary.gone, summary.left, operations.count) == (4, 1, 0, 4)
    assert triage.left() == triage.others
    # Given back at once, and not counted as delivered.
    with bus.locked_by_another(triage.dead, 2) as held:
        assert [message.delivery_count for message in held] == [0, 0]


def test_messages_in_somebodys_lock_are_left_and_a_stop_ends_between_chunks(bus: Bus, tmp_path: Path) -> None:
    triage = Triage(bus, tmp_path / "journal", detects=False)
    plan = read_plan(triage.directory)
    assert plan is not None
    with bus.locked_by_another(triage.dead, 6):
        summary = PurgeSummary()
        purge(connection_pool(), plan, PassOptions(access_of(bus), 0.0), Operations(), summary)
        assert (summary.left, summary.gone, summary.done) == (4, 0, 0)
    stopped = threading.Event()
    stopped.set()
    purge(connection_pool(), plan, PassOptions(access_of(bus), 0.0, stopped=stopped), Operations(), PurgeSummary())
    assert len(triage.left()) == 6
    # More of others than may be held: what lies behind them is not reached.
    behind = PurgeSummary()
    last = {triage.queue: plan.by_entity[triage.queue][-1:]}
    purge(connection_pool(), TriagePlan(last), PassOptions(access_of(bus), 0.0, held_max=1), Operations(), behind)
    assert behind.left + behind.done == 1


# -- what is written down ---------------------------------------------------------------------------------------------


def keys(*numbers: int) -> Sequence[Any]:
    return [key_of("Orders", number, 10) for number in numbers]


def test_a_journal_is_read_as_it_was_written_and_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "FILES_MAX", 3)
    directory = JobDirectory(None, str(tmp_path))
    journal = TriageJournal(directory)
    journal.begin(keys(1, 2, 3), 100)
    journal.end(keys(1), keys(2))
    journal.begin(keys(2, 3), 200)
    again = TriageJournal(directory)
    assert [again.state(key) for key in keys(1, 2, 3, 4)] == [SENT, BEGUN, BEGUN, FREE]
    assert [again.entries[key].at_ms for key in keys(1, 2, 3)] == [100, 200, 100]
    for at_ms in range(20):
        again.begin(keys(10 + at_ms), at_ms)
        assert len(directory.names("journal")) <= 4
    again.remove(keys(1))
    again.compact()
    assert len(directory.names("journal")) == 1
    assert len(TriageJournal(directory).entries) == 22
    with pytest.raises(JobDirectoryError, match="another run is at work there"):
        journal.begin(keys(7), 300)
    directory.write("journal/000000099.json", "{")
    with pytest.raises(JobDirectoryError, match="cannot be read"):
        TriageJournal(directory)


def test_a_plan_that_was_not_written_to_its_end_is_none(tmp_path: Path) -> None:
    directory = JobDirectory(None, str(tmp_path))
    edits = (Edit("subject", "string", "a"), Edit("body", "binary", None))
    plan = TriagePlan({"Orders": [Planned(key, edits) for key in keys(1, 2)]}, {"to": True}, more=3)
    write_plan(directory, plan)
    found = read_plan(directory)
    assert found is not None
    assert (found.by_entity, found.new_ids, found.more, found.is_resumed) == (plan.by_entity, {"to": True}, 3, True)
    directory.remove("plan/ready.json")
    assert read_plan(directory) is None
    write_plan(directory, plan)
    directory.remove("plan/000000.json")
    with pytest.raises(JobDirectoryError, match="is missing"):
        read_plan(directory)


# -- the namespace ----------------------------------------------------------------------------------------------------


def test_entities_are_found_by_their_names_and_patterns_and_need_manage_for_those(bus: Bus) -> None:
    queue = bus.queue("x")
    bus.dead_letter(queue, "bad")
    topic = bus.topic("one", "two")
    bus.send(topic, [OutgoingMessage("t")])
    bus.dead_letter(f"{topic}/subscriptions/two", "bad")
    empty = bus.queue()
    directory = NamespaceDirectory(access_of(bus))
    every = directory.chosen(())
    assert queue in every and f"{topic}/subscriptions/two" in every
    assert empty not in every and f"{topic}/subscriptions/one" not in every
    assert directory.chosen((f"{topic}/*",)) == (f"{topic}/subscriptions/two",)
    assert directory.chosen((empty, f"{empty}/$DeadLetterQueue", "q*/none")) == (empty,)
    limited = NamespaceDirectory(Access(connection_string=bus.key(queue, ["Listen"])))
    assert limited.chosen((queue,)) == (queue,)
    with pytest.raises(OptionError, match="not the right Manage.*--entity"):
        limited.chosen(("*",))
    assert limited.destination(queue) == ResubmissionTarget(queue)
    detects = bus.queue(**DETECTS)
    assert directory.destination(detects) == ResubmissionTarget(detects, True, 600_000)
    assert directory.destination(queue).detects is False
    assert directory.destination("nowhere") == ResubmissionTarget("nowhere")


def test_a_connection_string_of_one_entity_is_for_its_dead_letters(bus: Bus) -> None:
    queue = bus.queue()
    text = f"{bus.key(queue, ['Listen'])};EntityPath={queue}"
    assert check(ShowConfig(connection_string=text)).entities == (queue,)
    with pytest.raises(OptionError, match="contradict each other"):
        check(ShowConfig((bus.queue(),), connection_string=text))


def test_a_subscription_is_not_sent_to() -> None:
    assert destination_problem("orders") is None
    assert "say --to events" in (destination_problem("events/subscriptions/audit") or "")
    assert "say where with --to" in (destination_problem("orders/$Transfer") or "")
    assert owner_of("/orders/$DeadLetterQueue") == "orders"
