"""`spillway version`: what is running here, for a bug report."""

import importlib.machinery
import importlib.util
import json
import pkgutil
import platform
from typing import Annotated, Final

import typer

HOT_ROOMS: Final = ("model", "amqp", "dialect", "broker")
# Values with fields of their own and the grammar of rules, left to the interpreter (setup.py).
UNCOMPILED: Final = frozenset({"spillway.amqp.types", "spillway.broker.filter_grammar"})


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Print the versions in use and whether it is compiled.

    Compiled or interpreted: the hot rooms. In use: spillway itself, Python, SQLite.
    """
    facts = collect()
    if as_json:
        print(json.dumps(facts))
        return
    print(f"spillway {facts['version']}")
    print(f"hot rooms: {facts['hot_rooms']} ({', '.join(HOT_ROOMS)})")
    print(f"python: {facts['python']}")
    print(f"sqlite: {facts['sqlite']} (apsw {facts['apsw']})")


def collect() -> dict[str, str]:
    import apsw

    import spillway

    return {
        "version": spillway.__version__,
        "hot_rooms": hot_rooms_state(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
    }


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
        return "compiled"
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
