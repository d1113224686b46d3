"""Brokers that `spillway pipeline metering` asks for days that are not sealed, also by their data directories."""

import os
from pathlib import Path

from spillway.cli.control import VARIABLE, RunningBroker
from spillway.cli.errors import UsageError
from spillway.cli.served import root_connection_string, served_names


def brokers_of(name: str, place: str, ca_file: Path | None) -> list[tuple[str, RunningBroker]]:
    if place == "-":
        given = os.environ.get(VARIABLE)
        if not given:
            raise UsageError(f"--open-day -: {VARIABLE} is not set")
        return [(name, RunningBroker(given, ca_file))]
    data = Path(place)
    names = served_names(data)
    if name and len(names) > 1:
        raise UsageError(f"--open-day {name}={place}: one name for several namespaces: {', '.join(names)}")
    own_ca = data / "tls" / "ca.pem"
    trusted = ca_file or (own_ca if own_ca.exists() else None)
    return [(name, RunningBroker(root_connection_string(data, served), trusted)) for served in names]
