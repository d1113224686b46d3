"""An operator for Apache Airflow that runs a job of the pipeline. Airflow is not installed with Spillway."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillway.airflow.operator import PipelineOperator

__all__ = ["PipelineOperator"]


def __getattr__(name: str) -> Any:
    """`from spillway.airflow import PipelineOperator`; the rest of the room needs no Airflow."""
    if name != "PipelineOperator":
        raise AttributeError(name)
    from spillway.airflow.operator import PipelineOperator

    return PipelineOperator
