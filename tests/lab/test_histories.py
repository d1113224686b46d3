"""What clients write down is there when they are gone, and can be followed while it grows."""

import json
import subprocess
import sys
from pathlib import Path

from spillway.lab.histories import DELIVERED, EVENT, INFO, OK, SEND, SUFFIX, History, Tail, read_lines


def test_lines_have_a_time_a_process_and_what_was_said(tmp_path: Path) -> None:
    history = History(tmp_path, "producer0")
    history.write(SEND, id="producer0-0", res=OK)
    history.write(SEND, id="producer0-1", res=INFO)
    history.close()
    first, other = read_lines(tmp_path)
    assert {**first, "t": 0} == {"t": 0, "p": "producer0", "op": "send", "id": "producer0-0", "res": "ok"}
    assert first["t"] < other["t"]


def test_a_killed_process_leaves_every_line_that_it_wrote(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from spillway.lab.histories import History\n"
        "history = History(Path(sys.argv[1]), 'victim')\n"
        "for number in range(1000): history.write('send', id=str(number), res='ok')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert [line["id"] for line in read_lines(tmp_path)] == [str(number) for number in range(1000)]


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    History(tmp_path, "producer0").close()
    assert (tmp_path / f"producer0{SUFFIX}").stat().st_mode & 0o077 == 0


def test_a_tail_counts_what_is_new_and_waits_for_lines_that_are_not_finished(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert set(tail.update().values()) == {0}
    history = History(tmp_path, "producer0")
    history.write(SEND, res=OK)
    history.write(SEND, res=INFO)
    history.write(EVENT, name="diverted", count=3)
    history.write(DELIVERED, id="x")
    half = json.dumps({"op": SEND, "res": OK})
    with (tmp_path / f"producer0{SUFFIX}").open("a") as file:
        file.write(half[:5])
    assert tail.update() == {"acknowledged": 1, "diverted": 3, "syphoned": 0, "delivered": 1, "failed": 1}
    with (tmp_path / f"producer0{SUFFIX}").open("a") as file:
        file.write(half[5:] + "\n")
    assert tail.update()["acknowledged"] == 2


def test_a_tail_knows_who_is_failed_over(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    history = History(tmp_path, "producer0")
    history.write(EVENT, name="failed-over", count=1)
    tail.update()
    assert tail.away == {"producer0"}
    history.write(EVENT, name="recovered", count=1)
    tail.update()
    assert tail.away == set()
