"""Which skips are allowed: a skipped test shows nothing, so each needs a reason that a user would accept."""

from pathlib import Path

ALLOWED_FILE = Path(__file__).with_name("allowed_skips.txt")
SEPARATOR = " -- "


def load_allowed(text: str) -> dict[str, str]:
    """Test id (or its beginning and `*`) to the reason; a line without a reason is an error."""
    allowed: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        test, separator, reason = line.partition(SEPARATOR)
        if not separator or not reason.strip():
            raise ValueError(f"{ALLOWED_FILE.name}, line {number}: not of the form 'test id{SEPARATOR}reason'")
        allowed[test.strip()] = reason.strip()
    return allowed


def is_allowed(test: str, allowed: dict[str, str]) -> bool:
    return any(test.startswith(pattern[:-1]) if pattern.endswith("*") else test == pattern for pattern in allowed)
