"""Small files that a job keeps beside its data: what the data is, what is done. On any file system that Spark knows."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spillway.spark.platform.connect import refuse_on_connect
from spillway.spark.platform.paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT_MAX = 64 * 1024 * 1024


class JobDirectoryError(RuntimeError):
    """A directory holds something else than it should."""


class FoundFile(NamedTuple):
    """A file below a job's directory: its name from there, with slashes, and its size."""

    name: str
    size_bytes: int


class JobDirectory:
    """A directory; the names of files in it may have slashes."""

    def __init__(self, spark: "SparkSession | None", path: str) -> None:
        """Spark is needed for file systems other than this machine's."""
        self.path = path.rstrip("/") or path
        self._files: _Local | _Hadoop
        local = local_path(path)
        if local is not None:
            self._files = _Local(local)
        else:
            assert spark is not None, "without Spark only places of this machine are asked for"
            refuse_on_connect(
                spark,
                f"{self.path}: a job with files there",
                "it reaches them through Spark's Java machine. Give a directory that this machine, the Connect server "
                "and the workers share, or run the job with spark-submit",
            )
            self._files = _Hadoop(spark, self.path)

    def read(self, name: str) -> str | None:
        """None if there is no such file."""
        return self._files.read(name)

    def write(self, name: str, text: str) -> None:
        """Whole, or not at all."""
        self._files.write(name, text)

    def names(self, directory: str = "") -> list[str]:
        """Of what is in it; nothing if it is not there."""
        return self._files.names(directory)

    def create(self, name: str, text: str) -> bool:
        """Write a file that is not there yet, whole or not at all; False if somebody else has made it meanwhile."""
        return self._files.create(name, text)

    def files(self, directory: str) -> list[FoundFile]:
        """All files below a directory, without the checksums that Hadoop keeps beside them; none if it is not there."""
        return self._files.files(directory)

    def move(self, directory: str, to: str) -> None:
        """Rename a directory, to a name that nothing has, in one step where the file system can."""
        self._files.move(directory, to)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._files.remove(name)

    def remove_if_empty(self, directory: str) -> bool:
        """Delete a directory that has nothing in it; False if it has."""
        return self._files.remove_if_empty(directory)

    def remove_tree(self, directory: str) -> None:
        """Delete a directory with all that is in it, if it is there."""
        self._files.remove_tree(directory)

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


def sync_directory(path: Path) -> None:
    """A name in it that is new, or gone, is so after a power cut too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(new: Path, path: Path) -> None:
    """The name for a file, unless it is taken: `FileExistsError`."""
    try:
        os.link(new, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without links: whoever comes between these two lines is overwritten.
        if path.exists():
            raise FileExistsError(errno.EEXIST, "there already") from None
        new.replace(path)


def _is_checksum(name: str) -> bool:
    return name.startswith(".") and name.endswith(".crc")


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
        try:
            self._new(path, text).replace(path)
            sync_directory(path.parent)
        except OSError as error:
            raise JobDirectoryError(f"{path} cannot be written: {error.strerror}") from None

    def _new(self, path: Path, text: str) -> Path:
        """The text beside the file that it is to become, on the disk."""
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return new

    def create(self, name: str, text: str) -> bool:
        path = self._root / name
        try:
            new = self._new(path, text)
            try:
                _link(new, path)
            except FileExistsError:
                return False
            finally:
                new.unlink(missing_ok=True)
            sync_directory(path.parent)
            return True
        except OSError as error:
            raise JobDirectoryError(f"{path} cannot be written: {error.strerror}") from None

    def files(self, directory: str) -> list[FoundFile]:
        found = []
        for root, _, names in os.walk(self._root / directory):
            for name in names:
                if _is_checksum(name):
                    continue
                path = Path(root, name)
                with contextlib.suppress(FileNotFoundError):  # somebody deletes meanwhile
                    found.append(FoundFile(path.relative_to(self._root).as_posix(), path.stat().st_size))
        return sorted(found)

    def move(self, directory: str, to: str) -> None:
        path = self._root / to
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            (self._root / directory).rename(path)
        except OSError as error:
            raise JobDirectoryError(f"{self._root / directory} cannot be moved to {path}: {error.strerror}") from None

    def remove(self, name: str) -> None:
        path = self._root / name
        try:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        except OSError as error:
            raise JobDirectoryError(f"{path} cannot be deleted: {error.strerror}") from None

    def remove_if_empty(self, directory: str) -> bool:
        try:
            (self._root / directory).rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise JobDirectoryError(f"{self._root / directory} cannot be deleted: {error.strerror}") from None
        return True

    def remove_tree(self, directory: str) -> None:
        shutil.rmtree(self._root / directory, ignore_errors=True)

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
        path, new = self._path(name), self._new(f"{name}.new", text)
        self._system.delete(path, False)
        if not self._system.rename(new, path):
            raise JobDirectoryError(f"{path} cannot be written")

    def _new(self, name: str, text: str) -> Any:
        path = self._path(name)
        self._system.mkdirs(path.getParent())
        stream = self._system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        return path

    def create(self, name: str, text: str) -> bool:
        path = self._path(name)
        if self._system.exists(path):
            return False
        new = self._new(f"{name}.{os.getpid()}.new", text)
        # HDFS does not rename to a name that is taken; a store of a cloud has the moment since `exists`.
        if self._system.rename(new, path):
            return True
        self._system.delete(new, False)
        return False

    def files(self, directory: str) -> list[FoundFile]:
        path = self._path(directory)
        if not self._system.exists(path):
            return []
        root = self._system.makeQualified(self._path("")).toUri().getPath().rstrip("/")
        found, listed = [], self._system.listFiles(path, True)
        while listed.hasNext():
            status = listed.next()
            name = status.getPath().toUri().getPath()[len(root) + 1 :]
            if not _is_checksum(name.rpartition("/")[2]):
                found.append(FoundFile(name, int(status.getLen())))
        return sorted(found)

    def move(self, directory: str, to: str) -> None:
        path = self._path(to)
        self._system.mkdirs(path.getParent())
        if self._system.exists(path) or not self._system.rename(self._path(directory), path):
            raise JobDirectoryError(f"{self._path(directory)} cannot be moved to {path}")

    def remove(self, name: str) -> None:
        self._system.delete(self._path(name), False)

    def remove_if_empty(self, directory: str) -> bool:
        path = self._path(directory)
        if not self._system.exists(path):
            return True
        if len(self._system.listStatus(path)):
            return False
        return bool(self._system.delete(path, False))

    def remove_tree(self, directory: str) -> None:
        self._system.delete(self._path(directory), True)

    def names(self, directory: str) -> list[str]:
        path = self._path(directory)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))
