"""`make airflow`: the operator of spillway.airflow, run by Airflow's own harness against a broker.

Airflow is large and wants its own versions of much, so it has an environment of its own (build/airflow). There
`dag.test()` runs two DAGs (tools/airflow_dags.py): a capture whose summary the next task is handed, and a capture of an
entity that is not there, which has to fail at its first try. The jobs themselves run where Spark is.

    tools/airflow_check.py [--python build/airflow/bin/python] [--evidence docs/evidence/airflow.json]
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.client import OutgoingMessage, connect  # noqa: E402
from tests.tools.broker_process import BrokerProcess  # noqa: E402
from tests.tools.commit import commit  # noqa: E402

MESSAGES = 50
RUN_S_MAX = 900
INSTALL_S_MAX = 1_800
KEY = "SAS_KEY_VALUE"


def installed(python: Path) -> Path:
    """An environment with Airflow, made if there is none."""
    if not python.exists():
        say("installing Airflow into build/airflow: some 150 packages")
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        line = [str(python), "-m", "pip", "install", "-q", "apache-airflow>=3"]
        subprocess.run(line, check=True, timeout=INSTALL_S_MAX)
    return python


def program(directory: Path) -> Path:
    """`spillway` of this checkout, with its own Python and not Airflow's."""
    path = directory / "spillway"
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" -m spillway "$@"\n', encoding="utf-8"
    )
    path.chmod(0o755)
    return path


async def fill(connection_string: str) -> None:
    async with await connect(connection_string) as connection:
        sender = await connection.sender("orders")
        for number in range(MESSAGES):
            await sender.send(OutgoingMessage(b"x", message_id=f"m{number}"))


def run(python: Path, directory: Path) -> dict[str, Any]:
    with BrokerProcess(directory / "data", queues=["orders"]) as broker:
        asyncio.run(fill(broker.connection_string))
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}
        environment |= {
            "AIRFLOW_HOME": str(directory / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW_CONN_MY_BUS": json.dumps({"conn_type": "generic", "password": broker.connection_string}),
            "PYTHONPATH": str(ROOT / "src"),
            "SPILLWAY_PROGRAM": str(program(directory)),
            "SPILLWAY_OUT": str(directory / "out"),
        }
        step(python, ["-m", "airflow", "db", "migrate"], environment)
        (directory / "airflow" / "dags").mkdir(parents=True, exist_ok=True)
        dags = shutil.copy(ROOT / "tools" / "airflow_dags.py", directory / "airflow" / "dags")
        out, log = step(python, [str(dags)], environment)
    found: dict[str, Any] = {"commit": commit(), **json.loads(out.strip().splitlines()[-1])}
    good = {"messages": MESSAGES, "settled": MESSAGES, "lost": 0, "left": []}
    captured, wrong = found["runs"]["capture"], found["runs"]["wrong"]["capture"]
    found["key_in_log"] = KEY in log + out
    found["holds"] = (
        captured["capture"]["returned"] == good
        and captured["settled"]["returned"] == MESSAGES
        and (wrong["state"], wrong["tries"]) == ("failed", 1)
        and "there is no entity 'nowhere'" in log + out
        and not found["key_in_log"]
    )
    return found


def step(python: Path, arguments: list[str], environment: dict[str, str]) -> tuple[str, str]:
    say(" ".join(arguments[:4]))
    ended = subprocess.run(
        [str(python), *arguments], env=environment, capture_output=True, text=True, timeout=RUN_S_MAX
    )
    if ended.returncode != 0:
        raise SystemExit(f"airflow: ended with {ended.returncode}:\n{ended.stdout[-3000:]}{ended.stderr[-5000:]}")
    return ended.stdout, ended.stderr


def say(line: str) -> None:
    print(f"airflow: {line}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="The Airflow operator, run by Airflow's own harness.")
    parser.add_argument("--python", type=Path, default=ROOT / "build" / "airflow" / "bin" / "python")
    parser.add_argument("--evidence", type=Path, default=ROOT / "docs" / "evidence" / "airflow.json")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="spillway-airflow-"))
    try:
        found = run(installed(given.python), directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    given.evidence.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
