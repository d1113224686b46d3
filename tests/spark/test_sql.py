"""SQL alone: the statements of the guide, and what it says that Spark does not do."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def statements() -> list[str]:
    (text,) = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [statement.strip() for statement in text.split(";") if statement.strip()]


@pytest.fixture
def secret(bus: Bus, tmp_path: Path) -> str:
    """Workers that run already do not see a new variable: here the secret is in a file."""
    file = tmp_path / "bus"
    file.write_text(bus.options["connectionString"])
    return f"file:{file}"


def test_the_guides_statements_read_and_write(spark: "SparkSession", bus: Bus, secret: str) -> None:
    orders, copies = bus.queue('{"customer": "ada", "total": 120}', '{"customer": "bob", "total": 9}'), bus.queue()
    names = {"entity 'orders'": f"entity '{orders}'", "entity 'copies'": f"entity '{copies}'", "env:BUS": secret}
    answers = []
    for statement in statements():
        for name, better in names.items():
            statement = statement.replace(name, better)
        answers.append(spark.sql(statement).collect())
    assert [len(rows) for rows in answers] == [0, 1, 1, 0, 0, 0]
    assert answers[1][0]["messages"] == 2
    assert answers[2][0]["customer"] == "ada"
    sent = bus.peek(copies)
    assert [message.message_id for message in sent] == ["m0", "m1", "by-hand-1"]
    assert sent[0].application_properties == {"copied": "yes"}
    assert sent[2].body == b'{"total": 1}'


def test_what_the_guide_says_that_cannot_be_is_refused_with_a_reason(
    spark: "SparkSession", bus: Bus, secret: str
) -> None:
    queue = bus.queue("one")
    options = f"USING servicebus OPTIONS (secretName '{secret}', entity '{queue}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW one (message_id STRING, body BINARY) {options}")
    with pytest.raises(PySparkException, match="CREATE TABLE … USING servicebus: Spark does not hand the options"):
        spark.sql(f"CREATE TABLE lasting {options}")
    spark.sql(f"CREATE TABLE lasting (message_id STRING) {options}")
    try:
        with pytest.raises(PySparkException, match="none is there. If this is a table: Spark does not hand"):
            spark.sql("SELECT * FROM lasting").collect()
        told = spark.sql(f"SELECT * FROM lasting WITH (secretName = '{secret}', entity = '{queue}')").collect()
        assert [row["message_id"] for row in told] == ["m0"]
    finally:
        spark.sql("DROP TABLE lasting")
    for statement, said in (
        ("INSERT INTO one SELECT 'only one column'", "not enough data columns"),
        ("INSERT INTO one VALUES ('m', 'text')", "Cannot safely cast `body`"),
        ("INSERT OVERWRITE one VALUES ('m', X'41')", "messages cannot be overwritten|does not support"),
        ("CREATE VIEW lasting AS SELECT * FROM one", "references to the temporary object"),
        ("SELECT * FROM STREAM(one)", "not a temp view of streaming logical plan"),
    ):
        with pytest.raises(AnalysisException, match=said):
            spark.sql(statement).collect()
    assert bus.bodies(queue) == ["one"]
