"""Packets that vanish: rules of the machine's own firewall for one port, where the lab may set them."""

import shutil
import socket
import subprocess
from typing import Final

from spillway.lab.guard import Guard

LOOPBACKS: Final = {"iptables": (socket.AF_INET, "127.0.0.1"), "ip6tables": (socket.AF_INET6, "::1")}


class PortBlackhole:
    """Around one local port, in both directions: nobody hears a word from there, not even that it is gone."""

    def __init__(self, port: int, guard: Guard) -> None:
        self.port = port
        self.guard = guard
        self.rules: list[list[str]] = []  # how each is taken back

    def dig(self) -> bool:
        """False, and nothing is changed, if the machine does not allow it."""
        for tool, (family, address) in LOOPBACKS.items():
            if is_open(family, address, self.port) and not self._block(tool):
                self.fill()
                return False
        return bool(self.rules)

    def fill(self) -> None:
        for rule in self.rules:
            subprocess.run(rule, check=False, capture_output=True)
            self.guard.unregister_rule(rule)
        self.rules = []

    def _block(self, tool: str) -> bool:
        program = shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")
        if program is None:
            return False
        for side in ("--dport", "--sport"):
            rule = ["INPUT", "-i", "lo", "-p", "tcp", side, str(self.port), "-j", "DROP"]
            undo = [program, "-w", "-D", *rule]
            self.guard.watch_rule(undo)
            done = subprocess.run([program, "-w", "-I", *rule], check=False, capture_output=True)
            if done.returncode != 0:
                self.guard.unregister_rule(undo)
                return False
            self.rules.append(undo)
        return True


def is_open(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            return probe.connect_ex((address, port)) == 0
    except OSError:
        return False  # the machine has no such family
