"""The one place that starts Spark: embedded in this process, or as spark-submit has set it up."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway import install_hint
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connect import REMOTE, check_answers, is_connect
from spillway.spark.platform.java import SparkMissing, find_java
from spillway.spark.platform.spark_home import light_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Plain `local[*]` tries a task once: one dead worker would end the query.
EMBEDDED_MASTER: Final = "local[*,4]"
PYSPARK_MIN: Final = (4, 3)
MASTER: Final = re.compile(r"local(\[[0-9*]+(,\s*[0-9]+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s|sc)://.+")
INSTALL: Final = f"{install_hint('spark')} (PySpark is a download of 456 MB)"
# Set by spark-submit: the Java machine is there already, with its master.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"

ALWAYS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # A second attempt beside a running one would be one more competing consumer.
    "spark.speculation": "false",
    # Filters of a query go to `format("servicebus")`, which asks for fewer messages.
    "spark.sql.python.filterPushdown.enabled": "true",
}
EMBEDDED: Final[dict[str, str]] = {
    # All of it is this machine; its name need not be known to anybody.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # For what one machine holds; Spark's 200 are for a cluster.
    "spark.sql.shuffle.partitions": "8",
    # The first `lower` of a session would try the other way on every character there is: two seconds.
    "spark.sql.icu.caseMappings.enabled": "false",
}
# For a Java that lives for minutes: its best compiler works for the hours after, and its code need not be swept out.
SHORT_LIVED_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=200m"

Say = Callable[[str], None]


def say_on_stderr(line: str) -> None:
    sys.stderr.write(f"spillway: {line}\n")
    sys.stderr.flush()


def missing_text(error: ImportError) -> str:
    return f"Spark is not installed ({error}): {INSTALL}"


def build_session(
    app_name: str,
    *,
    master: str | None = None,
    ui: bool = False,
    config: Mapping[str, str] | None = None,
    say: Say = say_on_stderr,
) -> "SparkSession":
    """A session, started if there is none in this process. `master` is `local[*,4]` unless given or submitted.

    `config` wins over what is set here. Raises `SparkMissing`, in plain words, when something is not installed.
    """
    is_submitted = SUBMITTED in os.environ
    _check_pyspark()
    import pyspark
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if is_connect(running) or (running is None and (master or "").startswith(REMOTE)):
        return _connected(app_name, running, master, config or {}, say)
    if running is None and not is_submitted:
        os.environ["JAVA_HOME"] = str(find_java().home())
        # Workers are to be this Python: another one has not what this one has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if _are_workers_this_python(config or {}):
            os.environ.setdefault("SPARK_HOME", str(light_home(Path(pyspark.__file__).parent)))
    builder = SparkSession.builder.appName(app_name)
    for name, value in _settings(master, ui, is_submitted, config or {}).items():
        builder = builder.config(name, value)
    if running is not None:
        return builder.getOrCreate()
    say("starting Spark (a Java process: 5 to 20 s) …")
    began = time.monotonic()
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise SparkMissing(f"Spark did not start: {_first_line(error)}") from error
    say(f"Spark {session.version} is ready after {time.monotonic() - began:.1f} s, on {session.sparkContext.master}")
    return session


def activate_session(session: "SparkSession") -> None:
    """Make it the active one of this thread, without which Spark does not find sources in Python to write to.

    A thread of Python's own has none: neither `getOrCreate` nor PySpark's `inheritable_thread_target` gives it one.
    """
    if is_connect(session):
        return
    assert session._jvm is not None, "a session that was not stopped"
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def _connected(
    app_name: str, running: "SparkSession | None", master: str | None, config: Mapping[str, str], say: Say
) -> "SparkSession":
    """Of Spark Connect: the machine is somebody else's, and only what belongs to a session can be set."""
    from pyspark.sql import SparkSession

    session = running
    if session is None:
        assert master is not None, "an address begins with sc://"
        check_answers(master)
        try:
            session = SparkSession.builder.remote(master).appName(app_name).getOrCreate()
            say(f"Spark {session.version} is reached by Spark Connect")
        except Exception as error:
            where = master.partition(";")[0]  # behind it there may be a token
            raise SparkMissing(f"Spark Connect at {where}: {_first_line(error)}") from error
    for name, value in {**ALWAYS, **config}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _check_pyspark() -> None:
    try:
        import pyspark
        import pyspark.sql
    except ImportError as error:
        raise SparkMissing(missing_text(error)) from None
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < PYSPARK_MIN:
        raise SparkMissing(f"PySpark {pyspark.__version__} is too old, 4.3 is needed: {INSTALL}")


def check_spark(master: str | None = None) -> None:
    """That `build_session` has what it needs, without starting anything: PySpark, Java, a master that can be one.

    `SparkMissing`, or `OptionError` for the master.
    """
    _check_pyspark()
    if master and not MASTER.fullmatch(master):
        raise OptionError(
            f"master '{master[:100]}': local[*,4] or another local[…], spark://HOST:PORT, k8s://…, yarn, or "
            "sc://HOST:PORT of a Spark Connect server"
        )
    if (master or "").startswith(REMOTE):
        check_answers(master or "")
    elif SUBMITTED not in os.environ:
        find_java()


def _settings(master: str | None, ui: bool, is_submitted: bool, config: Mapping[str, str]) -> dict[str, str]:
    settings = dict(ALWAYS)
    chosen = master or ("" if is_submitted else EMBEDDED_MASTER)
    if chosen:
        settings["spark.master"] = chosen
    if chosen.startswith("local"):
        settings |= EMBEDDED
    if not is_submitted:
        settings["spark.ui.enabled"] = "true" if ui else "false"
        quiet = resources.files("spillway.spark.platform").joinpath("log4j2.properties")
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{quiet}"
    return settings | dict(config)


def _are_workers_this_python(config: Mapping[str, str]) -> bool:
    """Then PySpark is installed where they find it."""
    return os.environ["PYSPARK_PYTHON"] == sys.executable and "spark.pyspark.python" not in config


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
