"""Whether Delta Lake or Apache Iceberg run on the Spark that is installed: `tools/table_formats.py --delta JARS …`.

A capture could write tables of either, if it could be read again. Neither comes with PySpark, and each release of them
is built for certain releases of Spark. This asks of jars that were fetched by hand what a capture would need of them: a
table made of rows, a second batch, the rows counted, what was committed before found again. Each format is asked in a
JVM of its own.

    tools/table_formats.py --delta delta-spark_….jar,delta-storage-….jar,… --iceberg iceberg-spark-runtime-….jar

Writes docs/evidence/table-formats.json: each step, and the error of those that failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.spark.platform.session import build_session  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
CATALOG: Final = "spark.sql.catalog"
OK: Final = "ok"
SECONDS_MAX: Final = 600
ERROR_MAX: Final = 400

Steps = dict[str, Callable[[], Any]]


def settings(kind: str, jars: str, directory: Path) -> dict[str, str]:
    """As the guides of the formats have them."""
    if kind == DELTA:
        return {
            "spark.jars": jars,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            f"{CATALOG}.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    return {
        "spark.jars": jars,
        f"{CATALOG}.lake": "org.apache.iceberg.spark.SparkCatalog",
        f"{CATALOG}.lake.type": "hadoop",
        f"{CATALOG}.lake.warehouse": str(directory / "warehouse"),
    }


def delta_steps(spark: "SparkSession", rows: "DataFrame", path: str) -> Steps:
    def append(version: int) -> None:
        options = {"txnAppId": "capture", "txnVersion": str(version)}
        rows.write.format(DELTA).mode("append").partitionBy("day").options(**options).save(path)

    return {
        "a table is made": lambda: append(1),
        "a second batch": lambda: append(2),
        "the rows are counted": lambda: spark.read.format(DELTA).load(path).count(),
        "what was committed is found": lambda: spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect(),
    }


def iceberg_steps(spark: "SparkSession", rows: "DataFrame") -> Steps:
    table = "lake.captured.orders"
    return {
        "a table is made": lambda: rows.writeTo(table).using(ICEBERG).partitionedBy(rows["day"]).create(),
        "a second batch": lambda: rows.writeTo(table).option("snapshot-property.batch", "2").append(),
        "the rows are counted": lambda: spark.table(table).count(),
        "what was committed is found": lambda: spark.table(f"{table}.snapshots").select("summary").collect(),
    }


def ask(kind: str, jars: str, directory: Path) -> None:
    """In this process: the steps, as one line of JSON."""
    spark = build_session("table formats", master="local[2,4]", config=settings(kind, jars, directory))
    rows = spark.range(10).selectExpr("id", "current_date() AS day", "map('a', 'b') AS properties")
    steps = delta_steps(spark, rows, str(directory / "table")) if kind == DELTA else iceberg_steps(spark, rows)
    told = {name: outcome(step) for name, step in steps.items()}
    print(json.dumps({"spark": spark.version, "steps": told}), flush=True)


def outcome(step: Callable[[], Any]) -> str:
    try:
        step()
    except Exception as error:
        return error_line(str(error))
    return OK


def error_line(text: str) -> str:
    """The line that names the error: behind what Py4J says of the call, without the stack."""
    lines = [line.removeprefix(": ").strip() for line in text.splitlines() if line.strip()]
    is_of_java = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    found = lines[1] if is_of_java else (lines or ["an error without words"])[0]
    return found[:ERROR_MAX]


def asked(kind: str, jars: str) -> dict[str, Any]:
    """In a process of its own."""
    about = {"jars": [Path(jar).name for jar in jars.split(",")]}
    with tempfile.TemporaryDirectory(prefix="spillway-tables-") as directory:
        line = [sys.executable, __file__, "--ask", kind, "--jars", jars, "--directory", directory]
        ended = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX)
    if ended.returncode or not ended.stdout.strip():
        return {**about, "runs": False, "steps": {"a session is started": f"status {ended.returncode}"}}
    told = json.loads(ended.stdout.splitlines()[-1])
    return {**about, **told, "runs": set(told["steps"].values()) == {OK}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delta", help="its jars, with commas between them")
    parser.add_argument("--iceberg", help="its jar")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "table-formats.json")
    parser.add_argument("--ask", choices=(DELTA, ICEBERG), help=argparse.SUPPRESS)
    parser.add_argument("--jars", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.ask:
        ask(chosen.ask, chosen.jars, chosen.directory)
        return 0
    given = {kind: jars for kind, jars in ((DELTA, chosen.delta), (ICEBERG, chosen.iceberg)) if jars}
    if not given:
        parser.error("give the jars of at least one: --delta or --iceberg")
    found = {kind: asked(kind, jars) for kind, jars in given.items()}
    about = {"commit": commit(), "machine": machine(), "date": datetime.now(UTC).date().isoformat()}
    chosen.out.write_text(json.dumps({**about, "formats": found}, indent=1) + "\n", encoding="utf-8")
    for kind, each in found.items():
        print(f"table-formats: {kind} {'runs' if each['runs'] else 'does not run'} ({', '.join(each['jars'])})")
    print(f"table-formats: written to {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
