"""Faults of a running broker, from Python (docs/faults.md).

faults = RemoteFaults(connection_string)
with faults.planted(Fault("server-busy", "orders", ["send"])):
    ...  # whoever sends to orders is told that the broker is busy
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from spillway.client.control import ControlClient
from spillway.model.faults import Fault, FaultReport, report_from_plain

__all__ = ["Fault", "FaultReport", "RemoteFaults"]


class RemoteFaults:
    """Every call is a request to the broker; `ControlError` if it refuses or is not there."""

    def __init__(self, connection_string: str, ca_file: Path | None = None) -> None:
        self._client = ControlClient(connection_string, ca_file)

    def add(self, fault: Fault) -> FaultReport:
        return report_from_plain(self._client.ask("POST", "faults", fault.to_plain()))

    def all(self) -> list[FaultReport]:
        return [report_from_plain(plain) for plain in self._client.ask("GET", "faults")["faults"]]

    def get(self, number: int) -> FaultReport:
        """How a fault fares: whether it can still strike, and how often it did."""
        return report_from_plain(self._client.ask("GET", f"faults/{number}"))

    def remove(self, number: int) -> FaultReport:
        """Remove a fault; the report is of when it was removed."""
        return report_from_plain(self._client.ask("DELETE", f"faults/{number}"))

    def clear(self) -> int:
        """Remove all faults; how many there were. Messages that are hidden stay so until their time."""
        return int(self._client.ask("DELETE", "faults")["removed"])

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[FaultReport]:
        report = self.add(fault)
        try:
            yield report
        finally:
            self.remove(report.number)
