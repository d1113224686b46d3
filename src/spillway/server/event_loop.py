"""The event loop that the broker runs on: uvloop where it is there, else the standard library's (docs/adr/0028)."""

import asyncio
from collections.abc import Callable
from typing import Final

AUTO: Final = "auto"
UVLOOP: Final = "uvloop"
ASYNCIO: Final = "asyncio"
CHOICES: Final = (AUTO, UVLOOP, ASYNCIO)
NOT_INSTALLED: Final = "uvloop is not installed"
ASKED_FOR: Final = "as --loop asyncio asks for"

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class LoopMissing(Exception):
    """A loop that was asked for by name cannot be had; the text says why."""


class ChosenLoop:
    """A loop that can be made. `because` says why it is not uvloop, and is empty if it is."""

    def __init__(self, name: str, version: str, because: str, new: NewLoop) -> None:
        self.name = name
        self.version = version
        self.because = because
        self.new = new

    @property
    def text(self) -> str:
        """What a person reads of it: `uvloop 0.23.0`, or asyncio and why."""
        if self.name == UVLOOP:
            return f"{UVLOOP} {self.version}".rstrip()
        return f"{ASYNCIO}, {self.because}"


def choose_loop(wanted: str = AUTO) -> ChosenLoop:
    """Raises LoopMissing where uvloop is asked for by name and is not there."""
    assert wanted in CHOICES, wanted
    if wanted == ASYNCIO:
        return ChosenLoop(ASYNCIO, "", ASKED_FOR, asyncio.SelectorEventLoop)
    try:
        import uvloop
    except ModuleNotFoundError as error:
        because = NOT_INSTALLED if error.name == UVLOOP else f"uvloop cannot be imported ({error})"
    except ImportError as error:  # built for another Python or another C library
        because = f"uvloop cannot be imported ({' '.join(str(error).split())})"
    else:
        return ChosenLoop(UVLOOP, str(getattr(uvloop, "__version__", "")), "", uvloop.new_event_loop)
    if wanted == UVLOOP:
        raise LoopMissing(because)
    return ChosenLoop(ASYNCIO, "", because, asyncio.SelectorEventLoop)
