"""Histories by hand: the lines that processes of the lab write."""

from typing import Any

from spillway.lab.histories import (
    BEGINS,
    COMPLETED,
    DELIVERED,
    EVENT,
    FAULT,
    LEDGER,
    LEFT,
    MENDED,
    NS,
    OK,
    SEND,
    UNCLEAN,
)
from spillway.lab.verdict import Expected, Judge, Verdict

Line = dict[str, Any]


def second(at_s: float) -> int:
    return int(at_s * NS)


def send(identity: str, at_s: float = 1.0, res: str = OK, attempt: int = 0, digest: str = "d") -> Line:
    return {
        "t": second(at_s), "p": identity.rpartition("-")[0], "op": SEND, "t0": second(at_s - 0.01), "id": identity,
        "a": attempt, "h": digest, "res": res,
    }  # fmt: skip


def delivery(
    identity: str, number: int, at_s: float = 2.0, attempt: int = 0, digest: str = "d", locked_s: float | None = None
) -> Line:
    return {
        "t": second(at_s), "p": "consumer0", "op": DELIVERED, "id": identity, "a": attempt, "h": digest, "seq": number,
        "dc": 0, "g": second(at_s - 0.01 if locked_s is None else locked_s),
    }  # fmt: skip


def completion(identity: str, number: int, at_s: float = 2.1, res: str = OK) -> Line:
    return {"t": second(at_s), "p": "consumer0", "op": COMPLETED, "id": identity, "seq": number, "res": res}


def event(name: str, at_s: float, process: str = "producer0", count: int = 1, **more: Any) -> Line:
    return {"t": second(at_s), "p": process, "op": EVENT, "name": name, "path": "orders", "count": count, **more}


def fault(what: str, at_s: float) -> Line:
    return {"t": second(at_s), "p": "lab", "op": FAULT, "what": what}


def ledger(namespace: str, **operations: int) -> Line:
    return {"t": second(9.0), "p": "lab", "op": LEDGER, "namespace": namespace, "operations": operations}


def unclean(text: str) -> Line:
    return {"t": second(9.0), "p": "lab", "op": UNCLEAN, "text": text}


def left(identity: str, place: str = "secondary/backlog") -> Line:
    return {"t": second(9.0), "p": "lab", "op": LEFT, "id": identity, "q": place}


def whole(identity: str, number: int, at_s: float = 1.0) -> list[Line]:
    """Sent, delivered and completed."""
    return [send(identity, at_s), delivery(identity, number, at_s + 1), completion(identity, number, at_s + 1.1)]


def outage() -> list[Line]:
    """Of one producer that fails over, diverts two messages and is back."""
    return [
        fault(BEGINS, 3.0),
        event("suspected", 3.5),
        event("failed-over", 4.5),
        event("pinged", 4.6, answered=False),
        event("diverted", 5.0, count=2),
        fault(MENDED, 8.0),
        event("pinged", 8.4, answered=True),
        event("recovered", 8.5),
        event("syphoned", 8.9, "syphon", count=2),
        ledger("primary", send=4, receive=4, settle=4, ping=2),
        ledger("secondary", send=2, receive=2, settle=2),
    ]


def judged(lines: list[Line], **expected: Any) -> Verdict:
    judge = Judge()
    judge.accept(lines)
    messages = expected.pop("messages", len({line["id"] for line in lines if line["op"] == SEND}))
    return judge.judge(Expected("kill", messages, **expected))
