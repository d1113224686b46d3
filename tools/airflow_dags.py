"""Runs inside Airflow's own Python: DAGs with `PipelineOperator`, by its `dag.test()`. Called by airflow_check.py.

The file lies in Airflow's folder of DAGs and is a program too: it prints what became of each run, as JSON.
SPILLWAY_PROGRAM is the command line, SPILLWAY_OUT a directory; the connection string is AIRFLOW_CONN_MY_BUS.
"""

import datetime
import json
import os
from typing import Any

from airflow.sdk import DAG, task

from spillway.airflow import PipelineOperator

PROGRAM = os.environ.get("SPILLWAY_PROGRAM", "spillway")
OUT = os.environ.get("SPILLWAY_OUT", "out")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def capture_dag(program: str, out: str) -> Any:
    """A capture, and a task that is handed its summary."""
    with DAG("capture", schedule=None, start_date=START) as dag:
        captured = PipelineOperator(
            task_id="capture",
            job="capture",
            arguments=["--secret", "env:BUS", "--entity", "orders", "--out", f"{out}/{{{{ dag.dag_id }}}}"],
            connections={"BUS": "my_bus"},
            command=[program],
        )

        @task
        def settled(summary: dict[str, Any]) -> int:
            return int(summary["settled"])

        settled(captured.output)
    return dag


def wrong_dag(program: str, out: str) -> Any:
    """An entity that is not there: nothing that another try could mend."""
    with DAG("wrong", schedule=None, start_date=START) as dag:
        PipelineOperator(
            task_id="capture",
            job="capture",
            arguments=["--secret", "env:BUS", "--entity", "nowhere", "--out", f"{out}/wrong"],
            connections={"BUS": "my_bus"},
            command=[program],
            retries=3,
            retry_delay=datetime.timedelta(seconds=1),
        )
    return dag


CAPTURE = capture_dag(PROGRAM, OUT)
WRONG = wrong_dag(PROGRAM, OUT)


def told(dag: Any) -> dict[str, Any]:
    """By task: its state, how often it was tried, and what it returned."""
    run = dag.test()
    found = {}
    for instance in run.get_task_instances():
        value = None
        if instance.state == "success":
            value = instance.xcom_pull(task_ids=instance.task_id)
        if isinstance(value, dict):
            value = {name: value[name] for name in ("messages", "settled", "lost", "left") if name in value}
        found[instance.task_id] = {"state": str(instance.state), "tries": instance.try_number, "returned": value}
    return found


def main() -> None:
    import airflow

    runs = {dag.dag_id: told(dag) for dag in (CAPTURE, WRONG)}
    print(json.dumps({"airflow": airflow.__version__, "runs": runs}), flush=True)


if __name__ == "__main__":
    main()
