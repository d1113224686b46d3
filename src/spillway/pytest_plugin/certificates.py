"""One development CA for all namespaces of a process: making one takes longer than starting a namespace."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from spillway.server.tls import CertificateFiles, ensure_certificates


@functools.cache
def shared_certificates() -> CertificateFiles:
    """Certificates in a directory that goes with the process."""
    directory = Path(tempfile.mkdtemp(prefix="spillway-tls-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return ensure_certificates(directory, "localhost")
