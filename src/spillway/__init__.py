"""Spillway: brokered messaging that keeps accepting messages when the broker it talks to is down."""

__version__ = "0.1.0"
# What it is called where it is installed from: `spillway` there is another project.
DISTRIBUTION = "spillway-servicebus"


def install_hint(extra: str) -> str:
    """The command that brings what an optional part needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
