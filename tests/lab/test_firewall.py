"""Packets that vanish, on the real loopback interface where the machine allows it, and what is done elsewhere."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spillway.lab.firewall import Blackhole, is_open
from spillway.lab.guard import Guard
from spillway.lab.scenarios import scenario_of


@pytest.fixture
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose firewall says no."""
    for tool in ("iptables", "ip6tables"):
        (tmp_path / tool).write_text("#!/bin/sh\nexit 4\n")
        (tmp_path / tool).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_a_port_in_a_blackhole_neither_answers_nor_refuses_until_it_is_filled(port: int, guard: Guard) -> None:
    hole = Blackhole(port, guard)
    assert answers(port)
    assert hole.dig() != answers(port), "dug: nothing answers; not allowed: nothing has changed"
    hole.fill()
    assert answers(port)


def test_a_hole_that_nobody_filled_is_filled_by_the_guard(port: int, guard: Guard) -> None:
    Blackhole(port, guard).dig()
    guard.close()
    assert answers(port)


def test_where_the_machine_does_not_allow_it_nothing_is_changed(
    port: int, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(tmp_path, monkeypatch)
    hole = Blackhole(port, guard)
    assert not hole.dig()
    assert hole.rules == []
    assert is_open(socket.AF_INET, "127.0.0.1", port)


def test_there_the_primary_is_frozen_instead_and_the_report_says_so(
    port: int, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(tmp_path, monkeypatch)
    did: list[str] = []
    primary = SimpleNamespace(port=port, freeze=lambda: did.append("freeze"), thaw=lambda: did.append("thaw"))
    lab = cast(Any, SimpleNamespace(primary=primary, guard=guard, note=did.append))
    scenario = scenario_of("blackhole")
    scenario.begin(lab)
    scenario.end(lab)
    assert did == ["there is no firewall that may be used here: the primary is frozen instead", "freeze", "thaw"]
