"""Tracking ids, and the one refusal that is logged here."""

import logging

import pytest

from spillway.server.numbers import REFUSED_TOKEN_EVERY_MS, Tracking


def test_a_flood_of_refused_tokens_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    tracking = Tracking("ns")
    with caplog.at_level(logging.WARNING):
        texts = [tracking.tracking_text("$cbs", now_ms) for now_ms in (5_000, 5_001, 5_000 + REFUSED_TOKEN_EVERY_MS)]
        tracking.tracking_text("orders", 10_000)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    for line, text in zip(said, (texts[0], texts[2]), strict=True):
        assert line.startswith("namespace=ns a client's token was refused")
        assert line.rpartition("TrackingId:")[2] in text
