"""The library needs nothing of our broker."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import spillway
from tests.paired.namespaces import Namespaces

PROGRAM = """
import asyncio, datetime, sys
from azure.servicebus import ServiceBusMessage
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

async def main(primary, secondary, ca_file, path):
    first = MessagingFactory.from_connection_string(primary, operation_timeout=10)
    second = MessagingFactory.from_connection_string(secondary, operation_timeout=10)
    manager = NamespaceManager.from_connection_string(secondary, ca_file=ca_file)
    async with first, second, manager:
        await first.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, second, 1, datetime.timedelta(0)))
        await first.create_message_sender(path).send_messages(ServiceBusMessage("alone"))
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("spillway.")}
    print(*sorted(rooms))

asyncio.run(main(*sys.argv[1:]))
"""


def test_it_runs_with_all_rooms_of_the_broker_absent(namespaces: Namespaces, tmp_path: Path) -> None:
    path = namespaces.queue()
    source = Path(spillway.__file__).parent
    package = tmp_path / "spillway"
    package.mkdir()
    shutil.copy(source / "__init__.py", package)
    for room in ("paired", "model"):
        shutil.copytree(source / room, package / room)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, namespaces.primary.connection_string, namespaces.secondary.connection_string]
        + [str(namespaces.secondary.ca_file), path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["model", "paired"]
