"""Microsoft's samples of the Python SDK against Spillway, each on a broker of its own, blocking and asyncio.

    python tools/suites/python_samples.py CHECKOUT --python VENV/bin/python [--only receive_queue.py]

A sample passes that runs to its end. Those that need a proxy are skipped. Writes docs/evidence/suites.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tools.suites import evidence  # noqa: E402 - the tools are imported from the tree they lie in

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLES = Path("sdk/servicebus/azure-servicebus/samples")
SAMPLE_S = 900  # those of the lock renewer sleep for minutes
# They receive until they are stopped: so long, and without an error, is long enough.
ENDLESS = ("receive_iterator_queue", "failure_and_recovery")
ENDLESS_S = 40
# What they need that is not here.
SKIPPED = {
    "proxy": "needs an HTTP proxy",
    "connection_to_custom_endpoint_address": "needs the address of an application gateway written into it",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment of the SDK")
    parser.add_argument("--installed", action="store_true", help="the SDK of that environment, not the checkout's own")
    parser.add_argument("--broker-path", default=str(ROOT / "src"), help="where the broker's package lies")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=Path, default=evidence.SUITES)
    parser.add_argument("--dry", action="store_true", help="write no evidence")
    arguments = parser.parse_args()
    found = sorted((arguments.checkout.resolve() / SAMPLES).glob("*/*.py"))
    wanted = [path for path in found if not arguments.only or path.name in arguments.only]
    with ThreadPoolExecutor(arguments.workers) as pool:
        cases = list(pool.map(lambda path: play(arguments, path), wanted))
    summary = evidence.summarise(cases)
    evidence.show(summary)
    if not arguments.dry:
        evidence.write(arguments.out, "python-samples", summary)
    return 1 if summary.failed else 0


def play(arguments: argparse.Namespace, sample: Path) -> evidence.Case:
    name = f"{sample.parent.name}/{sample.name}"
    reason = SKIPPED.get(sample.stem.removesuffix("_async"))
    if reason is not None:
        return evidence.Case(name, "skipped", reason)
    places = [HERE] if arguments.installed else [HERE, sample.parents[2]]
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "SPILLWAY_SUITE_COMMAND": json.dumps([sys.executable, "-m", "spillway"]),
        "SPILLWAY_SUITE_PYTHONPATH": str(Path(arguments.broker_path).resolve()),
    }
    command = [str(arguments.python), str(HERE / "azure_sample.py"), str(sample)]
    is_endless = sample.stem.removesuffix("_async") in ENDLESS
    limit_s = ENDLESS_S if is_endless else SAMPLE_S
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # with the broker that it starts
    )
    try:
        said, complained = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, complained = process.communicate()
        if is_endless and b"message 9" in said and b"Traceback" not in complained:
            return evidence.Case(name, "passed")
        return evidence.Case(name, "failed", f"not done after {limit_s} s")
    if process.returncode != 0:
        lines = complained.decode(errors="replace").strip().splitlines()
        return evidence.Case(name, "failed", lines[-1][: evidence.REASON_CHARS_MAX] if lines else "")
    return evidence.Case(name, "passed")


if __name__ == "__main__":
    sys.exit(main())
