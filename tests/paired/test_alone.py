"""The library needs nothing of our broker."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spillway
from tests.paired.namespaces import Namespaces

PROGRAM = """
import asyncio, datetime, sys
from azure.servicebus import ServiceBusMessage
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions, sync

async def main(primary, secondary, ca_file, path, away, syphon):
    first = MessagingFactory.from_connection_string(primary, operation_timeout=10)
    second = MessagingFactory.from_connection_string(secondary, operation_timeout=10)
    manager = NamespaceManager.from_connection_string(secondary, ca_file=ca_file)
    async with first, second, manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, second, 1, datetime.timedelta(0), syphon == "syphon")
        await first.pair_namespace(options)
        await first.create_message_sender(path).send_messages(ServiceBusMessage("alone"))
        await first.create_message_sender(away).send_messages(ServiceBusMessage("diverted"))
        print(first.counters["diverted"], f"{first.namespace_name}/x-servicebus-transfer/0")
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("spillway.")}
    print(*sorted(rooms))

asyncio.run(main(*sys.argv[1:]))
"""


SENDS = ["loops", "model", "paired"]
SYPHONS = ["amqp", "client", "dialect", "loops", "model", "paired", "syphon"]


@pytest.mark.parametrize("rooms", [SENDS, SYPHONS], ids=["sends", "syphons"])
async def test_it_runs_with_all_rooms_of_the_broker_absent(
    namespaces: Namespaces, tmp_path: Path, rooms: list[str]
) -> None:
    """Sends to a primary that is well, and to the backlog; both are other processes."""
    path, away = namespaces.queue(), namespaces.queue()
    faults = namespaces.refuse(away)
    source = Path(spillway.__file__).parent
    package = tmp_path / "spillway"
    package.mkdir()
    shutil.copy(source / "__init__.py", package)
    for room in rooms:
        shutil.copytree(source / room, package / room)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, namespaces.primary.connection_string, namespaces.secondary.connection_string]
        + [str(namespaces.secondary.ca_file), path, away, "syphon" if "syphon" in rooms else ""],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    count, backlog, *loaded = done.stdout.split()
    assert (count, loaded) == ("1", rooms)
    assert await namespaces.bodies(namespaces.primary, path) == ["alone"]
    assert await namespaces.bodies(namespaces.secondary, backlog) == ["diverted"]
    faults.clear()
