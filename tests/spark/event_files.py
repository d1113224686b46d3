"""Files of events as processes of a pairing write them, with times of the test's own."""

import json
from pathlib import Path
from typing import Any

BASE_US = 1_800_000_000_000_000  # 2027-01-15T08:00:00Z
SECOND_US = 1_000_000


class Writer:
    """One process. Times are seconds after `BASE_US`."""

    def __init__(self, directory: Path, process: str, namespace: str = "contoso", apart_s: float = 0.0) -> None:
        self.path = directory / "day=2027-01-15" / f"{namespace}.{process}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.process = process
        self.namespace = namespace
        self.apart_s = apart_s  # by which its machine's clock is fast
        self.number = 0
        self.tell(-60, "opened")

    def tell(self, at_s: float, event: str, entity: str = "", count: int = 1, **more: Any) -> None:
        self.number += 1
        at_us = BASE_US + round((at_s + self.apart_s) * SECOND_US)
        line = {
            "format": 1,
            "time": "as in epoch_us",
            "epoch_us": at_us,
            "clock_us": round((at_s + 1_000_000) * SECOND_US),
            "namespace": self.namespace,
            "process": self.process,
            "number": self.number,
            "event": event,
            "entity": entity,
            "count": count,
            **more,
        }
        self.write(json.dumps(line))

    def write(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def outage(self, entity: str, at_s: float, away_s: float, diverted: int, error: str = "OSError: no route") -> None:
        """Suspected, ten seconds later away, a ping every ten seconds, back."""
        self.tell(at_s, "suspected", entity, before="healthy", error=error)
        self.tell(at_s + 10, "failed-over", entity, before="suspect", error=error)
        pings = int(away_s // 10)
        for ping in range(pings):
            self.tell(at_s + 10.5 + 10 * ping, "pinged", entity, answered=False, error=error)
            self.diverted(entity, at_s + 11 + 10 * ping, diverted // pings)
        self.tell(at_s + 10 + away_s, "pinged", entity, answered=True)
        self.tell(at_s + 10 + away_s, "recovered", entity, before="failed over")

    def diverted(self, entity: str, at_s: float, count: int) -> None:
        self._sum("diverted", entity, at_s, count)

    def syphoned(self, entity: str, at_s: float, count: int) -> None:
        self._sum("syphoned", entity, at_s, count)

    def _sum(self, event: str, entity: str, at_s: float, count: int) -> None:
        until_us = BASE_US + round((at_s + self.apart_s + 0.9) * SECOND_US)
        queue = f"{self.namespace}/x-servicebus-transfer/0"
        self.tell(at_s, event, entity, count, queue=queue, until_epoch_us=until_us)
