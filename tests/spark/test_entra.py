"""Entra ID on Spark: each process asks for tokens itself, and neither token nor secret is anywhere else."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from spillway.client import parse_connection_string
from spillway.client.credentials import sign_sas
from spillway.spark.jobs.capture import CaptureConfig, run
from spillway.spark.platform.access import OptionError
from spillway.spark.source.options import read_options
from tests.spark.bus import Bus
from tests.spark.test_canaries import files_with
from tests.tools.token_authority import TokenAuthority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "canary~secret-of.an.application"


@pytest.fixture
def identity(bus: Bus, machine_identity: TokenAuthority) -> str:
    """A connection string with this machine's identity. Its tokens are signatures, which a broker of ours knows."""
    target = parse_connection_string(bus.broker.connection_string)
    assert target.key_name is not None and target.key is not None
    token = sign_sas(f"sb://localhost:{bus.broker.port}/", target.key_name, target.key, 4_000_000_000)
    machine_identity.make_token = lambda: token
    machine_identity.asked.clear()
    return f"Endpoint=sb://localhost:{bus.broker.port};UseDevelopmentEmulator=true;Authentication=ManagedIdentity"


def test_reading_writing_and_capturing_with_the_identity_of_the_machine(
    spark: "SparkSession",
    bus: Bus,
    identity: str,
    machine_identity: TokenAuthority,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    event_log: Path,
) -> None:
    queue, target = bus.queue("one", "two"), bus.queue()
    frame = spark.read.format("servicebus").option("connectionString", identity).load(queue)
    frame.createOrReplaceTempView("by_identity")
    plans = [
        spark.sql(f"EXPLAIN {kind} SELECT * FROM by_identity").collect()[0][0] for kind in ("EXTENDED", "FORMATTED")
    ]
    assert frame.count() == 2
    copies = frame.selectExpr("message_id", "body")
    copies.write.format("servicebus").option("connectionString", identity).mode("append").save(target)
    assert sorted(bus.bodies(target)) == ["one", "two"]
    summary = run(spark, CaptureConfig((queue,), str(tmp_path / "lake"), connection_string=identity))
    assert (summary.settled, summary.lost, bus.peek(queue)) == (2, 0, [])
    # A process keeps its token: several were asked for by several processes, beside this one.
    assert len(machine_identity.asked) > 1
    token = machine_identity.make_token()
    out, err = capfd.readouterr()
    assert not [text for text in (*plans, str(frame), out, err) if token in text]
    assert files_with(tmp_path, token) == [] and files_with(event_log, token) == []


def test_an_application_that_gets_no_token_is_told_without_its_secret(
    spark: "SparkSession", bus: Bus, capfd: pytest.CaptureFixture[str], event_log: Path
) -> None:
    text = (
        f"Endpoint=sb://localhost:{bus.broker.port};UseDevelopmentEmulator=true;Authentication=ClientSecret;"
        f"TenantId=t;ClientId=c;ClientSecret={SECRET};AuthorityHost=https://localhost:9"
    )
    with pytest.raises(PySparkException, match="Entra ID cannot be asked for a token now") as raised:
        spark.read.format("servicebus").option("connectionString", text).load(bus.queue())
    out, err = capfd.readouterr()
    assert SECRET not in str(raised.value) + out + err
    assert files_with(event_log, SECRET) == []


def test_options_with_an_identity_show_no_secret_and_name_what_is_wrong() -> None:
    good = f"Endpoint=sb://h;Authentication=ClientSecret;TenantId=t;ClientId=c;ClientSecret={SECRET}"
    assert SECRET not in repr(read_options({"connectionString": good, "entity": "q"}))
    with pytest.raises(OptionError, match="connectionString: TenantId .* is not for Authentication=") as raised:
        read_options({"connectionString": good.replace("=ClientSecret;", "=ManagedIdentity;"), "entity": "q"})
    assert SECRET not in str(raised.value)
