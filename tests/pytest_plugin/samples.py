"""Tests as users write them, run by more than one of ours."""

from typing import Final

CAPLOG_SAMPLE: Final = """
import logging

def test_debugging(spillway_namespace, caplog):
    caplog.set_level(logging.DEBUG)
    spillway_namespace.queue("orders")
    spillway_namespace.send("orders", "one")
    logging.getLogger("program").info("its own line")
    names = {record.name for record in caplog.records if record.name.startswith(("spillway", "program"))}
    assert names == {"program"}
    assert any("connected" in line for line in spillway_namespace.log.lines)

def test_listening_to_the_broker(spillway_namespace, caplog):
    with caplog.at_level(logging.DEBUG, logger="spillway"):
        spillway_namespace.queue("orders")
        spillway_namespace.send("orders", {"order": 17})
    assert [record.name for record in caplog.records if record.name.startswith("spillway.server")] == []
"""
