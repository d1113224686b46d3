"""`PipelineOperator`: a task that runs a job of the pipeline and returns its summary."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

try:
    from airflow.sdk import BaseHook, BaseOperator
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 2, and the first of 3
    from airflow.exceptions import AirflowException, AirflowFailException
    from airflow.hooks.base import BaseHook
    from airflow.models import BaseOperator

from spillway.airflow.process import COMMAND, STOP_S, JobFailed, JobProcess


class PipelineOperator(BaseOperator):
    """Runs `spillway pipeline JOB ARGUMENTS --json`; the summary is the task's XCom.

    `connections` has names of environment variables, and for each the id of an Airflow connection whose password is a
    connection string: `{"BUS": "my_bus"}` for `--secret env:BUS`. `command` is the program where Spark is installed,
    `["/opt/spillway/bin/spillway"]`, unless that is where Airflow is.

    What only a user can mend fails the task at once, whatever `retries` says; anything else is tried again. A task that
    is stopped lets its job end the batch under way, for `stop_seconds` at most.
    """

    template_fields: ClassVar[Sequence[str]] = ("arguments", "environment")
    ui_color: ClassVar[str] = "#d5e8f0"

    def __init__(
        self,
        *,
        job: str,
        arguments: Sequence[str] = (),
        connections: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
        stop_seconds: float = STOP_S,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.job = job
        self.arguments = list(arguments)
        self.connections = dict(connections or {})
        self.environment = dict(environment or {})
        self.command = list(command)
        self.stop_seconds = stop_seconds
        self._process: JobProcess | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        environment = {**self.environment, **self._secrets()}
        self._process = JobProcess(self.job, self.arguments, environment, self.command)
        try:
            return self._process.run(self.log.info)
        except JobFailed as failed:
            raise (AirflowFailException if failed.is_to_mend else AirflowException)(str(failed)) from None

    def on_kill(self) -> None:
        if self._process is not None:
            self._process.stop(self.stop_seconds)

    def _secrets(self) -> dict[str, str]:
        """Connection strings, from Airflow's own store to the environment of the process and nowhere else."""
        found = {}
        for variable, connection_id in self.connections.items():
            password = BaseHook.get_connection(connection_id).password
            if not password:
                raise AirflowFailException(
                    f"the connection '{connection_id}' has no password: put the connection string there"
                )
            found[variable] = password
        return found
