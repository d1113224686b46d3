"""What clients saw, written down while it happened, and the verdict over all of it.

Every client process appends one JSON line an event to a file of its own. The times are CLOCK_MONOTONIC, which all
processes of one machine share. The verdict reads all files and knows nothing else.

| event | written |
|---|---|
| `sending` | before a send: the message may exist from here on |
| `sent` | the broker acknowledged it: it must exist until it is completed |
| `received` | a receiver has it; with its sequence number, body check and when that connection was opened |
| `completing` | before a complete: the message may be gone from here on |
| `completed` | the broker confirmed it: nobody may ever see it again |
"""

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


def body_of(message_id: str, size_bytes: int) -> bytes:
    """A body that can be checked from the id alone."""
    digest = hashlib.sha256(message_id.encode()).hexdigest().encode()
    return (digest * (size_bytes // len(digest) + 1))[:size_bytes]


class HistoryWriter:
    """One client's file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, event: str, message_ids: Iterable[str], **more: Any) -> None:
        now_ns = time.monotonic_ns()
        self._file.write(
            "".join(json.dumps({"event": event, "id": one, "ns": now_ns, **more}) + "\n" for one in message_ids)
        )

    def close(self) -> None:
        self._file.close()


@dataclass
class Verdict:
    """The sets that must be empty, a few examples of each, and the totals."""

    sending: int = 0
    acknowledged: int = 0
    received: int = 0
    completed: int = 0
    unknown_sends: int = 0
    unknown_completes: int = 0
    sent_again: int = 0
    redelivered: int = 0
    lost: list[str] = field(default_factory=list)
    resurrected: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    sequence_numbers_reused: list[int] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)  # stored more than once: under two numbers in one queue

    @property
    def is_clean(self) -> bool:
        forbidden = (self.lost, self.resurrected, self.invented, self.damaged, self.sequence_numbers_reused)
        return not any(forbidden) and not self.duplicated

    def summary(self) -> dict[str, Any]:
        """For reports: each forbidden set as its size and its first members."""
        facts = asdict(self)
        for name, value in list(facts.items()):
            if isinstance(value, list):
                facts[name] = len(value)
                facts[f"{name}_examples"] = value[:5]
        return facts


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All events of all files, oldest first. Equal times keep the order of their file."""
    events = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return sorted(events, key=lambda event: event["ns"])


def judge(events: list[dict[str, Any]]) -> Verdict:
    """`events` must include a drain of everything left, on connections opened after the last fault."""
    sending: set[str] = set()
    acknowledged: set[str] = set()
    completing: set[str] = set()
    completed_ns: dict[str, int] = {}
    completed_by: dict[str, str] = {}
    received: dict[str, int] = {}
    id_of_number: dict[tuple[str, int], str] = {}
    number_of_id: dict[tuple[str, str], int] = {}
    verdict = Verdict()
    for event in events:
        kind, message_id = event["event"], event["id"]
        if kind == "sending":
            verdict.sent_again += message_id in sending
            sending.add(message_id)
        elif kind == "sent":
            acknowledged.add(message_id)
        elif kind == "completing":
            completing.add(message_id)
        elif kind == "completed":
            completed_ns.setdefault(message_id, event["ns"])
            completed_by.setdefault(message_id, event["client"])
        elif kind == "received":
            received[message_id] = received.get(message_id, 0) + 1
            if not event["intact"]:
                verdict.damaged.append(message_id)
            # A connection opened before the completion may hold an older delivery of the message in its buffers.
            # One opened after it cannot, nor can the client that completed it: there it is back from the dead.
            if message_id in completed_ns and (
                event["opened_ns"] > completed_ns[message_id] or completed_by[message_id] == event["client"]
            ):
                verdict.resurrected.append(message_id)
            known = id_of_number.setdefault((event["queue"], event["sequence_number"]), message_id)
            if known != message_id:
                verdict.sequence_numbers_reused.append(event["sequence_number"])
            number = number_of_id.setdefault((event["queue"], message_id), event["sequence_number"])
            if number != event["sequence_number"]:
                verdict.duplicated.append(message_id)
    # Acknowledged, and neither seen by the drain (which completes all it sees) nor ever asked to be completed.
    verdict.lost = sorted(acknowledged - completing)
    verdict.invented = sorted(received.keys() - sending)
    verdict.sending = len(sending)
    verdict.acknowledged = len(acknowledged)
    verdict.received = len(received)
    verdict.completed = len(completed_ns)
    verdict.unknown_sends = len(sending - acknowledged)
    verdict.unknown_completes = len(completing - completed_ns.keys())
    verdict.redelivered = sum(count - 1 for count in received.values())
    return verdict
