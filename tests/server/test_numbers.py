"""Tracking ids."""

from spillway.server.numbers import Tracking


def test_no_two_errors_have_the_same_tracking_id() -> None:
    tracking = Tracking("ns")
    texts = {tracking.tracking_text("orders", 5_000) for _ in range(1_000)}
    assert len(texts) == 1_000
    for text in texts:
        assert text.endswith("_ns, SystemTracker:orders, Timestamp:1970-01-01T00:00:05")
