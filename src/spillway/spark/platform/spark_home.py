"""Where Spark lives: the installed package as it is, but for the packed copy of PySpark in it.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` in front of all else in every Python process that it starts, several for
one query. Python keeps nothing compiled of what it reads from an archive, so each of them would compile PySpark anew: a
second of CPU. From a home without the archive they take PySpark as it is installed, compiled once.

    SPARK_HOME=$(python -m spillway.spark.home) spark-submit …      for Spark's own commands
"""

import hashlib
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from spillway import install_hint
from spillway.spark.platform.java import cache_directories

LINKED: Final = ("bin", "jars", "sbin", "conf")
PACKED: Final = "pyspark.zip"


def installed() -> Path | None:
    """The directory of the PySpark of this Python."""
    found = find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def light_home(package: Path, under: Path | None = None) -> Path:
    """What SPARK_HOME is to be: a directory of ours, or the package's own where that cannot be made better."""
    libraries = package / "python" / "lib"
    if not (package / "bin" / "spark-submit").is_file() or not (libraries / PACKED).is_file():
        return package
    links = {name: package / name for name in LINKED if (package / name).is_dir()}
    links |= {f"python/lib/{path.name}": path for path in sorted(libraries.iterdir()) if path.name != PACKED}
    # Another package, or another version of it, another directory.
    name = "spark-" + hashlib.sha256("\n".join(map(str, links.values())).encode()).hexdigest()[:12]
    for home in [under] if under is not None else cache_directories(name):
        try:
            if not (home / "bin" / "spark-submit").is_file():
                _put(home, links)
            return home
        except OSError:
            continue
    return package


def _put(home: Path, links: dict[str, Path]) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    # Made aside and put in place: another process may be doing the same.
    aside = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        for name, path in links.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).symlink_to(path)
        try:
            os.rename(aside, home)
        except OSError:
            if not (home / "bin" / "spark-submit").is_file():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def main() -> int:
    """Prints what SPARK_HOME is to be."""
    package = installed()
    if package is None:
        sys.stderr.write(f"spillway: Spark is not installed: {install_hint('spark')}\n")
        return 1
    sys.stdout.write(f"{light_home(package)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
