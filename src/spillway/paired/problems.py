"""What went wrong with a secondary namespace, in one bounded line: each cause once, however many queues met it."""

import re
import ssl
from collections.abc import Iterator
from typing import Final

LINE_CHARS_MAX: Final = 300  # of one cause
SUMMARY_CHARS_MAX: Final = 1_000
CAUSES_MAX: Final = 3  # told; of the others how many there are
CHAIN_MAX: Final = 10
# What makes two texts of the same cause differ, and says nothing to whoever reads them here.
_TRACKING: Final = re.compile(
    r"[ ,.]*\b(?:TrackingId|SystemTracker|Timestamp|Reference|RequestId):[^,\s]*", re.IGNORECASE
)
_DETAIL: Final = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)  # of an answer of administration
_HOW_TO_TRUST: Final = {
    "NamespaceManager": "give it as ca_file= to NamespaceManager, or set SSL_CERT_FILE before the program starts",
    "MessagingFactory": "give it as ca_file= to MessagingFactory (no variable reaches the SDK's AMQP)",
}


def summary(problems: dict[str, BaseException], taker: str) -> str:
    """The causes and the queues of each; there is at least one. `taker`: the class that would be given a `ca_file`."""
    causes: dict[str, list[str]] = {}
    for path, problem in problems.items():
        causes.setdefault(one_line(problem, taker).replace(path, f"{path.rpartition('/')[0]}/…"), []).append(path)
    told = sorted(causes.items(), key=lambda cause: -len(cause[1]))
    text = "; ".join(f"for {_queues(paths, len(problems))}: {cause}" for cause, paths in told[:CAUSES_MAX])
    if len(told) > CAUSES_MAX:
        text += f"; and {len(told) - CAUSES_MAX} other causes"
    text = text[0].upper() + text[1:]
    return text if len(text) <= SUMMARY_CHARS_MAX else text[: SUMMARY_CHARS_MAX - 1] + "…"


def _queues(paths: list[str], count: int) -> str:
    if len(paths) == 1:
        return paths[0]
    return f"all {count} queues" if len(paths) == count else f"{paths[0]} and {len(paths) - 1} more"


def one_line(error: BaseException, taker: str) -> str:
    """The text of an error. Where a certificate is not trusted, what to do about it."""
    if is_untrusted(error):
        return (
            f"the certificate is not trusted ({_verification(error)}). Its certificate authority must be known: "
            f"{_HOW_TO_TRUST[taker]}. That of a Spillway broker is tls/ca.pem in its data directory; `spillway serve` "
            "prints the path when it starts"
        )
    text = " ".join(_TRACKING.sub("", _text_of(error)).split())
    return text[:LINE_CHARS_MAX] if text else type(error).__name__


def _text_of(error: BaseException) -> str:
    """The first line, and what the service said, which the SDK puts behind it or inside."""
    inner = getattr(error, "inner_exception", None)
    if getattr(inner, "status_description", None):  # of a token that was refused
        return str(inner)
    text = str(error)
    first = (text.strip().splitlines() or [""])[0]
    detail = _DETAIL.search(text)
    return f"{first}: {detail[1]}" if detail else first


def is_untrusted(error: BaseException) -> bool:
    """Whether TLS ended because the peer's certificate could not be verified."""
    return any(
        isinstance(each, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(each)
        for each in _chain(error)
    )


def _verification(error: BaseException) -> str:
    for each in _chain(error):
        told = getattr(each, "verify_message", None)  # aiohttp's error of that kind has none
        if told:
            return str(told)[:LINE_CHARS_MAX]
    return "certificate verify failed"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, as far as the SDK and aiohttp say so."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(seen) < CHAIN_MAX:
        each = waiting.pop(0)
        if not isinstance(each, BaseException) or each in seen:
            continue
        seen.append(each)
        yield each
        inner = (getattr(each, name, None) for name in ("inner_exception", "certificate_error", "error"))
        waiting += [each.__cause__, each.__context__, *inner]
