"""Faults on purpose in a namespace of this process, for callers on any thread (docs/faults.md)."""

import contextlib
from collections.abc import Iterator

from spillway.model.faults import Fault, FaultReport
from spillway.pytest_plugin.hosting import HostedNamespace
from spillway.server.faults import NamespaceFaults


class LocalFaults:
    """The words of `spillway.client.faults.RemoteFaults`."""

    def __init__(self, hosted: HostedNamespace) -> None:
        self._hosted = hosted
        self._faults = NamespaceFaults(hosted.server.pump)

    def add(self, fault: Fault) -> FaultReport:
        return self._hosted.run(self._faults.add(fault))

    def all(self) -> list[FaultReport]:
        return self._hosted.run(self._faults.all())

    def get(self, number: int) -> FaultReport:
        """How it fares: whether it can still strike, and how often it did."""
        return self._hosted.run(self._faults.get(number))

    def remove(self, number: int) -> FaultReport:
        return self._hosted.run(self._faults.remove(number))

    def clear(self) -> int:
        """Remove all of them; how many there were."""
        return self._hosted.run(self._faults.clear())

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[FaultReport]:
        """While the `with` block lasts."""
        report = self.add(fault)
        try:
            yield report
        finally:
            self.remove(report.number)
