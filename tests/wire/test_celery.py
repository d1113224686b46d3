"""docs/celery.md: its three lines are run as they stand, and a Celery worker and a program use what they made.

They write to /etc/hosts, take the ports 443 and 5671 and add to certifi's file: all of that in Linux namespaces of
their own, where nothing of this machine is touched and every process ends with the first.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spillway

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = (ROOT / "docs" / "celery.md").read_text(encoding="utf-8")
TASKS = 3
APART = ("unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc")
# What a machine has anyway: its own network, a hosts file, certifi's file, sudo. Then the guide's lines, and Celery.
SCRIPT = """
set -eu
python -c '
import fcntl, socket, struct
up = struct.pack("16sh", b"lo", 1)
fcntl.ioctl(socket.socket(), 0x8914, up)
'
cp /etc/hosts hosts && mount --bind hosts /etc/hosts
cp "$(python -m certifi)" cacert.pem && mount --bind cacert.pem "$(python -m certifi)"
sudo() {{ "$@"; }}
until_true() {{ for i in $(seq 300); do if eval "$1"; then return; fi; sleep 0.1; done; echo "never: $1"; exit 1; }}

{name}
{serve} > serve.log 2>&1 &
until_true 'grep -q "is ready on port" serve.log'
{trust}

SPILLWAY_KEY=$(spillway connection-string | sed 's/.*SharedAccessKey=//; s/;.*//')
export SPILLWAY_KEY
python -m celery -A tasks worker --concurrency 1 --loglevel warning > worker.log 2>&1 &
python -c 'import tasks
for number in range({tasks}): tasks.note.delay(f"hello {{number}}")'
until_true 'test -e noted.txt && test "$(wc -l < noted.txt)" -ge {tasks}'
"""


def can_be_apart() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*APART, "true"], capture_output=True).returncode == 0


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)
    return str(found)


def test_celery_works_after_the_three_lines_of_the_guide(tmp_path: Path) -> None:
    if not can_be_apart():
        pytest.skip("this user may not make Linux namespaces")
    name, serve, trust = block("sh").splitlines()
    (tmp_path / "tasks.py").write_text(block("python"))
    script = SCRIPT.format(name=name, serve=serve.removesuffix(" &"), trust=trust, tasks=TASKS)
    commands = tmp_path / "bin"
    commands.mkdir()
    for command, words in (("python", ""), ("spillway", "-m spillway ")):
        (commands / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (commands / command).chmod(0o755)
    bundles = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    environment = {key: value for key, value in os.environ.items() if key not in bundles}
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(spillway.__file__).resolve().parent.parent)
    ran = subprocess.run(
        [*APART, "sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    logs = "".join(f"--- {log.name}\n{log.read_text()}" for log in tmp_path.glob("*.log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{logs}"
    assert sorted((tmp_path / "noted.txt").read_text().splitlines()) == [f"hello {number}" for number in range(TASKS)]
    assert "Traceback" not in (tmp_path / "serve.log").read_text()
    hosts = Path("/etc/hosts").read_text()
    assert "spillway.servicebus" not in hosts, "the machine's own file is as it was"
