"""Paths as Spark has them: with a scheme or without."""

from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(text: str, is_quoted: bool = False) -> Path | None:
    """Of a path without a scheme, or with `file:`; None for any other file system's. Spark's own URLs are quoted."""
    scheme, found = "", text
    if "://" in text or text.startswith("file:"):
        parts = urlsplit(text)
        scheme, found = parts.scheme, parts.path
        if is_quoted:
            found = unquote(found)
    return Path(found).absolute() if scheme in ("", "file") else None
