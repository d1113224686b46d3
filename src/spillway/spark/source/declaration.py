"""How an option of `format("servicebus")` is declared: once, with its name, kind, default, bounds, and who may give it.

What is refused, and with which words, and the table in the guide come from the declaration; the options themselves are
in options.py. Options arrive as texts, with names that have no case.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from spillway.spark.platform.access import OptionError, shown
from spillway.spark.platform.option import as_sentence, limits_text

READ: Final = "read"
WRITE: Final = "write"
BOTH: Final = "read, write"

BROWSE: Final = "browse"
PEEK_LOCK: Final = "peeklock"
RECEIVE_AND_DELETE: Final = "receiveanddelete"
MODES: Final = (BROWSE, PEEK_LOCK, RECEIVE_AND_DELETE)

STREAMS: Final = "streams"
BATCHES: Final = "batch reads"

DIGITS_MAX: Final = 19  # of any number that is allowed

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class Asked:
    """The options of one read or write, by their names in lower case, and what it is that has them."""

    values: Mapping[str, str]
    mode: str = ""  # of a read; empty where it is not known
    is_streaming: bool | None = None  # None where it is not known


@dataclass(frozen=True)
class Only:
    """Which reads may have an option, and why others may not. `unless`: values that do no harm anywhere."""

    modes: tuple[str, ...] = ()  # empty: all
    reads: str = ""  # STREAMS or BATCHES; empty: both
    why: str = ""
    unless: tuple[str, ...] = ()

    def is_for(self, asked: Asked) -> bool:
        if self.modes and asked.mode and asked.mode not in self.modes:
            return False
        if asked.is_streaming is None or not self.reads:
            return True
        return asked.is_streaming == (self.reads == STREAMS)


BROWSED: Final = Only((BROWSE,), why="a receiver is handed what comes next")
GOES_ON: Final = "a stream goes on"


class Kind(Protocol[V_co]):
    """What the text of an option becomes. `OptionError` with the option's name and what is allowed."""

    def read(self, name: str, text: str) -> V_co: ...

    def allowed(self, default: str) -> str:
        """The same for the guide, as a sentence; nothing if the help says it."""
        ...


@dataclass(frozen=True)
class SourceOption(Generic[V]):
    """One option. `help` is a sentence or two, in the marks of the guide."""

    name: str
    side: str  # READ, WRITE or BOTH
    kind: Kind[V]
    help: str
    default: str = ""  # as it would be given; empty: there is none
    only: tuple[Only, ...] = ()

    @property
    def key(self) -> str:
        return self.name.lower()

    def is_given(self, asked: Asked) -> bool:
        return self.key in asked.values

    def given(self, asked: Asked) -> V | None:
        """What was given; None if nothing was."""
        return self.of(asked) if self.is_given(asked) else None

    def of(self, asked: Asked) -> V:
        """What was given, if this read may have it, or else the default."""
        if not self.is_given(asked):
            return self.default_value
        text = asked.values[self.key]
        for only in self.only:
            if not only.is_for(asked) and text.strip().lower() not in only.unless:
                why = f": {only.why}" if only.why else ""
                raise OptionError(f"{self.name} is for {_readers(only.reads, only.modes)}{why}")
        return self.kind.read(self.name, text)

    @property
    def default_value(self) -> V:
        return self.kind.read(self.name, self.default)

    def paragraph(self) -> str:
        """For the guide: the help, what is allowed, and for which reads."""
        return " ".join(part for part in (self.help, self.kind.allowed(self.default), self._use()) if part)

    def _use(self) -> str:
        modes = [f"`mode={mode}`" for only in self.only for mode in only.modes]
        reads = "".join(only.reads for only in self.only)
        if not modes and not reads:
            return ""
        with_modes = f"with {' or '.join(modes)}" if modes else ""
        return " ".join(part for part in ("Only", f"for {reads}" if reads else "", with_modes) if part) + "."


def _readers(reads: str, modes: tuple[str, ...]) -> str:
    """`streams with mode=peeklock or mode=receiveanddelete`."""
    named = " or ".join(f"mode={mode}" for mode in modes)
    return f"{reads} with {named}" if reads and named else reads or named


@dataclass(frozen=True)
class Text:
    """Anything; what it may be is looked at together with other options."""

    def read(self, name: str, text: str) -> str:
        return text.strip()

    def allowed(self, default: str) -> str:
        return ""


@dataclass(frozen=True)
class WordChoice:
    words: tuple[str, ...]

    def read(self, name: str, text: str) -> str:
        value = text.strip().lower()
        if value not in self.words:
            raise OptionError(f"{name}={shown(value)}: it is {', '.join(self.words[:-1])} or {self.words[-1]}")
        return value

    def allowed(self, default: str) -> str:
        named = [f"`{word}`" for word in self.words]
        return f"It is {', '.join(named[:-1])} or {named[-1]}."


@dataclass(frozen=True)
class Flag:
    def read(self, name: str, text: str) -> bool:
        return WordChoice(("true", "false")).read(name, text) == "true"

    def allowed(self, default: str) -> str:
        return ""  # the default shows it


@dataclass(frozen=True)
class OneWord:
    """A word that is said or not."""

    word: str

    def read(self, name: str, text: str) -> str:
        value = text.strip().lower()
        if value not in ("", self.word):
            raise OptionError(f"{name}={shown(value)}: it is {self.word}, or not given")
        return value

    def allowed(self, default: str) -> str:
        return f"It is `{self.word}`, or not given."


@dataclass(frozen=True)
class WholeNumber:
    least: int
    most: int

    def read(self, name: str, text: str) -> int:
        digits = text.strip()
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX
        if not is_number or not self.least <= int(digits) <= self.most:
            raise OptionError(f"{name}={shown(text)}: a whole number {limits_text(self.least, self.most)}")
        return int(digits)

    def allowed(self, default: str) -> str:
        return as_sentence(limits_text(self.least, self.most))


@dataclass(frozen=True)
class WholeNumberOr:
    """A whole number, or the word that leaves it to the source: None."""

    number: WholeNumber
    word: str

    def read(self, name: str, text: str) -> int | None:
        return None if text.strip().lower() == self.word else self.number.read(name, text)

    def allowed(self, default: str) -> str:
        return f"It is `{self.word}`, or a number {limits_text(self.number.least, self.number.most)}."


@dataclass(frozen=True)
class Number:
    least: float
    most: float
    what: str = "a number"

    def read(self, name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = self.least - 1.0
        if not self.least <= value <= self.most:  # nor is anything that is not a number
            raise OptionError(f"{name}={shown(text)}: {self.what} from {self.least:g} to {self.most:g}")
        return value

    def allowed(self, default: str) -> str:
        return as_sentence(limits_text(self.least, self.most))


def seconds(least: float, most: float) -> Number:
    return Number(least, most, "seconds")


@dataclass(frozen=True)
class PositionOption:
    """A sequence number, or a word that stands for one."""

    words: Mapping[str, int | None]
    most: int

    def read(self, name: str, text: str) -> int | None:
        value = text.strip().lower()
        if value in self.words:
            return self.words[value]
        is_number = value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX
        if not is_number or int(value) > self.most:
            raise OptionError(f"{name}={shown(value)}: it is {', '.join(self.words)} or a sequence number")
        return int(value)

    def allowed(self, default: str) -> str:
        return ""
