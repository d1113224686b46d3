"""Log lines on stderr: one event a line, nothing secret in it."""

import logging
import re
import sys
import time
from typing import Final

# What may carry a key or a signature. Nothing that is logged on purpose does; this is for what is logged by accident:
# an exception that quotes its input, a library that shows a header.
_SECRETS: Final = (
    # Authorization: anything to the end of the header, as a header, a mapping or a list of pairs
    re.compile(r"(?i)(authorization['\"]?\s*[:=,]\s*(?:b?['\"])?)[^\r\n'\"]+"),
    # connection strings, tokens, queries: up to the next separator; a token's name is followed by its fields
    re.compile(r"(?i)(SharedAccessKey\s*=\s*|SharedAccessSignature\s*=\s*|\bsig\s*=\s*|key\s*=\s*)[^;&\s\"',<>]+"),
    re.compile(r"(?i)(SharedAccessSignature\s+)(?:sr|sig|se|skn)=[^;\s\"',<>]+"),
    # JSON, reprs and XML of keys
    re.compile(r"(?i)(key['\"]?\s*[:=]\s*b?['\"])[^'\"]+"),
    re.compile(r"(?i)(<(?:Primary|Secondary)Key>)[^<]+"),
)
HIDDEN: Final = r"\1***"


def redact(text: str) -> str:
    for secret in _SECRETS:
        text = secret.sub(HIDDEN, text)
    return text


class RedactingFormatter(logging.Formatter):
    """`2024-05-01T10:00:00.123Z INFO pump namespace=a …`; the whole line is redacted, tracebacks too."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
