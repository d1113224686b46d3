"""The live tests of Microsoft's JavaScript SDK against Spillway: `tools/suites/javascript.py CHECKOUT`.

CHECKOUT is a copy of the SDK's repository at the tag of the version under test, with `sdk/servicebus/service-bus` and
`sdk/test-utils`; nothing of it is kept here. Its sources and tests are translated into a directory of their own, beside
the packages that they name, and run with mocha against one broker that has to live through all of them. Files run side
by side, each in a namespace of its own: the tests make, fill and delete entities of fixed names. They draw the kind of
entity at random; `--seed` says from which seed. Nothing but this machine is connected to.

`--out` gets the numbers under the key `javascript-sdk`, after each seed; other keys of that file stay as they are.
"""

import argparse
import json
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT)]
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from tests.tools.broker_process import BrokerProcess, Listening  # noqa: E402 - of the tree that this file lies in
from tests.tools.commit import commit  # noqa: E402
from tests.tools.js import node_command, npm_command  # noqa: E402
from tools.suites import evidence  # noqa: E402

HERE = Path(__file__).resolve().parent / "javascript"
SDK = "7.9.5"
# What the tests import, by the ranges that the SDK of that version asks for. Of core-amqp and core-util the versions of
# its time: the tests compare the texts of errors that later ones put together anew.
PACKAGES: Final = (
    f"@azure/service-bus@{SDK}",
    "@azure/abort-controller@1",
    "@azure/core-amqp@~4.2.2",
    "@azure/core-util@~1.9.0",
    "@azure/identity@4",
    "@opentelemetry/api@1",
    "buffer@6",
    "chai@4",
    "chai-as-promised@7",
    "chai-exclude@2",
    "debug@4",
    "dotenv@16",
    "events@3",
    "https-proxy-agent@7",
    "is-buffer@2",
    "long@5",
    "mocha@10",
    "moment@2",
    "sinon@17",
    "typescript@5.4",
    "uuid@8",
    "ws@8",
)
PACKAGE: Final = "sdk/servicebus/service-bus"
UNIT: Final = "internal/unit/"  # these ask no broker
LONG: Final = (
    "internal/renewLock.",
    "internal/batch",
    "public/renew",
    "public/send",
)  # first: they wait for locks to end
TEST_TIMEOUT_MS: Final = 1_200_000  # what the SDK's own runner allows
FILE_TIMEOUT_S: Final = 1500.0
# Why a test cannot pass here, by a pattern in its title.
NEEDS: Final = {
    "DefaultAzureCredential": "Entra",
    r"TokenCredentials \w+: sends a message": "Entra",
    "Premium namespaces": "Premium",
}


@dataclass
class Outcome:
    """What became of one test."""

    title: str
    outcome: str
    error: str | None = None
    duration_ms: int | None = None


@dataclass
class SpecFile:
    """One file of tests after it has run."""

    name: str
    seconds: float = 0.0
    status: int | None = None
    tests: list[Outcome] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(test.outcome == outcome for test in self.tests)


def prepare(checkout: Path, work: Path) -> None:
    """The packages by name from npm, and the checkout's TypeScript translated beside them."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "package.json").write_text(json.dumps({"private": True}))
    subprocess.run(
        [*npm_command(), "install", "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES],
        cwd=work,
        check=True,
        timeout=600,
    )
    built = work / "checkout" / "package"
    tools = work / "node_modules" / "@azure-tools"
    for made in (built, tools):
        shutil.rmtree(made, ignore_errors=True)
    roots = {
        checkout / PACKAGE / "src": built / "src",
        checkout / PACKAGE / "test" / "internal": built / "test" / "internal",
        checkout / PACKAGE / "test" / "public": built / "test" / "public",
        checkout / "sdk/test-utils/test-utils/src": tools / "test-utils",
    }
    pairs = [str(path) for pair in roots.items() for path in pair]
    environment = {**os.environ, "NODE_PATH": str(work / "node_modules")}
    subprocess.run([*node_command(), str(HERE / "transpile.cjs"), *pairs], check=True, timeout=300, env=environment)
    shutil.copy(checkout / PACKAGE / "package.json", built / "package.json")
    # Of the recorder the tests want the environment; recordings are not played.
    (tools / "test-recorder").mkdir()
    (tools / "test-recorder" / "index.js").write_text(
        "exports.env = process.env;\nexports.isLiveMode = () => true;\n"
        "exports.assertEnvironmentVariable = (name) => {\n"
        "  if (!process.env[name]) throw new Error(`${name} is not set`);\n  return process.env[name];\n};\n"
    )


def spec_files(work: Path, only: Sequence[str]) -> list[str]:
    """Names of the files to run, relative to the directory of tests."""
    tests = work / "checkout" / "package" / "test"
    names = sorted(str(path.relative_to(tests)) for path in tests.rglob("*.spec.js"))
    return [name for name in names if not only or any(word in name for word in only)]


def connection_environment(listening: Listening) -> dict[str, str]:
    """For a Node that `preload.cjs` is loaded into: a namespace with a name as Azure's, without a port."""
    assert listening.ca_file is not None
    rest = listening.connection_string.partition(";")[2].replace("UseDevelopmentEmulator=true;", "")
    return {
        "NODE_EXTRA_CA_CERTS": listening.ca_file,
        "SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://{listening.name}.servicebus.windows.net/;{rest}".rstrip(";"),
        "SUITE_HOST": f"{listening.name}.servicebus.windows.net",
        "SUITE_PORT": str(listening.port),
    }


def run_file(work: Path, name: str, seed: int, listening: Listening, grep: str | None) -> SpecFile:
    """One file in a mocha of its own. A run that passes its time is ended, and what it had not ended has failed."""
    ran = SpecFile(name)
    directory = work / "results" / str(seed)
    directory.mkdir(parents=True, exist_ok=True)
    results = directory / (name.replace("/", "+") + ".jsonl")
    results.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **connection_environment(listening),
        # The tests ask for these before anything else; no token of Entra is ever asked for successfully.
        "AZURE_CLIENT_ID": "none",
        "AZURE_CLIENT_SECRET": "none",
        "AZURE_TENANT_ID": "none",
        # Files of one seed do not all draw the same.
        "SUITE_SEED": str(zlib.crc32(f"{seed} {name}".encode())),
        "SUITE_SHOULD": "1",
        "SUITE_RESULTS": str(results),
    }
    command = [*node_command(), str(work / "node_modules" / "mocha" / "bin" / "mocha.js"), "--exit"]
    command += ["--require", str(HERE / "preload.cjs"), "--reporter", str(HERE / "reporter.cjs")]
    command += ["--timeout", str(TEST_TIMEOUT_MS), *(["--grep", grep] if grep else [])]
    command += [str(work / "checkout" / "package" / "test" / name)]
    began = time.monotonic()
    with (directory / (name.replace("/", "+") + ".log")).open("wb") as log:
        process = subprocess.Popen(command, cwd=work / "checkout" / "package", env=environment, stdout=log, stderr=log)
        try:
            ran.status = process.wait(FILE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    ran.seconds = round(time.monotonic() - began, 1)
    ran.tests = read_results(results.read_text().splitlines() if results.exists() else [])
    if not ran.tests and ran.status != 0:
        ran.tests = [Outcome(f"{name}: the file", "failed", f"mocha ended with {ran.status}, see its log")]
    return ran


def read_results(lines: Iterable[str]) -> list[Outcome]:
    """The last word on each test. One that only began has failed: the run ended first."""
    tests: dict[str, Outcome] = {}
    counts: dict[str, int] = {}
    for line in lines:
        said = json.loads(line)
        title = said["title"]
        if said["outcome"] == "begun":
            counts[title] = counts.get(title, 0) + 1
        # Some tests of a file have the same title.
        number = counts.get(title, 1)
        key = title if number == 1 else f"{title} ({number})"
        outcome = "failed" if said["outcome"] == "begun" else said["outcome"]
        error = "has not ended" if said["outcome"] == "begun" else said.get("error")
        tests[key] = Outcome(key, outcome, error, said.get("duration_ms"))
    return list(tests.values())


def need_of(title: str) -> str | None:
    """What Azure has for this test and Spillway has not."""
    return next((need for pattern, need in NEEDS.items() if re.search(pattern, title)), None)


def run_seed(work: Path, names: Sequence[str], seed: int, jobs: int, grep: str | None) -> dict[str, Any]:
    """All files once, against one broker. Says whether it lived."""
    data = work / f"broker-{seed}"
    shutil.rmtree(data, ignore_errors=True)
    namespaces = [f"suite{number}" for number in range(jobs)]
    broker = BrokerProcess(data, namespaces=namespaces, is_development=False)
    broker.stderr_path.unlink(missing_ok=True)
    broker.start()
    free: queue.Queue[str] = queue.Queue()
    for namespace in namespaces:
        free.put(namespace)
    mutex = threading.Lock()

    def run(name: str) -> SpecFile:
        namespace = free.get()
        try:
            ran = run_file(work, name, seed, broker.namespaces[namespace], grep)
        finally:
            free.put(namespace)
        with mutex:
            counts = " ".join(f"{outcome} {ran.count(outcome)}" for outcome in ("passed", "failed", "skipped"))
            print(f"seed {seed}  {name}: {counts}  ({ran.seconds:.0f} s)", flush=True)
            for test in ran.tests:
                if test.outcome == "failed":
                    first = (test.error or "").strip().splitlines()[:1]
                    print(f"    {test.title}\n        {''.join(first)}", flush=True)
        return ran

    order = sorted(names, key=lambda name: (not name.startswith(LONG), name.startswith(UNIT), name))
    with ThreadPoolExecutor(jobs) as pool:
        files = list(pool.map(run, order))
    is_alive = broker.is_running
    tracebacks = broker.stderr.count("Traceback")
    if is_alive:
        broker.stop()
    return summary(seed, files, is_alive, tracebacks)


def summary(seed: int, files: Sequence[SpecFile], is_alive: bool, tracebacks: int) -> dict[str, Any]:
    """The numbers of one seed. What needs Premium or Entra is counted apart, whatever became of it."""
    files = sorted(files, key=lambda ran: ran.name)
    tests = [(ran, test) for ran in files for test in ran.tests]
    counted = [(ran, test) for ran, test in tests if test.outcome != "skipped" and need_of(test.title) is None]
    passed = sum(test.outcome == "passed" for _, test in counted)
    live = [test for ran, test in counted if not ran.name.startswith(UNIT)]
    return {
        "seed": seed,
        "tests": len(tests),
        "counted": len(counted),
        "passed": passed,
        "passed_percent": round(100 * passed / len(counted), 2) if counted else None,
        "live_counted": len(live),
        "live_passed": sum(test.outcome == "passed" for test in live),
        "skipped": sum(test.outcome == "skipped" for _, test in tests),
        "needs": {
            need: sum(need_of(test.title) == need for _, test in tests if test.outcome != "skipped")
            for need in sorted(set(NEEDS.values()))
        },
        "broker_alive": is_alive,
        "broker_tracebacks": tracebacks,
        "files": {
            ran.name: {
                "passed": ran.count("passed"),
                "failed": ran.count("failed"),
                "skipped": ran.count("skipped"),
                "seconds": ran.seconds,
            }
            for ran in files
        },
        "failed": [f"{ran.name}: {test.title}" for ran, test in counted if test.outcome == "failed"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "suites" / "javascript")
    parser.add_argument("--seed", type=int, action="append", help="may be repeated; default 1, 2 and 3")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="files whose name has this part")
    parser.add_argument("--grep", help="tests whose title matches")
    parser.add_argument("--jobs", type=int, default=3, help="files at a time")
    parser.add_argument("--out", type=Path, help="JSON that gets the numbers under its key `javascript-sdk`")
    parser.add_argument("--no-prepare", action="store_true", help="what the last run has prepared is there still")
    options = parser.parse_args()
    work = options.work.resolve()
    if not options.no_prepare:
        prepare(options.checkout.resolve(), work)
    names = spec_files(work, options.only)
    seeds = options.seed or [1, 2, 3]
    runs: list[dict[str, Any]] = []
    at = commit()
    for seed in seeds:
        runs.append(run_seed(work, names, seed, options.jobs, options.grep))
        if options.out:
            node = subprocess.run([*node_command(), "--version"], capture_output=True, text=True).stdout.strip()
            told = {
                "sdk": f"@azure/service-bus {SDK}",
                "node": node,
                "python": platform.python_version(),
                "commit": at,
                "runs": runs,
            }
            evidence.put(options.out, "javascript-sdk", told)
    for run in runs:
        print(
            f"seed {run['seed']}: {run['passed']} of {run['counted']} passed ({run['passed_percent']} %), "
            f"{run['live_passed']} of {run['live_counted']} of those that ask the broker, {run['skipped']} skipped; "
            f"the broker {'lived' if run['broker_alive'] else 'DIED'}, {run['broker_tracebacks']} tracebacks"
        )
    return 0 if all(run["broker_alive"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
