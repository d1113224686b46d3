"""A namespace on a thread of the test's process: what keeps it from serving, and what is left of it."""

import threading

import pytest

from spillway.model.records import Catalogue
from spillway.pytest_plugin.certificates import shared_certificates
from spillway.pytest_plugin.hosting import HostedNamespace
from spillway.store.memory import MemoryJournal


class TornJournal(MemoryJournal):
    def recover(self) -> Catalogue:
        raise OSError("torn")


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "spillway hosted"]


def test_what_keeps_it_from_serving_is_raised_and_no_thread_is_left() -> None:
    with pytest.raises(OSError, match="torn"):
        HostedNamespace("hosted", shared_certificates(), TornJournal()).start()
    assert threads() == []


def test_it_has_a_thread_while_it_is_open() -> None:
    hosted = HostedNamespace("hosted", shared_certificates()).start()
    assert threads() == ["spillway hosted"]
    assert hosted.connection_string.startswith("Endpoint=sb://localhost")
    hosted.close()
    hosted.close()
    assert (threads(), hosted.failures) == ([], [])


def test_an_error_on_the_way_out_is_among_its_failures() -> None:
    hosted = HostedNamespace("hosted", shared_certificates()).start()
    front_abort = hosted.front.abort

    def fail() -> None:
        front_abort()
        raise LookupError("on the way out")

    hosted.front.abort = fail  # type: ignore[method-assign]
    hosted.close()
    assert [str(error) for error in hosted.failures] == ["on the way out"]
    assert threads() == []
