"""What a job counts, among Spark's own metrics: Prometheus, Graphite or whatever sink Spark is told of has it.

Spark takes numbers from a Python driver in one way, a source of accumulators, which has one name for all of them and is
registered once in a Spark context. So the names of all jobs are declared here and registered together; those of a job
that has not run are 0. Over Spark Connect there is no context, and none of this.
"""

import threading
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.platform.connect import is_connect
from spillway.spark.platform.reasons import is_of_spark, reason_of
from spillway.spark.platform.session import say_on_stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By job, and what each number says: the table in the guide is made of it.
NUMBERS: Final[dict[str, dict[str, str]]] = {
    "capture": {
        "messages": "rows written, each with its message",
        "settled": "messages completed, because their rows are on the disk",
        "lost": "messages whose locks had run out: they come again",
        "batches": "batches that have ended",
        "restarts": "queries that failed and were started again",
        "lag_messages": "messages that wait in the entities, those of the batch under way too",
        "lag_seconds": "how long the first of them has waited",
        "operations": "operations of the driver since the query started, looks for new messages above all",
    },
    "syphon": {
        "moved": "messages that came home",
        "repeated": "messages sent home more than once, because a task died",
        "dead_lettered": "messages moved to the dead letters of their backlog queue",
        "kept": "messages that a destination refuses and that stay in the backlog",
        "batches": "batches that have ended",
        "restarts": "queries that failed and were started again",
        "tasks_lost": "attempts of tasks that died",
    },
}
# These rise and fall, and are over with the run that told them; all others only rise.
GAUGES: Final = frozenset({"lag_messages", "lag_seconds", "operations", "kept"})
assert {name for names in NUMBERS.values() for name in names} >= GAUGES, "a gauge is a number that is declared"
PREFIX: Final = "spillway"

_mutex: Final = threading.Lock()
_registered: Final[dict[str, dict[str, Any]]] = {}  # accumulators, by the id of the application


class JobMetrics:
    """What one run of a job adds to the numbers of its context: a counter goes on where an earlier run left it."""

    def __init__(self, spark: "SparkSession", job: str) -> None:
        self._job = job
        self._accumulators = {} if is_connect(spark) else _accumulators_if_allowed(spark)
        self._told = dict.fromkeys(NUMBERS[job], 0)

    def tell(self, **numbers: float | None) -> None:
        """What they are in this run by now; one that is None is not known, and stays."""
        assert numbers.keys() <= NUMBERS[self._job].keys(), "a number is declared before it is told"
        with _mutex:
            for name, value in numbers.items():
                if value is not None and round(value) != self._told[name]:
                    if self._accumulators:
                        # The difference: set to nothing first, a counter would seem to have begun anew.
                        self._accumulators[f"{self._job}.{name}"].add(round(value) - self._told[name])
                    self._told[name] = round(value)

    def close(self) -> None:
        """The run is over, and nothing waits for it any more."""
        self.tell(**dict.fromkeys(GAUGES & NUMBERS[self._job].keys(), 0))


def _accumulators_if_allowed(spark: "SparkSession") -> dict[str, Any]:
    """A platform may keep Python from most of Spark's Java: then a job has no metrics, and works."""
    try:
        return accumulators_of(spark)
    except Exception as error:
        if not is_of_spark(error):
            raise
        say_on_stderr(f"no numbers for Spark's metrics: {reason_of(error)}")
        return {}


def accumulators_of(spark: "SparkSession") -> dict[str, Any]:
    """Those of this context, registered with its metrics at the first call."""
    context = spark.sparkContext
    with _mutex:
        found = _registered.get(context.applicationId)
        if found is not None:
            return found
        jvm: Any = context._jvm
        java_context = context._jsc.sc()
        made = {
            f"{job}.{name}": java_context.longAccumulator(f"{PREFIX}.{job}.{name}")
            for job, names in NUMBERS.items()
            for name in names
        }
        named = jvm.java.util.HashMap()
        for name, accumulator in made.items():
            named.put(f"{PREFIX}.{name}", accumulator)
        scala_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(named)
        # An object of Scala beside a class of that name: only so it is reached from here.
        source = getattr(jvm.org.apache.spark.metrics.source, "LongAccumulatorSource$")
        getattr(source, "MODULE$").register(java_context, scala_map)
        _registered.clear()  # there is one context at a time
        _registered[context.applicationId] = made
        return made
