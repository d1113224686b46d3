"""`spillway pipeline`: the jobs on Spark, embedded in this process."""

import typer

from spillway.cli.pipeline_availability import availability
from spillway.cli.pipeline_capture import capture, replay
from spillway.cli.pipeline_compact import compact
from spillway.cli.pipeline_cost import cost, metering, what_if
from spillway.cli.pipeline_syphon import syphon

group = typer.Typer(
    no_args_is_help=True,
)


@group.callback()
def pipeline() -> None:
    """The jobs on Spark: they run in this process, or by spark-submit on a cluster (pip install 'spillway[spark]')."""


group.command("syphon")(syphon)
group.command("capture")(capture)
group.command("compact")(compact)
group.command("replay")(replay)
group.command("metering")(metering)
group.command("cost")(cost)
group.command("what-if")(what_if)
group.command("availability")(availability)
