"""How long a test waits for its namespace. Printed, not judged: `pytest -s tests/pytest_plugin/test_speed.py`."""

import statistics
import time

from spillway.pytest_plugin import LocalNamespace

COUNT = 50


def test_how_long_a_namespace_takes() -> None:
    begun = time.perf_counter()
    with LocalNamespace() as namespace:
        namespace.queue()
    first_ms = (time.perf_counter() - begun) * 1000
    opening, making, closing = [], [], []
    for _ in range(COUNT):
        moments = [time.perf_counter()]
        namespace = LocalNamespace().start()
        moments.append(time.perf_counter())
        queue = namespace.queue()
        moments.append(time.perf_counter())
        assert namespace.counts(queue).active == 0
        moments.append(time.perf_counter())
        namespace.close()
        moments.append(time.perf_counter())
        opening.append(moments[1] - moments[0])
        making.append(moments[2] - moments[1])
        closing.append(moments[4] - moments[3])
    medians = [statistics.median(times) * 1000 for times in (opening, making, closing)]
    print(
        f"\nthe first namespace of a process with a queue: {first_ms:.0f} ms; then, median of {COUNT}: "
        f"open {medians[0]:.1f} ms, a queue {medians[1]:.1f} ms, close {medians[2]:.1f} ms; "
        f"slowest open {max(opening) * 1000:.1f} ms"
    )
