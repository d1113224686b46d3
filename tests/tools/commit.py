"""Which commit a measurement was made at, and on what machine, for the files in docs/evidence."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def commit() -> str:
    """Of the tree this file is in, `+` behind it if files were changed since; empty outside a checkout."""
    at = _printed("rev-parse", "--short", "HEAD")
    return at + "+" if at and _printed("status", "--porcelain", "--untracked-files=no") else at


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def _printed(*words: str) -> str:
    asked = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return asked.stdout.strip()
