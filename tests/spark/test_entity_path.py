"""`EntityPath` in a connection string: the entity where none is given, and an error where another one is."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.spark.platform.access import OptionError
from spillway.spark.source.options import read_options, write_options
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "bm90IGEga2V5LCBidXQgaXQgbG9va3MgbGlrZSBvbmU="
STRING = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY}"


def of(entity_path: str, **options: str) -> dict[str, str]:
    return {"connectionString": f"{STRING};EntityPath={entity_path}", **options}


def test_the_path_is_the_entity_where_none_is_given(tmp_path: Path) -> None:
    assert read_options(of("orders")).entities == ("orders",)
    assert read_options(of("events/subscriptions/audit")).entities == ("events/subscriptions/audit",)
    assert read_options(of("a,b")).entities == ("a,b",)
    assert write_options(of("orders")).entity == "orders"
    secret = tmp_path / "bus"
    secret.write_text(of("/orders/")["connectionString"])
    assert read_options({"secretName": f"file:{secret}"}).entities == ("orders",)


@pytest.mark.parametrize("entity", ["orders", "Orders", "orders/$deadletterqueue", "orders/subscriptions/audit"])
def test_the_same_entity_and_what_belongs_to_it_may_be_named_as_well(entity: str) -> None:
    assert read_options(of("orders", entity=entity)).entities == (entity,)


@pytest.mark.parametrize("entity", ["bills", "orders2", "orders, bills"])
def test_another_entity_contradicts_and_both_are_named(entity: str) -> None:
    with pytest.raises(OptionError, match=r"entity=(bills|orders2) and EntityPath=orders of the connection") as raised:
        read_options(of("orders", entity=entity))
    assert KEY not in str(raised.value)


def test_a_write_goes_to_the_path_alone() -> None:
    with pytest.raises(OptionError, match="entity=bills and EntityPath=orders of the connection string contradict"):
        write_options(of("orders", path="bills"))
    with pytest.raises(OptionError, match="entityColumn=to sends each row .* EntityPath=orders of the connection"):
        write_options(of("orders", entityColumn="to"))


def test_neither_an_entity_nor_a_path_is_told_with_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="entity is missing: .*; the connection string has no EntityPath"):
        read_options({"connectionString": STRING})
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(OptionError, match="entity is missing: .* not known here: .*no environment variable NOWHERE"):
        read_options({"secretName": "env:NOWHERE"})
    assert read_options({"secretName": "env:NOWHERE", "entity": "orders"}).entities == ("orders",)


def test_a_string_of_one_queue_reads_and_writes_it_without_naming_it(spark: "SparkSession", bus: Bus) -> None:
    queue = bus.queue("one", "two")
    options = {"connectionString": f"{bus.key(queue, ['Send', 'Listen']).rstrip(';')};EntityPath={queue}"}
    frame = spark.read.format("servicebus").options(**options).option("bodyFormat", "string").load()
    assert sorted(row["body"] for row in frame.select("body").collect()) == ["one", "two"]
    rows = spark.createDataFrame([("m3", "three")], "message_id string, body string")
    rows.write.format("servicebus").options(**options).mode("append").save()
    assert bus.bodies(queue) == ["one", "two", "three"]
