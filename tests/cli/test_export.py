"""`spillway export`: what a running broker holds, as a file that another one starts with."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.pytest_plugin import LocalNamespace
from tests.emulator_config.sample_config import SAMPLE
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess


def export(*arguments: str, connection_string: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT), "SPILLWAY_CONNECTION_STRING": connection_string}
    line = [sys.executable, "-m", "spillway", "export", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=env)


def entities(broker: BrokerProcess) -> list[Any]:
    """As the administration client sees them, without their times."""
    found: list[Any] = []
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    ) as client:
        found += [dict(queue) for queue in client.list_queues()]
        for topic in client.list_topics():
            found.append(dict(topic))
            for subscription in client.list_subscriptions(topic.name):
                found.append(dict(subscription))
                for rule in client.list_rules(topic.name, subscription.name):
                    found.append((rule.name, vars(rule.filter), vars(rule.action) if rule.action else None))
    return [str(each) for each in found]


def test_a_broker_that_starts_with_the_file_of_another_is_its_twin(tmp_path: Path) -> None:
    first = tmp_path / "a.json"
    first.write_text(json.dumps(SAMPLE))
    files, seen = [first], []
    for name in ("b", "c"):
        with BrokerProcess(tmp_path / name, config=files[-1]) as broker:
            files.append(tmp_path / f"{name}.json")
            done = export("--data", str(broker.data), "--output", str(files[-1]))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            seen.append(entities(broker))
    assert files[1].read_text() == files[2].read_text()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 10
    said = json.loads(files[1].read_text())["UserConfig"]["Namespaces"][0]
    given: Any = SAMPLE["UserConfig"]["Namespaces"][0]
    assert said["Queues"][0]["Properties"]["LockDuration"] == given["Queues"][0]["Properties"]["LockDuration"]
    theirs = given["Topics"][0]["Subscriptions"]
    for mine, each in zip(said["Topics"][0]["Subscriptions"], theirs, strict=True):
        assert (mine["Name"], mine["Properties"], mine["Rules"]) == (
            each["Name"],
            each["Properties"],
            each.get("Rules", []),
        )


def test_the_file_goes_to_stdout_and_what_it_cannot_say_to_stderr() -> None:
    with LocalNamespace("shown") as namespace:
        namespace.queue("orders", user_metadata="ours")
        done = export(connection_string=namespace.connection_string)
    assert done.returncode == 0
    config = json.loads(done.stdout)
    assert config["UserConfig"]["Namespaces"][0]["Queues"][0]["Name"] == "orders"
    assert done.stderr == "spillway: warning: queue orders: Config.json cannot express UserMetadata\n"


def test_all_namespaces_of_a_directory_are_one_file_unless_one_is_named(tmp_path: Path) -> None:
    with LocalNamespace("one") as one, LocalNamespace("two") as two:
        one.queue("a")
        two.queue("b")
        facts = {"host": "localhost", "is_clear_text": True, "is_development": True}
        ports = {"one": one.port, "two": two.port}
        (tmp_path / "running.json").write_text(json.dumps({**facts, "ports": ports}))
        both = json.loads(export("--data", str(tmp_path)).stdout)
        alone = json.loads(export("--data", str(tmp_path), "--namespace", "two").stdout)
    names = [(each["Name"], each["Queues"][0]["Name"]) for each in both["UserConfig"]["Namespaces"]]
    assert names == [("one", "a"), ("two", "b")]
    assert [each["Name"] for each in alone["UserConfig"]["Namespaces"]] == ["two"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--data", "nowhere"],
            "spillway: nowhere: no broker has served from here yet; start one with: spillway serve\n",
        ),
        (
            ["--output", "no/such/directory.json"],
            "spillway: --output no/such/directory.json: No such file or directory\n",
        ),
    ],
)
def test_what_keeps_it_from_writing_is_one_line(arguments: list[str], said: str) -> None:
    with LocalNamespace() as namespace:
        given = "" if "--data" in arguments else namespace.connection_string
        done = export(*arguments, connection_string=given)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
