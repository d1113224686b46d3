"""What people and programs see of `spillway syphon`: progress in a terminal, or one line of JSON a change."""

import json
import time
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from spillway.syphon.drain import DrainSummary
    from spillway.syphon.outcomes import OutcomeCount
    from spillway.syphon.watching import Watched

NOTE_EVERY_S = 10.0  # of what came home, where nobody looks at a bar


class SyphonScreen:
    """Output for people: progress and notes on stderr, the summary on stdout."""

    def __init__(self, is_watch: bool) -> None:
        from rich.console import Console

        self.is_watch = is_watch
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.home = 0
        self._noted_s = time.monotonic()
        self._noted_home = 0
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "SyphonScreen":
        if self.console.is_terminal:
            self._progress = _progress(self.console)
            self._progress.start()
            self._task = self._progress.add_task("coming home", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, total: int | None) -> None:
        """How many there are, where that is known."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)

    def count(self, count: "OutcomeCount") -> None:
        from spillway.syphon.outcomes import KEPT, MOVED

        if count.outcome in (MOVED, "dead-lettered"):
            self.home += count.messages
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=self.home)
            elif self.is_watch:
                self._note_home()
        if count.outcome != MOVED and (self.is_watch or count.outcome != KEPT):  # a run that ends says it at its end
            self.note(_line_of(asdict(count)))

    def _note_home(self) -> None:
        now_s = time.monotonic()
        if now_s - self._noted_s >= NOTE_EVERY_S or not self._noted_home:
            self.note(f"{self.home - self._noted_home:,} came home")
            self._noted_s, self._noted_home = now_s, self.home

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def summary(self, done: "DrainSummary | Watched") -> None:
        from spillway.model.texts import count_text

        print(
            f"{count_text(done.moved, 'message')} came home from {count_text(done.queues, 'backlog queue')} in "
            f"{done.seconds:.1f} s, {done.dead_lettered:,} dead-lettered, {done.kept:,} kept"
        )
        after = getattr(done, "after", None)
        if after:
            print(f"{count_text(after, 'message')} left in the backlog")
        for line in done.lines:
            if line["outcome"] != "moved":
                print(f"  {_line_of(line)}")


class Lines:
    """Output for programs: everything on stdout, a line of JSON each."""

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self, total: int | None) -> None:
        _print({"event": "begun", "messages": total})

    def count(self, count: "OutcomeCount") -> None:
        _print(
            {
                "event": count.outcome,
                "queue": count.backlog,
                "destination": count.destination,
                "messages": count.messages,
                "reason": count.reason,
            }
        )

    def note(self, text: str) -> None:
        _print({"event": "note", "text": text})

    def summary(self, done: "DrainSummary | Watched") -> None:
        _print({"event": "summary", **asdict(done)})


def _print(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def _line_of(line: dict[str, Any]) -> str:
    place = line["destination"] or line["backlog"]
    return f"{line['messages']:,} {line['outcome']}: {place}: {line['reason']}"


def _progress(console: Any) -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
