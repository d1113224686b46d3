"""Batch reads through `format("servicebus")`, found without registration, on real Spark against a real broker."""

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from spillway.amqp.types import Int, Timestamp
from spillway.client import OutgoingMessage
from spillway.spark.source.settle import Settled, settle
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: "SparkSession", bus: Bus, entity: str, **options: Any) -> "DataFrame":
    return spark.read.format("servicebus").options(**bus.options, **options).load(entity)


def test_every_property_of_a_message_is_in_its_row(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue()
    sent = OutgoingMessage(
        b"\x00body",
        message_id="id",
        session_id="session",
        partition_key="session",
        subject="subject",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        correlation_id="correlation",
        content_type="text/plain",
        time_to_live_ms=3_600_000,
        application_properties={"n": Int(7), "when": Timestamp(1_700_000_000_000), "none": None},
    )
    bus.send(queue, [sent])
    (row,) = load(spark, bus, queue, includeRaw="true").collect()
    (stored,) = bus.peek(queue)
    assert stored.enqueued_time_ms is not None
    enqueued_s = stored.enqueued_time_ms / 1000
    assert row["enqueued_time"].timestamp() == enqueued_s
    assert row["expires_at"].timestamp() == enqueued_s + 3600
    assert bytes(row["raw"]) == stored.raw
    said = row.asDict()
    for name in ("enqueued_time", "expires_at", "raw", "namespace"):
        said.pop(name)
    assert said == {
        "entity": queue, "sequence_number": 1, "enqueued_sequence_number": 1, "state": "active", "delivery_count": 0,
        "lock_token": None, "locked_until": None, "message_id": "id", "session_id": "session",
        "partition_key": "session", "correlation_id": "correlation", "subject": "subject", "content_type": "text/plain",
        "to": "to", "reply_to": "reply", "reply_to_session_id": "reply session", "time_to_live_ms": 3_600_000,
        "scheduled_enqueue_time": None, "dead_letter_reason": None, "dead_letter_error_description": None,
        "dead_letter_source": None,
        "application_properties": {"n": "7", "when": "2023-11-14T22:13:20.000Z", "none": None},
        "property_types": {"n": "int", "when": "timestamp", "none": "null"},
        "body_type": "data", "body": bytearray(b"\x00body"),
    }  # fmt: skip


def test_several_entities_of_every_kind_are_read_at_once_and_left_as_they_were(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue("queue")
    dead = bus.queue("dead")
    bus.dead_letter(dead, "reason")
    topic = bus.topic("sub")
    bus.send(topic, [OutgoingMessage(b"topic")])
    backlog = bus.named_queue("primary-1/x-servicebus-transfer/0")
    bus.send(backlog, [OutgoingMessage(b"backlog")])
    entities = [queue, f"{dead}/$deadletterqueue", f"{topic}/subscriptions/sub", backlog]
    frame = load(spark, bus, ",".join(entities))
    rows = {row["entity"]: row for row in frame.collect()}
    assert {name: bytes(row["body"]).decode() for name, row in rows.items()} == dict(
        zip(entities, ["queue", "dead", "topic", "backlog"], strict=True)
    )
    assert rows[entities[1]]["dead_letter_reason"] == "reason"
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 4  # nothing was taken


def test_a_range_of_sequence_numbers_is_read_in_parts(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(1_300)])
    frame = load(spark, bus, queue, partitions=3, startAt=11, endAt=1_290, bodyFormat="string")
    assert frame.rdd.getNumPartitions() == 3
    assert [row["body"] for row in frame.orderBy("sequence_number").select("body").collect()] == [
        str(number) for number in range(10, 1_290)
    ]
    assert load(spark, bus, queue, maxMessages=7).count() == 7


def test_columns_that_nobody_asked_for_are_not_made(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue("one", "two")
    reader = spark.read.format("servicebus").options(**bus.options)
    rows = reader.schema("sequence_number long, message_id string").load(queue).collect()
    assert [tuple(row) for row in rows] == [(1, "m0"), (2, "m1")]
    without = load(spark, bus, queue, includeBody="false")
    assert "body" not in without.columns and without.count() == 2


def test_a_body_that_is_not_json_is_in_quarantine(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue('{"n": 1}', "{", b"\xff")
    frame = load(spark, bus, queue, bodyFormat="json")
    good = frame.where("body_error IS NULL").selectExpr("get_json_object(body, '$.n') AS n").collect()
    assert [row["n"] for row in good] == ["1"]
    bad = frame.where("body_error IS NOT NULL").orderBy("sequence_number").collect()
    assert [(row["body"], bytes(row["body_quarantine"])) for row in bad] == [(None, b"{"), (None, b"\xff")]
    assert "line 1 column 2" in bad[0]["body_error"] and "not UTF-8" in bad[1]["body_error"]


def test_a_task_has_many_sessions(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    names = [f"s{at:03d}" for at in range(120)]
    bus.send(queue, [OutgoingMessage(name, session_id=name) for name in names * 2])
    every = load(spark, bus, queue, sessions="*", bodyFormat="string")
    assert every.rdd.getNumPartitions() == 1
    assert [row["body"] for row in every.collect()] == names * 2
    some = load(spark, bus, queue, sessions="s001,s005", bodyFormat="string")
    assert sorted(row["body"] for row in some.collect()) == ["s001", "s001", "s005", "s005"]
    options = {"mode": "receiveanddelete", "allowLoss": "true", "sessions": "*", "bodyFormat": "string"}
    options["partitions"] = "4"  # so few would be one task's
    received = load(spark, bus, queue, **options).selectExpr("body", "spark_partition_id() AS task", "sequence_number")
    rows = received.collect()
    assert len({row["task"] for row in rows}) == 4
    assert {(row["body"], row["task"]) for row in rows} == {(name, at // 30) for at, name in enumerate(names)}
    for name in names:
        numbers = [row["sequence_number"] for row in rows if row["body"] == name]
        assert len(numbers) == 2 and numbers == sorted(numbers)
    assert bus.peek(queue) == []


def test_sessions_are_received_locked_and_settled_by_token(
    spark: "SparkSession", bus: Bus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage(name, session_id=name) for name in ("a", "b", "a")])
    path = str(tmp_path_factory.mktemp("sessions") / "rows")
    options = {**bus.options, "mode": "peeklock", "sessions": "*"}
    spark.read.format("servicebus").options(**options).load(queue).write.parquet(path)
    stored = spark.read.parquet(path)
    assert settle(stored, options) == Settled(3, 0)
    assert bus.peek(queue) == []


def test_locked_rows_are_settled_by_token_from_other_processes(
    spark: "SparkSession", bus: Bus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    queue = bus.queue(*[str(number) for number in range(700)])
    path = str(tmp_path_factory.mktemp("locked") / "rows")
    options = {**bus.options, "mode": "peeklock", "partitions": "2"}
    spark.read.format("servicebus").options(**options).load(queue).write.parquet(path)
    stored = spark.read.parquet(path)
    assert stored.selectExpr("count(DISTINCT sequence_number) AS n").collect()[0]["n"] == 700
    assert len(bus.peek(queue)) == 700  # nothing is settled by reading
    assert settle(stored.where("sequence_number % 7 = 0"), options, "dead_letter", reason="seven") == Settled(100, 0)
    assert {message.dead_letter_reason for message in bus.peek(f"{queue}/$deadletterqueue")} == {"seven"}
    # What is settled already is counted as lost, and does not keep its neighbours from being settled.
    assert settle(stored, options) == Settled(600, 100)
    assert bus.peek(queue) == []


def test_receive_and_delete_takes_what_it_reads(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue("one", "two", "three")
    frame = load(spark, bus, queue, mode="receiveanddelete", allowLoss="true", maxMessages=2, bodyFormat="string")
    assert sorted(row["body"] for row in frame.select("body", "lock_token").collect()) == ["one", "two"]
    assert bus.bodies(queue) == ["three"]


def test_an_empty_queue_is_an_empty_frame(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue()
    assert load(spark, bus, queue).count() == 0
    assert load(spark, bus, queue, mode="peeklock", maxWaitSeconds="0.1").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entity": "no-such-queue"}, "there is no entity 'no-such-queue' in this namespace"),
        ({"entity": "q", "entiy": "q"}, "there is no option 'entiy'. Did you mean entity"),
        ({"entity": "q", "mode": "receiveanddelete"}, "Say allowLoss=true"),
        ({"entity": "$sessions", "mode": "peeklock"}, r"'.*' requires sessions: set sessions to \* or to"),
        ({"entity": "$plain", "sessions": "*"}, "'.*' does not require sessions: leave"),
    ],
)
def test_what_is_wrong_is_said_when_the_query_is_analysed(
    spark: "SparkSession", bus: Bus, options: dict[str, str], said: str
) -> None:
    chosen = {**bus.options, **options}
    if chosen["entity"].startswith("$"):
        chosen["entity"] = bus.queue(requires_session=chosen["entity"] == "$sessions")
    with pytest.raises(PySparkException, match=said):
        spark.read.format("servicebus").options(**chosen).load()


def test_a_key_without_the_right_is_refused_when_the_query_is_analysed(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue("one")
    sender = bus.key(queue, ["Send"])
    with pytest.raises(PySparkException, match="it needs the right to listen"):
        spark.read.format("servicebus").options(connectionString=sender).load(queue)
    wrong = bus.options["connectionString"].replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    with pytest.raises(PySparkException, match="the key or token is not good for"):
        spark.read.format("servicebus").options(connectionString=wrong).load(queue)


def test_a_schema_with_another_column_is_refused(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue("one")
    reader = spark.read.format("servicebus").options(**bus.options)
    with pytest.raises(PySparkException, match="there is no column 'payload'; there are namespace, entity"):
        reader.schema("payload string").load(queue).collect()
    with pytest.raises(PySparkException, match="body is binary, not string"):
        reader.schema("body string").load(queue).collect()
