"""How a command ends badly: one line for the user, and the exit status that goes with it."""

from typing import ClassVar


class CommandError(Exception):
    """What was asked could not be done. `app.main` prints each line and exits; nobody sees a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class UsageError(CommandError):
    """The user's to mend: an option or a configuration file. Nothing was started."""

    exit_code: ClassVar[int] = 2
