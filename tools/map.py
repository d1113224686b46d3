"""Writes the list of modules in docs/map.md: `python tools/map.py`. `--check` says whether it is as it should be.

A line a module: the first sentence of its docstring, and the tests that show it. Those are the ones that SHOWN_BY
names, or that are called as the module is, then those that import it, nearest first; of a module that no test imports,
those of the modules that use it. What else stands in the page is written by hand, outside of the markers.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "spillway"
TESTS: Final = ROOT / "tests"
PAGE: Final = ROOT / "docs" / "map.md"
BEGIN: Final = "<!-- the modules: made by `python tools/map.py` -->"
END: Final = "<!-- the end of the modules -->"
TESTS_SHOWN: Final = 2
TITLES: Final = "| module | | tests |\n| --- | --- | --- |\n"
ROOMS: Final = (
    *("model", "amqp", "dialect", "broker", "store", "server", "admin", "client", "syphon", "paired", "spark"),
    *("emulator_config", "hosting", "loops", "pages", "lab", "pytest_plugin", "airflow", "cli", "testing"),
)
# Tests that drive a module without importing it, in the order in which to read them.
SHOWN_BY: Final[dict[str, str]] = {
    "store.migrate": "cli/test_migrate",
    "admin.admission": "admin/test_faults admin/test_ledger",
    "admin.app": "admin/test_hostile admin/test_sdks",
    "admin.atom": "admin/test_recordings admin/test_hostile",
    "admin.descriptions": "admin/test_recordings admin/test_details",
    "admin.heads": "admin/test_hostile",
    "admin.namespace": "admin/test_sdks",
    "admin.fault_injection": "admin/test_faults",
    "admin.resource": "admin/test_control",
    "admin.rules": "admin/test_recordings admin/test_sdks",
    "admin.service": "admin/test_sdks admin/test_recordings",
    "airflow.operator": "airflow/test_process",
    "amqp.fast": "amqp/test_performatives amqp/test_connection_random",
    "amqp.outgoing": "amqp/test_session",
    "broker.directory": "broker/test_entities broker/test_status",
    "broker.disk_room": "broker/test_disk_table",
    "broker.entity": "broker/test_sending broker/test_expiry",
    "broker.faulting": "broker/test_faults wire/test_faults",
    "broker.lane": "broker/test_turns broker/test_message_sessions",
    "broker.ledger_reading": "broker/test_ledger",
    "broker.loads": "broker/test_window broker/test_by_number",
    "broker.containment": "broker/test_incidents",
    "broker.lifecycle": "broker/test_entities broker/test_idle",
    "broker.links": "broker/test_sending broker/test_message_sessions",
    "broker.requests": "broker/test_by_number broker/test_describing",
    "broker.settling": "broker/test_locks broker/test_changed_properties",
    "broker.timers": "broker/test_expiry broker/test_turns",
    "broker.namespace": "broker/test_turns sim/test_simulation",
    "broker.queue": "broker/test_locks broker/test_window",
    "broker.refill": "broker/test_window",
    "broker.rules.rule_list": "broker/test_topics",
    "broker.session_refills": "broker/test_many_sessions",
    "broker.slow": "broker/test_faults",
    "broker.sweeps": "broker/test_expiry broker/test_sending",
    "cli.parts.lab_random": "lab/test_random",
    "cli.parts.pipeline_availability": "spark/test_availability_words",
    "cli.parts.pipeline_job": "spark/test_declared",
    "cli.parts.pipeline_open_days": "spark/test_metering",
    "cli.parts.pipeline_what_if": "spark/test_what_if",
    "cli.parts.serving": "cli/test_serve",
    "cli.parts.syphon_screen": "cli/test_syphon",
    "cli.pipeline": "spark/test_declared spark/test_mistakes",
    "client.authorisation": "client/test_connection client/test_credentials",
    "client.requests": "client/test_management",
    "dialect.attaching": "dialect/test_peer wire/test_sessions",
    "dialect.audit": "server/test_audit",
    "dialect.fields": "dialect/test_management",
    "dialect.links": "dialect/test_peer dialect/test_held",
    "dialect.requests": "dialect/test_cbs dialect/test_management",
    "dialect.auth_state": "dialect/test_cbs dialect/test_rights",
    "lab.consumer": "lab/test_runs lab/test_histories",
    "lab.field.caller": "lab/test_random",
    "lab.field.host": "lab/test_random",
    "lab.field.play": "lab/test_random",
    "lab.field.week_host": "paired/test_field",
    "lab.firewall": "lab/test_guard lab/test_runs",
    "lab.producer": "lab/test_runs lab/test_histories",
    "lab.spark": "spark/test_lab",
    "lab.spark_host": "spark/test_lab",
    "lab.syphon_host": "lab/test_runs",
    "model.backlogs": "paired/test_pairing syphon/test_watching",
    "model.entity": "broker/test_entities admin/test_hostile",
    "model.errors": "wire/test_errors client/test_errors",
    "model.limits": "test_limits_page wire/test_quotas",
    "paired.access": "paired/test_endpoints",
    "paired.backlog": "paired/test_pairing paired/test_failing_over",
    "paired.clear_text": "paired/test_endpoints",
    "paired.clients": "paired/test_pairing",
    "paired.delivery": "paired/test_walk paired/test_model",
    "paired.errors": "paired/test_failing_over",
    "paired.factory": "paired/test_pairing paired/test_closing",
    "paired.lifetime": "paired/test_closing paired/test_syphon",
    "paired.manager": "paired/test_preflight paired/test_pairing",
    "paired.options": "paired/test_parameters paired/test_pairing",
    "paired.pools": "paired/test_many_sends paired/test_closing",
    "paired.process_loop": "paired/test_forking paired/test_sync",
    "server.event_loop": "cli/test_event_loop",
    "server.files": "server/test_keys",
    "server.preauth": "server/test_listener hostile/test_stalled",
    "server.tokens": "admin/test_tokens_by_the_wall_clock",
    "spark.captured": "spark/test_doors spark/test_capture",
    "spark.home": "spark/test_spark_home",
    "spark.outages.order_and_duplicates": "spark/test_outages spark/test_availability",
    "spark.outages.timelines": "spark/test_availability spark/test_outages",
    "spark.platform.arrow_rows": "spark/test_ledger_files spark/test_event_lines",
    "spark.source.data_source": "spark/test_source spark/test_guide",
    "spark.source.positions": "spark/test_reset spark/test_streams",
    "spark.source.quarantine": "spark/test_refusals",
    "spark.source.session_pages": "spark/test_sessions",
    "store.answers": "contract/test_journals",
    "store.catalogue": "contract/test_journals store/test_damage",
    "store.changes": "contract/test_journals",
    "store.day_files": "store/test_ledger contract/test_ledger",
    "store.ids": "contract/test_ids",
    "store.ledger_memory": "contract/test_ledger",
    "store.memory_ids": "contract/test_ids",
    "store.own_files": "cli/test_own_files",
    "store.rules": "store/test_damage contract/test_journals",
    "store.sessions": "contract/test_sessions",
    "store.wal": "store/test_damage",
}
# References to guides, sections of specifications and promises are for who reads the file.
_REFERENCE: Final = re.compile(r" ?(\((docs/|contract |bad input )[^()]*\)|\[[\d., to]+(, RFC \d+)?\]|\[part 1\])")
_SENTENCE: Final = re.compile(r"^(.*?[.!?])(?= [A-Z`]|$)")


def module_of(file: Path) -> str:
    """`spillway.broker.queue` for its file; a package is its `__init__.py`."""
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def first_sentence(file: Path) -> str:
    """Of its docstring; empty if it has none."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    plain = _REFERENCE.sub("", paragraph)
    found = _SENTENCE.match(plain)
    return (found[1] if found else plain).rstrip(":")


def imports_of(file: Path) -> set[str]:
    """Every module of ours that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found if name.startswith("spillway")}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


class House:
    """Modules, who imports them, and which tests do."""

    def __init__(self) -> None:
        self.files = {module_of(file): file for file in sorted(SOURCE.rglob("*.py"))}
        self.users: dict[str, set[str]] = defaultdict(set)  # module -> modules that import it
        self.tests: dict[str, list[Path]] = defaultdict(list)  # module -> files of tests that import it
        for module, file in self.files.items():
            for name in imports_of(file) & set(self.files):
                self.users[name].add(module)
        self.test_files = sorted(TESTS.rglob("test_*.py"))
        for file in self.test_files:
            for name in imports_of(file) & set(self.files):
                self.tests[name].append(file)

    def shown_by(self, module: str) -> list[Path]:
        """The tests that a reader of this module opens next."""
        named = SHOWN_BY.get(module.removeprefix("spillway."))
        if named is not None:
            return [TESTS / f"{name}.py" for name in named.split()]
        stem = module.rpartition(".")[2]
        namesakes = [file for file in self.test_files if is_namesake(file, stem, room_of(module))]
        importers = [file for file in self.ranked(module, self.tests[module]) if file not in namesakes]
        found = namesakes + importers
        return (found or self.shown_through_users(module))[:TESTS_SHOWN]

    def shown_through_users(self, module: str) -> list[Path]:
        seen, near = {module}, [module]
        while near:
            near = sorted({user for name in near for user in self.users[name]} - seen)
            seen.update(near)
            found = sorted({file for name in near for file in self.tests[name]})
            if found:
                return self.ranked(module, found)
        return []

    def ranked(self, module: str, files: list[Path]) -> list[Path]:
        """Those of its own room first, and of these the ones whose names have most in common with its own."""
        words = set(re.split(r"[._]", module))
        return sorted(
            files,
            key=lambda file: (
                file.relative_to(TESTS).parts[0] != room_of(module),
                -len(words & set(file.stem.split("_"))),
                str(file),
            ),
        )


@cache
def make_house() -> House:
    """Once a process: it reads every file."""
    return House()


def is_namesake(file: Path, stem: str, room: str) -> bool:
    return file.relative_to(TESTS).parts[0] == room and file.stem in (f"test_{stem}", f"test_{stem}s")


def link(path: Path) -> str:
    return f"[{path.stem.removeprefix('test_')}](../{path.relative_to(ROOT).as_posix()})"


def row(house: House, module: str) -> str:
    file = house.files[module]
    name = ".".join(module.split(".")[2:])
    shown = ", ".join(link(test) for test in house.shown_by(module)) or "–"
    said = first_sentence(file).replace("|", "\\|")
    return f"| [{name}](../{file.relative_to(ROOT).as_posix()}) | {said} | {shown} |\n"


def listing() -> str:
    """All rooms, a table each. Packages in a room come with the modules in them."""
    house = make_house()
    parts = []
    for room in ROOMS:
        package = f"spillway.{room}"
        parts.append(f"\n### {room}\n\n{first_sentence(house.files[package])}\n\n{TITLES}")
        parts += [row(house, module) for module in house.files if module.startswith(package + ".")]
    return "".join(parts)


def with_listing(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert rest and after, f"{PAGE.name} has both markers"
    return f"{before}{BEGIN}\n{listing()}\n{END}{after}"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = with_listing(page)
    if "--check" in sys.argv[1:]:
        sys.exit(None if made == page else "docs/map.md is not what the modules say: run `python tools/map.py`")
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
