"""What to tell a user of an exception that came out of Spark: one line, the cause, no traceback."""

import re
from typing import Final

# Our own say what is wrong in plain words; the first of them is the cause of the others.
_OURS: Final = re.compile(
    r"^(?:[\w.]*\.)?(?:NamespaceError|OptionError|BadRow|NotInOneRow|RowsRefused|SparkMissing|SecondaryError|ClientError"
    r"|ConnectionLost): (.+)$",
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
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return str(others[-1]).strip() if others and "Traceback" in text else first


def is_of_spark(error: Exception) -> bool:
    """Whether Spark raised it, or its Java: a task that failed comes through as an error of Py4J."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.partition(".")[0] == "py4j"
