"""Log lines on stderr: one event a line, nothing secret in it."""

import logging
import re
import sys
import time
from typing import Final

# What may carry a key or a signature: connection strings, SAS tokens, HTTP headers, JSON of keys.
_SECRETS: Final = re.compile(
    r"(?i)(SharedAccessKey=|SharedAccessSignature[= ]|\bsig=|\bkey=|Authorization[:=]\s*|AccessKey\":\s*\")"
    r"[^;&\s\"',]+"
)
HIDDEN: Final = r"\1***"


def redact(text: str) -> str:
    return _SECRETS.sub(HIDDEN, text)


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
