"""What to tell a user of an exception that came out of Spark: one line, the cause, no traceback."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"  # read by PySpark where it reports the error of a Python process
_OF_WORKERS: Final = "PYTHON_WORKER_FACTORY_"  # begins variables that Spark sets for its Python processes

# Our own say what is wrong in plain words; the first of them is the cause of the others.
_OURS: Final = re.compile(
    r"(?:^|: )(?:[\w.]*\.)?(?:NamespaceError|OptionError|BadRow|NotInOneRow|RowsRefused|SparkMissing|SecondaryError"
    r"|ClientError|ConnectionLost|LocksLost): (.+)$",
    re.MULTILINE,
)
# An error of Java's, as Py4J tells it: a line without a reason, then what was raised, then what that was caused by.
_JAVAS: Final = re.compile(r"^(?:Caused by)?: (?:[\w.$]+(?:Error|Exception): )?(.+)$", re.MULTILINE)
_PY4J: Final = "An error occurred while calling "
_ANY: Final = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception): .+)$", re.MULTILINE)


def reason_of(error: BaseException) -> str:
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        return ours[1].strip()
    if text.startswith(_PY4J) and (causes := _JAVAS.findall(text)):
        return str(causes[-1]).strip()
    others = _ANY.findall(text)
    # Of a traceback the last line says what it was.
    return str(others[-1]).strip() if others and "Traceback" in text else first_line(error)


def first_line(error: BaseException) -> str:
    """What an error says, without what stands below it; its name if it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def in_one_line(*kinds: type[BaseException]) -> Iterator[None]:
    """Errors of these kinds are for a user, and reach the driver without the traceback of the Python process.

    That process is one of Spark's and ends with the error, so that nobody else misses a traceback.
    """
    try:
        yield
    except kinds:
        if any(name.startswith(_OF_WORKERS) for name in os.environ):
            os.environ[_HIDES_TRACEBACK] = "1"
        raise


def is_of_spark(error: Exception) -> bool:
    """Whether Spark raised it, or its Java: a task that failed comes through as an error of Py4J."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.partition(".")[0] == "py4j"
