"""A running broker follows its key file: a key that was removed is no good within a second.

Files can make one wait (a dead disk, a command that was stopped while it held the lock), so the file is looked at in a
thread of its own and never on the loop. What cannot be read or used now is tried again at every look.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spillway.model.access import AccessRule
from spillway.server.keys import FILE_NAME, KEY_NAME, BadKeyFile, development_rules, ensure_rules, parse_rules
from spillway.store.own_files import read_own

log = logging.getLogger(__name__)

SAY_AGAIN_LOOKS: Final = 240  # a minute at four a second: the same trouble is worth a line


class KeyWatch:
    """`look` blocks as files do; `follow` has it called in a thread."""

    def __init__(self, data: Path, is_development: bool) -> None:
        self.data = data
        self.is_development = is_development
        self.trouble = ""  # what is wrong with the file, as it was last said
        self.looks_since = 0
        self.is_root_missing = False
        self.stopping = threading.Event()
        self.thread = threading.Thread(name="spillway-keys", daemon=True)
        self.taken: bytes | None = None  # the content whose rules are in force
        try:
            self.taken = read_own(self.path)
        except OSError:
            pass  # the first look says so, if there should be one

    @property
    def path(self) -> Path:
        return self.data / FILE_NAME

    def poll(self) -> list[AccessRule] | None:
        """The rules from now on, or None: nothing has changed, or nothing that can be used."""
        try:
            if self.is_root_missing:
                self.make_root()
            content = read_own(self.path)
            if content == self.taken:
                self.trouble = ""
                return None
            rules = parse_rules(self.path, content)
        except FileNotFoundError:
            if self.taken is None and self.is_development:
                return None  # there never was one: the emulator's key needs none
            self.complain(f"{self.path} is gone: the rules stay as they are until it is there again")
            return None
        except BadKeyFile as error:
            self.complain(f"the rules stay as they are: {error}")
            return None
        except OSError as error:
            self.complain(f"the rules stay as they are: {self.path}: {error.strerror or error}")
            return None
        self.trouble = ""
        self.taken = content
        self.is_root_missing = not self.is_development and all(rule.name != KEY_NAME for rule in rules)
        return development_rules(rules) if self.is_development else rules

    def make_root(self) -> None:
        """The file was written without the rule that may do everything. Unless a command is at it just now."""
        try:
            ensure_rules(self.data, is_waiting=False)
        except BlockingIOError:
            return

    def complain(self, text: str) -> None:
        self.looks_since += 1
        if text != self.trouble or self.looks_since >= SAY_AGAIN_LOOKS:
            log.error("%s", text)
            self.trouble = text
            self.looks_since = 0

    def follow(self, every_s: float, tell: Callable[[list[AccessRule]], None]) -> None:
        """Watches from now on, until `stop`. `tell` is called in the thread."""

        def run() -> None:
            while not self.stopping.wait(every_s):
                try:
                    rules = self.poll()
                    if rules is not None:
                        tell(rules)
                except Exception:
                    log.exception("the key file was not looked at")

        self.thread = threading.Thread(target=run, name="spillway-keys", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """The thread is not waited for: it may hang, and it writes nothing that is not whole."""
        self.stopping.set()
