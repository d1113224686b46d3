"""Small files that a job keeps beside its data: what the data is, what is done. On any file system that Spark knows."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.spark.platform.paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT_MAX = 64 * 1024 * 1024


class JobDirectoryError(RuntimeError):
    """A directory holds something else than it should."""


class JobDirectory:
    """A directory; the names of files in it may have slashes."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        self.path = path.rstrip("/") or path
        self._files: _Local | _Hadoop
        local = local_path(path)
        self._files = _Local(local) if local is not None else _Hadoop(spark, self.path)

    def read(self, name: str) -> str | None:
        """None if there is no such file."""
        return self._files.read(name)

    def write(self, name: str, text: str) -> None:
        """Whole, or not at all."""
        self._files.write(name, text)

    def names(self, directory: str = "") -> list[str]:
        """Of what is in it; nothing if it is not there."""
        return self._files.names(directory)

    def claim(self, name: str, about: dict[str, Any], what: str) -> None:
        """That the place is `about` this: written down when it is empty, compared when it is not."""
        text = self.read(name)
        if text is None:
            if self.names():
                raise JobDirectoryError(
                    f"{what} {self.path} holds something else: give a directory that is empty or not there"
                )
            self.write(name, json.dumps(about, indent=1) + "\n")
            return
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise JobDirectoryError(f"{what} {self.path}: {name} cannot be read")
        for key, value in about.items():
            if found.get(key) != value:
                raise JobDirectoryError(
                    f"{what} {self.path} is of something else: its {key} is {_shown(found.get(key))}, "
                    f"and here it is {_shown(value)}. Give another directory"
                )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "…"


class _Local:
    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise JobDirectoryError(f"{self._root / name} cannot be read: {error}") from None

    def write(self, name: str, text: str) -> None:
        path = self._root / name
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise JobDirectoryError(f"{path} cannot be written: {error.strerror}") from None

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / directory).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JobDirectoryError(f"{self._root / directory}: {error.strerror}") from None


class _Hadoop:
    """Through Spark's Java machine, which knows HDFS and the stores of clouds."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        machine: Any = spark.sparkContext._jvm
        java: Any = spark._jsparkSession
        self._paths = machine.org.apache.hadoop.fs.Path
        self._root = root
        self._system = self._paths(root).getFileSystem(java.sessionState().newHadoopConf())
        self._io = machine.org.apache.commons.io.IOUtils

    def _path(self, name: str) -> Any:
        return self._paths(f"{self._root}/{name}" if name else self._root)

    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return bytes(self._io.toByteArray(stream)).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        path, new = self._path(name), self._path(f"{name}.new")
        self._system.mkdirs(path.getParent())
        stream = self._system.create(new, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        self._system.delete(path, False)
        if not self._system.rename(new, path):
            raise JobDirectoryError(f"{path} cannot be written")

    def names(self, directory: str) -> list[str]:
        path = self._path(directory)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))
