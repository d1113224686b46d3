"""What a user has to mend is found before Spark is started: one line, and exit status 2.

A job checks its options, its namespaces and its directories inside `to_mend`. Whatever fails there is raised as
`OptionError`, which every command and every `main` ends with status 2 for; what fails later ends them with 1.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from spillway.spark.platform.access import OptionError
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.reasons import first_line


@contextlib.contextmanager
def to_mend(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds are the user's to mend, as long as nothing was started."""
    try:
        yield
    except OptionError:
        raise
    except kinds as error:
        raise OptionError(first_line(error)) from None


def check_writable(option: str, place: str | Path) -> None:
    """That a directory is there or can be made, and can be written to; other file systems are Spark's to ask."""
    path = local_path(str(place))
    if path is None:
        return
    found = next(each for each in (path, *path.parents) if each.exists())
    if not found.is_dir():
        raise OptionError(f"{option} {place}: {found} is a file, and has to be a directory")
    if not os.access(found, os.W_OK | os.X_OK):
        raise OptionError(f"{option} {place}: nothing can be written into {found}: permission denied")
