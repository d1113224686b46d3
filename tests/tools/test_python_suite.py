"""`tools/suites/python.py` and its stage: their tests speak to this machine alone; a part of them is no evidence."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from tools.suites.python import is_whole, kind_of

STAGE = Path(__file__).parents[2] / "tools" / "suites"


def played(lines: str) -> str:
    """What a process says that stays on the machine as the stage does: it cannot be undone in this one."""
    begin = f"import sys; sys.path.insert(0, {str(STAGE)!r})\nimport asyncio, socket, azure_stage\n"
    begin += "azure_stage.stay_on_this_machine()\n"
    made = subprocess.run([sys.executable, "-c", begin + lines], capture_output=True, check=True, timeout=60)
    return made.stdout.decode().strip()


def test_no_other_name_is_looked_up() -> None:
    said = played(
        "for look in (lambda: socket.getaddrinfo('fakeaddress.com', 1111), lambda: socket.gethostbyname('azure.com'),\n"
        "             lambda: asyncio.run(asyncio.wait_for(asyncio.open_connection('azure.com', 443), 5))):\n"
        "    try: look()\n"
        "    except socket.gaierror as error: print(error.strerror)\n"
    )
    assert said.splitlines() == [
        "fakeaddress.com is not this machine",
        "azure.com is not this machine",
        "azure.com is not this machine",
    ]


def test_no_other_address_is_sent_to() -> None:
    said = played(
        "tcp = socket.socket()\n"
        "udp = socket.socket(type=socket.SOCK_DGRAM)\n"
        "for go in (lambda: tcp.connect(('192.0.2.1', 5671)), lambda: tcp.connect_ex(('192.0.2.1', 5671)),\n"
        "           lambda: udp.sendto(b'', ('192.0.2.1', 53))):\n"
        "    try: go()\n"
        "    except ConnectionRefusedError as error: print(error.strerror)\n"
    )
    assert said.splitlines() == ["192.0.2.1 is not this machine"] * 3


def test_loopback_is_open_by_name_and_by_number() -> None:
    said = played(
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "port = server.getsockname()[1]\n"
        "for host in ('localhost', '127.0.0.1'):\n"
        "    with socket.create_connection((host, port), 5): print('open')\n"
    )
    assert said.splitlines() == ["open", "open"]


def test_a_part_of_the_tests_is_no_evidence() -> None:
    assert is_whole(Namespace(only=[], keyword=""))
    assert not is_whole(Namespace(only=["test_queues.py"], keyword=""))
    assert not is_whole(Namespace(only=[], keyword="renew"))


def test_the_evidence_says_whether_the_broker_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "spillway").mkdir()
    assert kind_of(tmp_path) == "pure Python"
    (tmp_path / "spillway" / "hot.cpython-311-x86_64-linux-gnu.so").touch()
    assert kind_of(tmp_path) == "compiled"
