"""`spillway version`: what is running here, for a bug report."""

import importlib.machinery
import importlib.util
import json
import pkgutil
import platform
from pathlib import Path
from typing import Annotated, Final

import typer

HOT_ROOMS: Final = ("model", "amqp", "dialect", "broker")
# Values with fields of their own and the grammar of rules, left to the interpreter (setup.py).
UNCOMPILED: Final = frozenset({"spillway.amqp.types", "spillway.broker.rules.grammar"})
COMPILED: Final = "compiled"
BUILD_FILE: Final = "build.json"  # written by setup.py, beside the package's modules
FROM_SOURCES: Final = "it runs from its sources, as an editable install does"


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Print the versions in use and whether it is compiled.

    If it is not compiled, it says why. In use: spillway itself, Python, the event loop of `spillway serve`, SQLite.
    """
    facts = collect()
    if as_json:
        print(json.dumps(facts))
        return
    print(f"spillway {facts['version']}")
    print(f"build: {build_text()}")
    print(f"python: {facts['python']}")
    print(f"event loop: {facts['event_loop']}")
    print(f"sqlite: {facts['sqlite']} (apsw {facts['apsw']})")


def collect() -> dict[str, str]:
    import apsw

    import spillway
    from spillway.server.event_loop import choose_loop

    return {
        "version": spillway.__version__,
        "hot_rooms": hot_rooms_state(),
        "not_compiled_because": not_compiled_because(),
        "python": platform.python_version(),
        "event_loop": choose_loop().text,
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
    }


def build_text() -> str:
    """What a person is told: compiled or not, what that means, and why."""
    because = not_compiled_because()
    return f"plain Python, less than half as fast as compiled: {because}" if because else COMPILED


def not_compiled_because() -> str:
    """Empty if it is compiled."""
    state = hot_rooms_state()
    if state == COMPILED:
        return ""
    if state == "mixed":
        return "the installation is broken, some of it is compiled and some is not: install it again"
    return _said_by_the_build() or FROM_SOURCES


def _said_by_the_build() -> str:
    import spillway

    path = Path(spillway.__file__).with_name(BUILD_FILE)
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["not_compiled_because"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} cannot be read ({error})"


def hot_rooms_state() -> str:
    """`compiled`, `interpreted`, or `mixed`, which is a broken build. Looks at the files without importing them."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    are_compiled = {
        (_origin(name) or "").endswith(suffixes)
        for room in HOT_ROOMS
        for name in _modules(f"spillway.{room}")
        if name not in UNCOMPILED
    }
    if are_compiled == {True}:
        return COMPILED
    return "mixed" if True in are_compiled else "interpreted"


def _modules(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.submodule_search_locations is not None, package
    names = []
    for module in pkgutil.iter_modules(spec.submodule_search_locations, f"{package}."):
        names += _modules(module.name) if module.ispkg else [module.name]
    return names


def _origin(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin
