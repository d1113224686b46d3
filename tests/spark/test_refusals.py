"""Rows that can never be sent: found before anything of their chunk is sent, and no harm to their neighbours."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from spillway.amqp.types import Timestamp
from spillway.client import ClientError, OutgoingMessage
from spillway.client.faults import Fault, RemoteFaults
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.queries import run_to_end
from spillway.spark.platform.reasons import reason_of
from spillway.spark.source.options import WriteOptions, write_options
from spillway.spark.source.outgoing import MessageMaker
from spillway.spark.source.refusals import RowsRefused
from spillway.spark.source.sink import SentMessages, check_destination, conclude, send_rows
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {
    "message_id": pa.string(),
    "body": pa.string(),
    "session_id": pa.string(),
    "partition_key": pa.string(),
    "time_to_live_ms": pa.int64(),
    "scheduled_enqueue_time": pa.timestamp("us", "UTC"),
    "application_properties": pa.map_(pa.string(), pa.string()),
    "property_types": pa.map_(pa.string(), pa.string()),
    "queue": pa.string(),
}
TEXTS = MapType(StringType(), StringType())
TYPES: dict[str, DataType] = {
    "time_to_live_ms": LongType(),
    "scheduled_enqueue_time": TimestampType(),
    "application_properties": TEXTS,
    "property_types": TEXTS,
}
SCHEMA = StructType([StructField(name, TYPES.get(name, StringType())) for name in COLUMNS])
LARGE = {"message_id": "large", "body": "x" * 300_000}


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    filled = [{"message_id": f"id {index}", "body": "good", **row} for index, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(filled, schema=pa.schema(list(COLUMNS.items())))


def options(bus: Bus, entity: str = "", **others: Any) -> WriteOptions:
    given = {"entity": entity} if entity else {"entityColumn": "queue"}
    return write_options({**bus.options, **given, **others})


def send(chosen: WriteOptions, *batches: pa.RecordBatch) -> SentMessages:
    return send_rows(chosen, SCHEMA, iter(batches))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"message_id": "i" * 129}, "message_id has 129 characters; at most 128 are allowed"),
        ({"message_id": None}, "a row has no message_id; messageId=content makes one"),
        ({"message_id": ""}, "a row has no message_id"),
        ({"body": None}, r"body is null; coalesce\(body, ''\) sends an empty one"),
        ({"session_id": "s" * 129}, "session_id has 129 characters; at most 128 are allowed"),
        ({"partition_key": "p" * 129}, "partition_key has 129 characters; at most 128 are allowed"),
        ({"time_to_live_ms": 0}, "time_to_live_ms is 0: it has to be from 1"),
        ({"time_to_live_ms": 2**32}, "time_to_live_ms is 4294967296: it has to be from 1 to 4294967295"),
        ({"application_properties": [("a", "x" * 33_000)]}, "an application property has 33,008 bytes encoded"),
        (
            {"application_properties": [(name, "x" * 22_000) for name in "abc"]},
            r"application_properties have 66,0\d\d bytes encoded; at most 65,536 are allowed",
        ),
        (
            {"application_properties": [("f", "1e300")], "property_types": [("f", "float")]},
            "it cannot be encoded: ",
        ),
        (
            {"application_properties": [("n", "many")], "property_types": [("n", "int")]},
            "application property 'n': a text of 4 characters is no int",
        ),
    ],
)
def test_what_every_entity_refuses_is_known_before_it_is_sent(row: dict[str, Any], said: str) -> None:
    maker = MessageMaker(SCHEMA, write_options({"secretName": "BUS", "entity": "q"}))
    first, bad, last = maker.rows(batch_of({}, row, {}))
    assert (first.problem, last.problem) == (None, None)
    with pytest.raises(ValueError, match=said):
        raise ValueError(bad.problem)


def test_a_time_that_no_calendar_has_is_the_fault_of_its_row_alone() -> None:
    maker = MessageMaker(SCHEMA, write_options({"secretName": "BUS", "entity": "q"}))
    batch = batch_of({}, {}, {"scheduled_enqueue_time": datetime(2099, 1, 1, tzinfo=UTC)})
    late = pa.array([None, 400_000_000_000_000_000, None], pa.int64()).cast(COLUMNS["scheduled_enqueue_time"])
    batch = batch.set_column(batch.schema.get_field_index("scheduled_enqueue_time"), "scheduled_enqueue_time", late)
    problems = [row.problem for row in maker.rows(batch)]
    assert problems[0] is None
    assert problems[2] is None
    assert str(problems[1]).startswith("scheduled_enqueue_time is outside of what can be sent")


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage("x", message_id="i" * 129),
        OutgoingMessage("x", session_id="s" * 129),
        OutgoingMessage("x", partition_key="p" * 129),
        OutgoingMessage("x", application_properties={"a": "x" * 33_000}),
        OutgoingMessage("x", application_properties=dict.fromkeys("abc", "x" * 22000)),
        OutgoingMessage("x", annotations={"x-opt-scheduled-enqueue-time": Timestamp(253_402_300_800_000)}),
        OutgoingMessage("x" * 300_000),
    ],
    ids=lambda message: str(message)[:40],
)
def test_the_broker_refuses_the_same(bus: Bus, message: OutgoingMessage) -> None:
    with pytest.raises(ClientError):
        bus.send(bus.queue(), [message])


def test_a_row_that_is_known_to_be_refused_keeps_its_chunk_back_and_does_not_fail_its_task(bus: Bus) -> None:
    queue = bus.queue()
    chosen = options(bus, queue)
    sent = send(chosen, batch_of({}, LARGE, {"message_id": "i" * 200}, {}))
    assert (sent.count, sent.refused.count, sent.quarantined.count) == (0, 2, 0)
    assert bus.peek(queue) == []
    with pytest.raises(RowsRefused) as raised:
        conclude(chosen, [sent, None])
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith("2 of 4 messages were not accepted. The first, 'large' of 300,0")
    assert "takes at most 262,144; 1 more. " in text


def test_chunks_before_it_are_sent_once_and_none_after_it(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spillway.spark.source.sink.ROWS_AT_A_TIME", 2)
    queue = bus.queue()
    sent = send(options(bus, queue), batch_of({}, {}, {}, LARGE, {}, {}))
    assert (sent.count, sent.refused.count) == (2, 1)
    assert [message.message_id for message in bus.peek(queue)] == ["id 0", "id 1"]


def test_what_only_the_service_knows_is_the_fault_of_the_message_alone(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    sent = send(options(bus, queue), batch_of({"session_id": "a"}, {}, {"session_id": "b"}))
    assert (sent.count, sent.refused.count) == (2, 1)
    assert "'id 1'" in sent.refused.reasons[0]
    assert "session" in sent.refused.reasons[0]
    assert sorted(str(message.message_id) for message in bus.peek(queue)) == ["id 0", "id 2"]


def test_one_message_that_makes_the_service_end_the_link_is_found_among_its_neighbours(bus: Bus) -> None:
    queue = bus.queue()
    condition = "amqp:link:message-size-exceeded"
    # It strikes the three together, and then the first that is sent for itself.
    fault = Fault("detach", queue, ["send"], condition=condition, count=2)
    with RemoteFaults(bus.broker.connection_string).planted(fault):
        sent = send(options(bus, queue), batch_of({}, {}, {}))
    assert (sent.count, sent.refused.count) == (2, 1)
    assert "'id 0'" in sent.refused.reasons[0]
    assert {message.message_id for message in bus.peek(queue)} == {"id 1", "id 2"}


def test_a_row_that_names_no_entity_there_is_refused_alone(bus: Bus) -> None:
    queue = bus.queue()
    rows = batch_of({"queue": queue}, {"queue": "no-such-queue"}, {"queue": None}, {"queue": "a/$management"})
    with_nothing = send(options(bus), rows)
    assert (with_nothing.count, with_nothing.refused.count) == (0, 3)
    first, second, third = with_nothing.refused.reasons
    assert "there is no entity 'no-such-queue' in this namespace" in second + first + third
    assert "a row has no entity in column queue" in first + second + third
    assert "is a node of the service" in first + second + third


def test_refused_rows_are_in_one_file_with_their_reasons_and_can_be_mended(bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    chosen = options(bus, queue, onRefused="quarantine", quarantine=str(tmp_path / "refused"))
    check_destination(chosen)
    properties = {"application_properties": [("a", "1")]}
    sent = send(chosen, batch_of({}, {**LARGE, **properties}), batch_of({"message_id": "other"}, {"body": None}))
    assert (sent.count, sent.refused.count, sent.quarantined.count) == (2, 0, 2)
    assert [message.message_id for message in bus.peek(queue)] == ["id 0", "other"]
    (file,) = (tmp_path / "refused").iterdir()
    large, null = pq.read_table(file).to_pylist()
    assert (large["message_id"], len(large["body"]), large["application_properties"]) == (
        "large",
        300_000,
        [("a", "1")],
    )
    assert (large["refused_entity"], null["refused_reason"]) == (
        queue,
        "body is null; coalesce(body, '') sends an empty one",
    )
    assert large["refused_time"] is not None
    conclude(chosen, [sent])  # nothing to fail for


def test_no_file_is_left_by_a_task_that_fails(bus: Bus, tmp_path: Path) -> None:
    chosen = options(bus, bus.queue(), onRefused="quarantine", quarantine=f"file:{tmp_path}")

    def batches() -> Any:
        yield from [batch_of(LARGE)] * 3
        raise OSError("the rows end here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spillway.spark.source.sink.ROWS_AT_A_TIME", 1)
        with pytest.raises(OSError, match="the rows end here"):
            send_rows(chosen, SCHEMA, batches())
    assert list(tmp_path.iterdir()) == []


def test_refused_rows_are_messages_of_a_queue(bus: Bus) -> None:
    queue, aside = bus.queue(), bus.queue(requires_duplicate_detection=True)
    chosen = options(bus, queue, onRefused="quarantine", quarantine=f"queue:{aside}")
    rows = batch_of({"message_id": "i" * 129, "body": "kept", "application_properties": [("a", "1")]}, {})
    for _ in range(2):  # a task that is tried again says the same
        sent = send(chosen, rows)
        assert (sent.count, sent.refused.count, sent.quarantined.count) == (1, 0, 1)
    (message,) = bus.peek(aside)
    found = json.loads(message.body)
    assert found["reason"] == "message_id has 129 characters; at most 128 are allowed"
    assert found["entity"] == queue
    assert (found["row"]["body"], found["row"]["application_properties"]) == ("kept", {"a": "1"})


def test_what_the_queue_of_the_quarantine_does_not_take_ends_the_write(bus: Bus) -> None:
    queue, aside = bus.queue(), bus.queue()
    sent = send(options(bus, queue, onRefused="quarantine", quarantine=f"queue:{aside}"), batch_of(LARGE, {}))
    assert (sent.count, sent.refused.count, sent.quarantined.count) == (1, 1, 0)
    assert "The quarantine does not take it either" in sent.refused.reasons[0]


def test_a_quarantine_that_cannot_be_used_is_said_before_anything_is_sent(bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="it cannot be written there: "):
        check_destination(options(bus, queue, onRefused="quarantine", quarantine=str(tmp_path / "file" / "x")))
    with pytest.raises(NamespaceError, match="there is no entity 'no-such-queue'"):
        check_destination(options(bus, queue, onRefused="quarantine", quarantine="queue:no-such-queue"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"onRefused": "ignore"}, "onRefused='ignore': it is fail or quarantine"),
        ({"onRefused": "quarantine"}, "belong together"),
        ({"quarantine": "/refused"}, "belong together"),
        ({"onRefused": "quarantine", "quarantine": "refused"}, "quarantine='refused': the absolute path"),
        ({"onRefused": "quarantine", "quarantine": "s3a://b/refused"}, "quarantine='s3a://b/refused': the absolute"),
        ({"onRefused": "quarantine", "quarantine": "queue:"}, "the name of the queue is missing"),
        ({"onRefused": "quarantine", "quarantine": "queue:Q"}, "a queue cannot take what it refuses"),
    ],
)
def test_options_of_a_quarantine_that_make_no_sense_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        write_options({"secretName": "BUS", "entity": "q", **given})


def test_a_stream_with_a_row_that_can_never_be_sent_sends_its_neighbours_once(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    """It was started three times: with one task of four attempts each, neighbours were there up to twelve times."""
    source, target = bus.queue("one", "two", "three"), bus.queue()
    aside = tmp_path / "refused"
    columns = ["message_id", "IF(message_id = 'm1', repeat('x', 300000), string(body)) AS body"]

    def start(**others: str) -> Callable[[], Any]:
        frame = spark.readStream.format("servicebus").options(**bus.options).load(source).selectExpr(*columns)
        writer = frame.writeStream.format("servicebus").options(**bus.options, **others)
        return lambda: writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(target)

    for _ in range(2):
        with pytest.raises(PySparkException, match="1 of 3 messages were not accepted. The first, 'm1'") as raised:
            run_to_end(start(), 90)
        assert "\n" not in reason_of(raised.value)
        assert bus.peek(target) == []
    run_to_end(start(onRefused="quarantine", quarantine=str(aside)), 90)
    assert bus.bodies(target) == ["one", "three"]
    (row,) = spark.read.parquet(str(aside)).collect()
    assert (row["message_id"], row["refused_entity"]) == ("m1", target)


def test_a_row_that_the_service_refuses_does_not_multiply_its_neighbours(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    rows = [("a", "a", "s"), ("b", "b", None), ("c", "c", "s")]
    frame = spark.createDataFrame(rows, "message_id string, body string, session_id string").coalesce(1)
    with pytest.raises(PySparkException) as raised:
        frame.write.format("servicebus").options(**bus.options).mode("append").save(queue)
    assert reason_of(raised.value).startswith("1 of 3 messages were not accepted. The first, 'b' of ")
    assert sorted(bus.bodies(queue)) == ["a", "c"]  # each was there four times
    assert "Traceback" not in str(raised.value)
    assert "RowsRefused: 1 of 3 messages" in str(raised.value)


def test_an_error_for_a_user_has_no_traceback(spark: "SparkSession", bus: Bus) -> None:
    for entity, said in (("nowhere", "there is no entity 'nowhere'"), ("a,,b", "a path is empty")):
        with pytest.raises(PySparkException, match=said) as raised:
            spark.read.format("servicebus").options(**bus.options).load(entity)
        assert "Traceback" not in str(raised.value)
