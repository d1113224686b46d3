"""Tokens of Entra ID, by azure-identity: asked for in the process that connects, put as `jwt`, renewed in time.

azure-identity is an extra, imported where a token is first asked for. Its credentials keep tokens, so a process has one
for each identity, however often it connects: the endpoint of managed identities refuses those who ask often.
"""

import asyncio
import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from spillway.client.credentials import JWT_TOKEN_TYPE, TOKEN_SCOPE, Token
from spillway.client.errors import ClientError, ConnectionLost, NoToken
from spillway.client.identity import CLIENT_SECRET, MANAGED_IDENTITY, WORKLOAD_IDENTITY, Identity, check_installed
from spillway.client.secrets import read_secret

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

# Whoever waits for a connection tries again by itself.
RETRIES: Final = 1
CREDENTIALS_MAX: Final = 64  # of a process; more identities than that are asked for anew each time
TEXT_MAX: Final = 500
# A token must never be in a log, whatever an authority says.
_BUSY: Final = re.compile(r"HTTP Error: (429|5\d\d)")  # all that MSAL keeps of such an answer
_TOKEN: Final = re.compile(r"ey[A-Za-z0-9_-]{10,}(\.[A-Za-z0-9_-]+)*")


class EntraCredential:
    """Asks Entra ID for tokens of one identity."""

    def __init__(self, identity: Identity) -> None:
        check_installed()
        self._identity = identity

    async def token_for(self, audience: str, now_s: float) -> Token:
        """A token for the namespace: Entra ID knows no entities, roles do."""
        answer = await asyncio.to_thread(_token_of, self._identity)
        return Token(answer.token, JWT_TOKEN_TYPE, float(answer.expires_on))


def _token_of(identity: Identity) -> Any:
    """Blocking. `NoToken` if Entra ID refuses, `ConnectionLost` if it cannot be asked now."""
    from azure.core.exceptions import AzureError

    secret = identity.client_secret
    try:
        if identity.client_secret_name:
            # Read anew for each token, so that one that was replaced is used.
            secret = read_secret(identity.client_secret_name)
        return _credentials.of(identity, secret).get_token(TOKEN_SCOPE)
    except (AzureError, ValueError, OSError) as error:
        raise _client_error(error, secret) from None


def _client_error(error: Exception, secret: str) -> ClientError:
    text = _plain(error, secret)
    if _passes_by_itself(error):
        return ConnectionLost(f"Entra ID cannot be asked for a token now: {text}")
    return NoToken(f"Entra ID gave no token: {text}")


def _passes_by_itself(error: BaseException) -> bool:
    """An authority that is away or busy. azure-identity wraps what it meets, so causes are looked at too."""
    from azure.core.exceptions import ServiceRequestError, ServiceResponseError

    found: BaseException | None = error
    while found is not None:
        status = getattr(getattr(found, "response", None), "status_code", 0) or 0
        if isinstance(found, (ServiceRequestError, ServiceResponseError)) or status == 429 or status >= 500:
            return True
        if type(found).__module__.partition(".")[0] == "msal" and _BUSY.search(str(found)):
            return True
        found = found.__cause__
    return False


def _plain(error: Exception, secret: str) -> str:
    """What an error says in one line, without a secret or a token, whoever put it there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) or type(error).__name__
    if secret:
        text = text.replace(secret, "***")
    return _TOKEN.sub("***", text)[:TEXT_MAX]


class _Credentials:
    """azure-identity's credentials of this process; one that was forked has none."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._found: dict[tuple[Identity, str], TokenCredential] = {}

    def of(self, identity: Identity, secret: str) -> "TokenCredential":
        with self._mutex:
            if self._pid != os.getpid():
                self._pid, self._found = os.getpid(), {}
            found = self._found.get((identity, secret))
            if found is None:
                found = _make(identity, secret)
                if len(self._found) >= CREDENTIALS_MAX:
                    self._found.pop(next(iter(self._found)))
                self._found[(identity, secret)] = found
                assert len(self._found) <= CREDENTIALS_MAX, "the oldest made room"
            return found


_credentials = _Credentials()


def _after_fork() -> None:
    """The parent may have held the mutex at that moment."""
    global _credentials
    _credentials = _Credentials()


os.register_at_fork(after_in_child=_after_fork)


def _make(identity: Identity, secret: str) -> "TokenCredential":
    from azure.identity import ClientSecretCredential, ManagedIdentityCredential, WorkloadIdentityCredential

    log = logging.getLogger("azure.identity")
    if log.level == logging.NOTSET:  # nobody has set it
        # What fails is raised here, without secrets; there it would be in the log once more, as the authority put it.
        log.setLevel(logging.ERROR)
    options: dict[str, Any] = {}
    if identity.authority_host:
        # An authority that somebody names is trusted; the public cloud's need not know of it.
        options = {"authority": identity.authority_host, "disable_instance_discovery": True}
    found: TokenCredential
    if identity.kind == CLIENT_SECRET:
        found = ClientSecretCredential(identity.tenant_id, identity.client_id, secret, retry_total=RETRIES, **options)
    elif identity.kind == WORKLOAD_IDENTITY:
        named = {"tenant_id": identity.tenant_id, "client_id": identity.client_id}
        named["token_file_path"] = identity.token_file
        options |= {name: value for name, value in named.items() if value}
        found = WorkloadIdentityCredential(retry_total=RETRIES, **options)
    else:
        assert identity.kind == MANAGED_IDENTITY, f"an identity of no known kind: {identity.kind}"
        found = ManagedIdentityCredential(client_id=identity.client_id or None)
    return found
