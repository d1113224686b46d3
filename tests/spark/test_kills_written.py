"""What `make spark-kills` writes down: whole after every trial; what is there counts where that is asked for."""

import json
from pathlib import Path
from typing import Any

from tools.sparkkills import Evidence


def trial(kind: str, **about: Any) -> dict[str, Any]:
    return {"kind": kind, "landed": True, "lost": 0, "twice": 0, "left": 0, **about}


def test_a_run_that_goes_on_adds_to_what_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "kills.json"
    first = Evidence(path)
    for each in (trial("sent"), trial("worker"), trial("worker", landed=False)):
        first.add(each)
    assert first.wrong() == []
    second = Evidence(path, goes_on=True)
    assert (second.landed("worker"), second.landed("sent"), second.landed("driver")) == (1, 1, 0)
    second.add(trial("capture-driver"))
    second.add(trial("worker", lost=3))
    written = json.loads(path.read_text())
    assert [each["kind"] for each in written["trials"]] == ["worker", "worker", "worker", "sent", "capture-driver"]
    assert written["kinds"]["worker"] == {"trials": 3, "landed": 2, "lost": 3, "twice": 0, "left": 0}
    assert [each["kind"] for each in second.wrong()] == ["worker"]
    # Without the word the file says what this run has found, and nothing else.
    third = Evidence(path)
    third.add(trial("cold"))
    assert list(json.loads(path.read_text())["kinds"]) == ["cold"]


def test_a_stream_that_deletes_may_lose_what_died_with_its_tasks_and_nothing_else() -> None:
    evidence = Evidence(Path("nowhere"))
    fine = [trial("delete-driver", lost=500, lost_max=500), trial("delete-last", lost_max=0)]
    wrong = [
        trial("delete-driver", lost=501, lost_max=500),
        trial("delete-worker", twice=1, lost_max=500),
        trial("delete-received", left=1, lost_max=500),
        trial("delete-last", lost=1, lost_max=0),
    ]
    evidence.trials = [*fine, *wrong]
    assert evidence.wrong() == wrong
