"""A plan, played: two brokers, the programs of the plan, a syphon, what goes wrong, and the verdict at the end."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spillway.lab.field.draw import TIMEOUT_S
from spillway.lab.field.lines import HEALED, ILL, MENDING, PLAN_FILE, PULSE, VERDICT_FILE
from spillway.lab.field.plan import LATER_S, PRIMARY, SECONDARY, Ailment, PlayPlan
from spillway.lab.field.stage import PAIRING_NAME, Stage
from spillway.lab.field.vitals import slowdown
from spillway.lab.guard import Guard
from spillway.lab.histories import UNCLEAN, History
from spillway.lab.processes import Client, LabError

HOME_S: Final = 60.0  # until the backlog is home, at most
HOME_STALLED_S: Final = 13.0  # nothing moves any more: a syphon waits ten seconds at most before it tries again
LOCKED_STALLED_S: Final = 4.0  # then what somebody may have locked before a connection broke is set free
LOOK_S: Final = 0.3
PULSE_S: Final = 0.5
CLOSED_S: Final = 20.0
SYPHON: Final = "syphon"


class Play:
    """`show` is called with a line for people. `library`: the source tree whose client library is played to."""

    def __init__(
        self, plan: PlayPlan, directory: Path, guard: Guard, show: Callable[[str], None], library: Path | None = None
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.guard = guard
        self.show = show
        self.library = "" if library is None else str(library)
        (directory / PLAN_FILE).write_text(plan.to_text())
        self.history = History(directory, "lab")
        self.stage = Stage(plan, directory, guard, self.history)
        self.callers: list[Client] = []
        self.syphon: Client | None = None
        self.failures: list[BaseException] = []  # of the lanes
        self.over = threading.Event()

    def run(self) -> dict[str, Any]:
        """What the verdict found."""
        try:
            self._start()
            self._act()
            self._come_home()
            self.stage.note_where_all_is()
            self._close()
        finally:
            for process in (*self.callers, self.syphon, *self.stage.brokers.values()):
                if process is not None:
                    process.end()
            self.history.close()
        return self._verdict()

    # -- the beginning --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.show(f"seed {self.plan.seed}: starting two brokers, two programs and a syphon")
        for broker in self.stage.brokers.values():
            broker.start()
        self.syphon = self._client(SYPHON, SYPHON, "")
        self.callers = [self._client(each.name, "caller", each.front) for each in self.plan.programs]
        clients = [self.syphon, *self.callers]
        for client in clients:
            client.spawn()
        for client in clients:
            client.wait_ready()

    def _client(self, name: str, role: str, front: str) -> Client:
        spec = {
            "name": name,
            "role": role,
            "front": front,
            "directory": str(self.directory),
            "plan": str(self.directory / PLAN_FILE),
            "library": self.library,
            "pairing_name": PAIRING_NAME,
            "primary": self.stage.primary.connection_string,
            "secondary": self.stage.secondary.connection_string,
            "secondary_ca_file": self.stage.secondary.ca_file,
            "timeout_s": TIMEOUT_S,
        }
        return Client("field.host", spec, self.directory, self.guard)

    # -- what happens ---------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Programs send while something goes wrong on either side, each side on a thread of its own."""
        begun_s = time.monotonic()
        for caller in self.callers:
            caller.send_go()
        lanes = [
            threading.Thread(target=self._lane, args=(side, begun_s), name=f"lane of the {side}")
            for side in (PRIMARY, SECONDARY)
        ]
        pulse = threading.Thread(target=self._pulse, name="pulse")
        for thread in (*lanes, pulse):
            thread.start()
        try:
            for lane in lanes:
                lane.join()
            if self.failures:
                raise LabError(f"an ailment could not be brought about or mended: {self.failures[0]}")
            for caller in self.callers:
                caller.wait_ready()
        finally:
            self.over.set()
            pulse.join()

    def _pulse(self) -> None:
        """How much time the machine has for the play: promises about time are not held against one that has none."""
        while not self.over.wait(PULSE_S):
            self.history.write(PULSE, slowdown=round(slowdown(), 2))

    def _lane(self, side: str, begun_s: float) -> None:
        try:
            for number, ailment in enumerate(self.plan.ailments):
                if ailment.side == side:
                    self._apply(number, ailment, begun_s)
        except BaseException as error:
            self.failures.append(error)

    def _apply(self, number: int, ailment: Ailment, begun_s: float) -> None:
        time.sleep(max(0.0, begun_s + ailment.at_s - time.monotonic()))
        self.show(f"{ailment.at_s:4.1f} s: {ailment.what} of the {ailment.side}, for {ailment.lasts_s:g} s")
        self.history.write(ILL, n=number, side=ailment.side, what=ailment.what, paths=ailment.paths)
        self.stage.apply(ailment)
        time.sleep(max(0.0, begun_s + ailment.at_s + ailment.lasts_s - time.monotonic()))
        self.history.write(MENDING, n=number)
        self.stage.mend(ailment)
        self.history.write(HEALED, n=number)

    # -- the end --------------------------------------------------------------------------------------------------

    def _come_home(self) -> None:
        """Until the backlog is empty, or nothing moves any more."""
        self.show("all is well again; the backlog comes home")
        time.sleep(2 * LATER_S)  # what the last call has scheduled is due: before that a topic shows it to nobody
        until_s = time.monotonic() + HOME_S
        before, moved_s, are_locks_ended = -1, time.monotonic(), False
        while time.monotonic() < until_s:
            count = self.stage.count_backlog()
            now_s = time.monotonic()
            if count == 0:
                return
            if count != before:
                before, moved_s = count, now_s
            if not are_locks_ended and now_s - moved_s > LOCKED_STALLED_S:
                self.stage.end_locks()
                are_locks_ended = True
            if now_s - moved_s > HOME_STALLED_S:
                return
            time.sleep(LOOK_S)

    def _close(self) -> None:
        """The programs end while the brokers are as the plan says."""
        assert self.syphon is not None, "started"
        self.show(f"the programs close: {self.plan.closing}")
        who, _, how = self.plan.closing.partition("-")
        brokers = list(self.stage.brokers.values()) if who == "both" else [self.stage.brokers.get(who)]
        for broker in brokers:
            if broker is not None:
                (broker.freeze if how == "frozen" else broker.kill)()
        clients = [*self.callers, self.syphon]
        for client in clients:
            client.send_go()
        for client in clients:
            if (how_it_ended := client.how_it_ended(CLOSED_S)) is not None:
                self.history.write(UNCLEAN, text=how_it_ended)

    def _verdict(self) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "spillway.lab.field.judge", str(self.directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise LabError(f"there is no verdict: {done.stderr.strip()[-300:]}") from None
        (self.directory / VERDICT_FILE).write_text(done.stdout)
        return found
