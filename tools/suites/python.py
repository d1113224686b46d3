"""The live tests of Azure's Python SDK (`sdk/servicebus/azure-servicebus/tests`) against Spillway.

    python tools/suites/python.py CHECKOUT --python VENV/bin/python [--workers 4] [--only test_queues.py] [-k NAME]

CHECKOUT is one of Azure/azure-sdk-for-python; the interpreter has azure-servicebus and pytest (docs/compatibility.md
says which packages). Their tests are run as they are, on the stage of azure_stage.py. What passed, failed and was
skipped in a whole run goes into docs/evidence/suites.json; a part of them (`--only`, `-k`) is shown and not written.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.tools.commit import commit  # noqa: E402 - the tools are imported from the tree they lie in
from tools.suites import evidence  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = Path("sdk/servicebus/azure-servicebus/tests")
DEVTOOLS = Path("eng/tools/azure-sdk-tools")
# They speak to nobody: units, perf tests that are programs, and the sanitizer of recordings.
NOT_LIVE = ("perf_tests", "unittests")
ADMINISTRATION = "mgmt_tests"
NO_TESTS = 5  # pytest's status
TEST_S = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment of the SDK")
    parser.add_argument("--installed", action="store_true", help="the SDK of that environment, not the checkout's own")
    parser.add_argument("--broker-path", default=str(ROOT / "src"), help="where the broker's package lies")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--only", action="append", default=[], help="files below their tests")
    parser.add_argument("-k", dest="keyword", default="")
    parser.add_argument("--out", type=Path, default=evidence.SUITES)
    parser.add_argument("--dry", action="store_true", help="write no evidence")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="suite-python-"))
    cases: list[evidence.Case] = []
    status = 0
    begun_s = time.monotonic()
    said = about(arguments)
    for name in ("data", "administration"):
        report = directory / f"{name}.xml"
        found = run(arguments, report, name == "administration")
        if report.exists():
            cases += evidence.read_junit(ElementTree.parse(report).getroot())
        status = max(status, 0 if found == NO_TESTS else found)
    summary = evidence.summarise(cases)
    evidence.show(summary)
    if is_whole(arguments) and not arguments.dry:
        minutes = round((time.monotonic() - begun_s) / 60, 1)
        evidence.put(arguments.out, "python-sdk", {**said, "minutes": minutes, **asdict(summary)})
    return status


def is_whole(arguments: argparse.Namespace) -> bool:
    return not arguments.only and not arguments.keyword


def about(arguments: argparse.Namespace) -> dict[str, object]:
    """What was run: asked before the tests, for a commit may come while they run."""
    ask = "import azure.servicebus, platform; print(azure.servicebus.__version__, platform.python_version())"
    sdk, version = printed([str(arguments.python), "-c", ask], environment_of(arguments)).split()
    return {
        "sdk": f"azure-servicebus {sdk}",
        "python": version,
        "commit": commit(),
        "broker": kind_of(Path(arguments.broker_path)),
        "workers": arguments.workers,
    }


def kind_of(broker_path: Path) -> str:
    return "compiled" if any((broker_path / "spillway").rglob("*.so")) else "pure Python"


def printed(command: list[str], environment: dict[str, str] | None = None) -> str:
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode().strip()


def environment_of(arguments: argparse.Namespace) -> dict[str, str]:
    checkout: Path = arguments.checkout.resolve()
    tests = checkout / TESTS
    places = [HERE, checkout / DEVTOOLS, tests, tests / "mgmt_tests"]
    if not arguments.installed:
        places.append(tests.parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "SPILLWAY_SUITE_COMMAND": json.dumps([sys.executable, "-m", "spillway"]),
        "SPILLWAY_SUITE_PYTHONPATH": str(Path(arguments.broker_path).resolve()),
    }


def run(arguments: argparse.Namespace, report: Path, is_administration: bool) -> int:
    """Those of the administration client delete whatever there is, so they have brokers of their own."""
    tests: Path = arguments.checkout.resolve() / TESTS
    command = [str(arguments.python), "-m", "pytest", "-p", "azure_stage", "-q", "--tb=short", f"--junitxml={report}"]
    command += ["-o", "asyncio_mode=auto", "-o", "junit_family=xunit2", f"--timeout={TEST_S}", "-p", "no:cacheprovider"]
    for name in NOT_LIVE:
        command.append(f"--ignore={tests / name}")
    if arguments.workers > 1:
        command += ["-n", str(arguments.workers), "--dist", "loadscope" if arguments.only else "load"]
    if arguments.keyword:
        command += ["-k", arguments.keyword]
    if not is_administration:
        command.append(f"--ignore={tests / ADMINISTRATION}")
    wanted = [name for name in arguments.only if name.startswith(ADMINISTRATION) == is_administration]
    if arguments.only and not wanted:
        return NO_TESTS
    command += [str(tests / name) for name in wanted] or [str(tests / ADMINISTRATION if is_administration else tests)]
    return subprocess.run(command, env=environment_of(arguments), cwd=tests, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
