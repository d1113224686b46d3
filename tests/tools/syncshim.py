"""A slow or failing disk for one process: builds `syncshim.c` and steers it through its control file.

Killing a process is no test of durability, since the kernel keeps what was written. This is one: an acknowledgement
that comes before the sync has returned is seen at once, in the log, with its times.
"""

import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("syncshim.c")


@dataclass(frozen=True)
class SyncCall:
    """One fsync or fdatasync of the process. Times are CLOCK_MONOTONIC, the clock of `time.monotonic_ns`."""

    number: int
    name: str
    begun_ns: int
    ended_ns: int
    result: int
    path: str


@functools.cache
def build() -> Path:
    """Compile the library, once a process, into a directory of its own."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "the durability tests need a C compiler: apt-get install gcc"
    library = Path(tempfile.mkdtemp(prefix="syncshim-")) / "syncshim.so"
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    return library


class SyncShim:
    """The environment that loads the library into a process, and the handle that steers it there."""

    def __init__(self, directory: Path) -> None:
        self.control_path = directory / "syncshim.control"
        self.log_path = directory / "syncshim.log"
        self.library = build()
        self.set()

    @property
    def env(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "SYNCSHIM_CONTROL": str(self.control_path),
            "SYNCSHIM_LOG": str(self.log_path),
        }

    def set(self, *, delay_ms: int = 0, fail_from: int = 0, fail_path: str = "") -> None:
        """From the next call on. `fail_from=1` fails every call to come, or those of files with this in their path."""
        fresh = self.control_path.with_suffix(".fresh")
        lines = [f"delay_ms {delay_ms}", f"fail_from {fail_from}"]
        if fail_path:
            lines.append(f"fail_path {fail_path}")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.control_path)  # atomic: no call reads half a file

    def calls(self) -> list[SyncCall]:
        """Every call of every process that carried the library, in the order of their ends."""
        if not self.log_path.exists():
            return []
        made = []
        for line in self.log_path.read_text().splitlines():
            number, name, begun, ended, result, path = line.split(" ", 5)
            made.append(SyncCall(int(number), name, int(begun), int(ended), int(result), path))
        return made

    def good_calls_between(self, begun_ns: int, ended_ns: int) -> list[SyncCall]:
        """Those that began, and returned without an error, inside this span."""
        return [
            call
            for call in self.calls()
            if call.result == 0 and begun_ns <= call.begun_ns and call.ended_ns <= ended_ns
        ]
