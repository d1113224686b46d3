"""The blocking flavour after a fork, and when the interpreter ends: a call works or is refused, and never hangs."""

import os
import subprocess
import sys
from pathlib import Path

import spillway
from tests.paired.namespaces import Namespaces

FORKED = """
import os, signal, sys
from azure.servicebus import ServiceBusMessage
from spillway.paired.sync import MessagingFactory

text, path = sys.argv[1:]
factory = MessagingFactory.from_connection_string(text, operation_timeout=20)
sender, client = factory.create_message_sender(path), factory.create_queue_client(path)
sender.send_messages(ServiceBusMessage("parent, before"))
child = os.fork()
if child == 0:
    signal.alarm(50)
    for use in (
        lambda: sender.send_messages(ServiceBusMessage("never")),
        lambda: client.receive_messages(1),
        lambda: factory.create_message_sender(path),
        lambda: factory.create_message_receiver(path),
        lambda: factory.ledger.totals(),
    ):
        try:
            use()
        except RuntimeError as error:
            print(error, flush=True)
    client.close()
    factory.close()
    with MessagingFactory.from_connection_string(text, operation_timeout=20) as own:
        own.create_message_sender(path).send_messages(ServiceBusMessage("child"))
    del factory, sender, client
    sys.exit(7)
_, status = os.waitpid(child, 0)
sender.send_messages(ServiceBusMessage("parent, after"))
factory.close()
print("child", os.waitstatus_to_exitcode(status), flush=True)
"""

LATE = """
import atexit, sys
from azure.servicebus import ServiceBusMessage
from spillway.paired.sync import MessagingFactory

def late():
    for use in (lambda: sender.send_messages(ServiceBusMessage("late")), factory.close):
        try:
            use()
        except RuntimeError as error:
            print(error, flush=True)

atexit.register(late)
text, path = sys.argv[1:]
factory = MessagingFactory.from_connection_string(text, operation_timeout=20)
sender = factory.create_message_sender(path)
sender.send_messages(ServiceBusMessage("in time"))
"""


def run(program: str, *arguments: str) -> list[str]:
    """The lines it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(spillway.__file__).parent.parent)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


async def test_a_fork_makes_factories_of_its_own_and_leaves_those_of_its_parent_alone(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    *refusals, child = run(FORKED, namespaces.primary.connection_string, path)
    assert child == "child 7"
    assert len(refusals) == 5
    assert all("was made before this process was forked" in refusal for refusal in refusals)
    assert await namespaces.bodies(namespaces.primary, path) == ["parent, before", "child", "parent, after"]


async def test_a_call_when_the_interpreter_has_stopped_the_library_is_an_error(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    refusals = run(LATE, namespaces.primary.connection_string, path)
    assert len(refusals) == 2
    assert all("the interpreter is ending" in refusal for refusal in refusals)
    assert await namespaces.bodies(namespaces.primary, path) == ["in time"]
