"""The entry of every client process of a random play: `python -m spillway.lab.field.host SPEC.json`.

The library under test may be another tree's: then all of the package but the lab itself is taken from there, so that a
play of today can be shown to the code of yesterday.
"""

import importlib.machinery
import json
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "spillway"
OWN = "spillway.lab"


class OtherTree:
    """Finds the rooms of the package in another source tree; what is below them follows."""

    def __init__(self, source: Path) -> None:
        self.place = str(source / PACKAGE)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.count(".") != 1 or not name.startswith(PACKAGE + ".") or name == OWN:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self.place], target)


def use_library(source: str) -> None:
    """Take the library from there; before anything of it was imported."""
    loaded = [name for name in sys.modules if name.startswith(PACKAGE + ".") and not name.startswith(OWN)]
    assert not loaded, f"imported already: {loaded}"
    sys.meta_path.insert(0, OtherTree(Path(source)))


def main() -> None:
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if spec["library"]:
        use_library(spec["library"])
    if spec["role"] in ("week-caller", "week-consumer"):
        from spillway.lab.field import week_host

        week_host.run(spec)
        return
    from spillway.lab.field import caller

    caller.run(spec)


if __name__ == "__main__":
    main()
