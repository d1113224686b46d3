"""The process of the lab in which Spark is: `python -m spillway.lab.spark_host DIRECTORY`.

Spark starts while the producers already send. Then it does what it is told on stdin, a line of JSON each, and answers
on stdout with lines of JSON:

    {"do": "syphon", …}    brings the backlog home until it is told to stop
    {"do": "stop"}         …and says what came home
    {"do": "report", …}    metering, cost and availability of a run that is over, in the session that is warm by now

It knows the namespaces by their connection strings, and ledgers, events and histories as files: nothing else.
"""

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spillway.lab.histories import EVENT, History
from spillway.spark.billing.metering_inputs import LedgerDirectory
from spillway.spark.jobs import availability, cost, metering, syphon
from spillway.spark.platform.session import SHORT_LIVED_JAVA, build_session, say_on_stderr

if TYPE_CHECKING:
    from spillway.paired.events import Event

STARTED: Final = "started"
STOPPED: Final = "stopped"
REPORTED: Final = "reported"
FAILED: Final = "failed"
JAVA_OPTIONS: Final = f"{SHORT_LIVED_JAVA} -Xss4m"
# The data is small: what Spark does to be quick with much of it takes longer than the work.
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def write_answer(answers: int, what: str, **fields: Any) -> None:
    os.write(answers, json.dumps({"is": what, **fields}).encode() + b"\n")


class Host:
    """Made when Spark has started. `answers` is a file descriptor."""

    def __init__(self, directory: Path, answers: int) -> None:
        local = directory / "spark"
        local.mkdir(exist_ok=True)
        settings = {**SETTINGS, "spark.local.dir": str(local), "spark.sql.warehouse.dir": str(local / "warehouse")}
        self.spark = build_session("spillway lab", config=settings)
        self.answers = answers
        self.job: syphon.SyphonRun | None = None
        self.work: threading.Thread | None = None
        self.history: History | None = None
        self.failure = ""

    def serve(self) -> None:
        self.answer(STARTED)
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "syphon":
                self.begin(asked)
            elif asked["do"] == "stop":
                self.stop()
            elif asked["do"] == "report":
                self.tell_report(asked)
        self.spark.stop()

    def answer(self, what: str, **fields: Any) -> None:
        write_answer(self.answers, what, **fields)

    # -- the syphon -------------------------------------------------------------------------------------------------

    def begin(self, asked: dict[str, Any]) -> None:
        self.history = History(Path(asked["directory"]), "syphon")
        config = syphon.SyphonConfig(
            asked["primary"],
            asked["secondary"],
            watch=True,
            events=asked["events"],
            timeout_s=asked["timeout_s"],
            patience_s=asked["patience_s"],
            on_event=self.note,
        )
        self.failure = ""
        self.job = syphon.SyphonRun(self.spark, config)
        self.work = threading.Thread(target=self.syphon, args=(self.job,), name="syphon")
        self.work.start()

    def syphon(self, job: syphon.SyphonRun) -> None:
        try:
            say_on_stderr(syphon.text_of(job.run()))
        except Exception as error:
            self.failure = str(error)[:500] or type(error).__name__
            self.answer(FAILED, why=f"the syphon ended: {self.failure}")

    def note(self, event: "Event") -> None:
        """Write down an event as the syphon of the library does."""
        assert self.history is not None, "begun"
        self.history.write(EVENT, name=event.name, path=event.path, count=event.count)

    def stop(self) -> None:
        if self.job is not None and self.work is not None:
            self.job.stop()
            self.work.join()
        if self.history is not None:
            self.history.close()
        self.job = self.work = self.history = None
        self.answer(STOPPED)

    # -- the reports ------------------------------------------------------------------------------------------------

    def tell_report(self, asked: dict[str, Any]) -> None:
        """Make the reports. One that fails is no reason to end: there may be further scenarios."""
        try:
            made = self.report(asked)
        except Exception as error:
            self.answer(FAILED, why=f"{type(error).__name__}: {error}"[:500])
        else:
            self.answer(REPORTED, **made)

    def report(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Make both reports at the same time: each leaves a core idle while it plans. The pages are beside the
        histories."""
        with ThreadPoolExecutor(2) as threads:
            told = threads.submit(self.tell, asked)
            bill = threads.submit(self.charge, asked)
            return {"cost": bill.result(), "availability": told.result()}

    def charge(self, asked: dict[str, Any]) -> dict[str, Any]:
        directory = Path(asked["directory"])
        bill = directory / "bill"
        sources = tuple(LedgerDirectory(Path(path), name) for name, path in asked["ledgers"].items())
        metered = metering.run(self.spark, metering.MeteringConfig(bill, sources))
        say_on_stderr(metering.words_of(metered))
        tariff = cost.make_tariff([], 1, {asked["name"]: asked["primary"]})
        charged = cost.run(self.spark, cost.CostConfig(bill, directory / "cost", tariff))
        *words, _page = cost.words_of(charged).splitlines()
        return {"words": words, "summary": asdict(charged)}

    def tell(self, asked: dict[str, Any]) -> dict[str, Any]:
        directory = Path(asked["directory"])
        # The primary is called in its ledger as it calls itself, and by the pairing after its address.
        ledgers = tuple(
            (asked["name"] if name == asked["primary"] else name, Path(path)) for name, path in asked["ledgers"].items()
        )
        config = availability.AvailabilityConfig(
            directory / "availability",
            (Path(asked["events"]),),
            ledgers=ledgers,
            histories=directory,
            report=directory / "availability.html",
        )
        told = availability.run(self.spark, config)
        summary = asdict(told)
        (directory / "availability.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        return {"words": availability.words_of(told), "summary": summary}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever Java or a library prints goes to the log: stdout is for answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.environ["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {JAVA_OPTIONS}".strip()
    try:
        Host(Path(sys.argv[1]), answers).serve()
    except Exception as error:
        say_on_stderr(f"{type(error).__name__}: {error}")
        write_answer(answers, FAILED, why=f"{type(error).__name__}: {error}"[:500])
        raise


if __name__ == "__main__":
    main()
