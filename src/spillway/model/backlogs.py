"""What backlog queues are called (contract C1). Senders and every syphon derive it here, or messages would lie where
nobody looks."""

from typing import Final

SEGMENT: Final = "x-servicebus-transfer"


def namespace_name(host: str) -> str:
    """What a namespace is called in backlog paths: the first label of a DNS name, `host-port` of an address.

    Senders and every syphon derive it here; if they did it differently, messages would lie where nobody looks.
    """
    bare, _, port = _split_port(host.strip().lower())
    if _is_address(bare) or bare == "localhost":
        shown = bare.strip("[]").replace(":", "-").replace("%", "-")
        # `::1` is `0::1`: no entity's name begins or ends with a dash.
        shown = f"{'0' * shown.startswith('-')}{shown}{'0' * shown.endswith('-')}"
        return f"{shown}-{port}" if port else shown
    return bare.partition(".")[0]


def _split_port(host: str) -> tuple[str, str, str]:
    if host.startswith("["):
        bare, bracket, rest = host.partition("]")
        return bare + bracket, ":", rest.removeprefix(":")
    if host.count(":") > 1:  # an IPv6 address without brackets has no port
        return host, "", ""
    return host.partition(":")


def _is_address(host: str) -> bool:
    """An IP address, as it is written in an endpoint."""
    return ":" in host or all(part.isdigit() for part in host.split("."))


def backlog_path(primary: str, index: int) -> str:
    return f"{primary}/{SEGMENT}/{index}"
