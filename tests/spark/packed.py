"""An environment for spark-submit, packed as the guide says, without a network: made of what is installed here.

The wheel is built from the sources, in plain Python; what it depends on is copied, file by file, from the tests'
environment, where the guide's `pip install` would fetch it. Spark is not in it: nodes have their own.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "spillway-servicebus"
BESIDES = ("pyarrow", "pandas")  # the guide's line
ARCHIVE = "environment.tar.gz"


def needed(name: str, found: set[str]) -> set[str]:
    """Names of the distributions that one depends on, itself too."""
    if name.lower() in found:
        return found
    found.add(name.lower())
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed(requirement.name, found)
    return found


def wheel(directory: Path) -> Path:
    """Of a copy of the sources, for a build leaves things behind."""
    sources = directory / "sources"
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", sources / "src", ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources / name)
    line = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    environment = {**os.environ, "SPILLWAY_COMPILE": "0"}
    subprocess.run([*line, "-w", str(directory), str(sources)], check=True, env=environment, timeout=300)
    (built,) = directory.glob("spillway_servicebus-*.whl")
    return built


def environment_in(directory: Path) -> Path:
    """`directory/environment`, and beside it the archive of it. The answer is where its packages are."""
    home = directory / "environment"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in sorted(
        needed(DISTRIBUTION, set()) - {DISTRIBUTION} | {name for each in BESIDES for name in needed(each, set())}
    ):
        copy_distribution(metadata.distribution(name), packages)
    shutil.unpack_archive(wheel(directory), packages, "zip")
    with tarfile.open(directory / ARCHIVE, "w:gz", compresslevel=1) as archive:
        archive.add(home, ".")
    return packages


def copy_distribution(distribution: metadata.Distribution, packages: Path) -> None:
    for path in distribution.files or []:
        place = packages / path
        if packages in place.resolve().parents and path.suffix != ".pyc" and "tests" not in path.parts:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(str(distribution.locate_file(path))), place)
