"""`maxBytes`: batches of about so many bytes, of messages whose sizes nobody knows before they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spillway.client import Management, ReceivedMessage
from spillway.spark.platform.access import OptionError, shown
from spillway.spark.source.declaration import READ, STREAMS, Asked, Only, SourceOption

UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
BYTES_MAX: Final = 1024**4
SAMPLED: Final = 5  # messages, with their bodies, at each place
PLACES: Final = 4


@dataclass(frozen=True)
class Bytes:
    """A number of bytes, or of kilobytes, megabytes or gigabytes."""

    def read(self, name: str, text: str) -> int:
        digits, unit = text.strip().lower(), ""
        if digits[-1:] in UNITS and digits[-1:]:
            digits, unit = digits[:-1], digits[-1]
        if not digits.isascii() or not digits.isdigit() or len(digits) > 13:
            digits = "0"
        found = int(digits) * UNITS[unit]
        if not 1 <= found <= BYTES_MAX:
            raise OptionError(f"{name}={shown(text)}: a number of bytes up to 1024g, such as 500000, 64m or 1g")
        return found

    def allowed(self, default: str) -> str:
        return "A number of bytes, or `500k`, `64m`, `1g`; up to `1024g`."


MAX_BYTES: Final = SourceOption(
    "maxBytes",
    READ,
    Bytes(),
    "In a batch of a stream, [about](#tasks-and-batches).",
    only=(Only(reads=STREAMS, why="it limits each of their batches"),),
)


def bytes_of(values: Mapping[str, str], is_streaming: bool | None) -> int | None:
    """The option, where it is given."""
    return MAX_BYTES.given(Asked(values, is_streaming=is_streaming))


async def count_within(management: Management, first: int, count_max: int, bytes_max: int) -> int:
    """About how many messages from this one on have so many bytes, by a sample of them; at least one.

    Exact where that is within the first of the sample.
    """
    assert count_max > 0 and bytes_max >= 0, "a share of a batch is a message at the least"
    sample = await management.peek(first, SAMPLED)
    total = 0
    for count, message in enumerate(sample):
        total += len(message.raw)
        if total > bytes_max:
            return max(1, count)
    guess = min(count_max, _count(sample, bytes_max))
    for place in range(1, PLACES):
        sample += await management.peek(first + guess * place // PLACES, SAMPLED)
    return min(count_max, _count(sample, bytes_max))


def _count(sample: list[ReceivedMessage], bytes_max: int) -> int:
    size = sum(len(message.raw) for message in sample) // max(1, len(sample))
    return max(1, bytes_max // max(1, size))
