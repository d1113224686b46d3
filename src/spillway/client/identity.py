"""An identity of Entra ID, as a connection string names it: `Authentication=` in the place of a key.

    Endpoint=sb://contoso.servicebus.windows.net/;Authentication=ManagedIdentity
    Endpoint=…;Authentication=WorkloadIdentity
    Endpoint=…;Authentication=ClientSecret;TenantId=…;ClientId=…;ClientSecretName=env:APP_SECRET

So a namespace is reached by one text whatever opens it, and a text that holds no secret may stand in a plan. Nothing
here knows azure-identity: see entra.py.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spillway import install_hint

INSTALL: Final = f"Entra ID needs azure-identity: {install_hint('entra')}"
CLIENT_SECRET: Final = "clientsecret"
WORKLOAD_IDENTITY: Final = "workloadidentity"
MANAGED_IDENTITY: Final = "managedidentity"
_KINDS: Final = {
    CLIENT_SECRET: "ClientSecret",
    WORKLOAD_IDENTITY: "WorkloadIdentity",
    MANAGED_IDENTITY: "ManagedIdentity",
}

_AUTHENTICATION: Final = "authentication"
_TENANT: Final = "tenantid"
_CLIENT: Final = "clientid"
_SECRET: Final = "clientsecret"
_SECRET_NAME: Final = "clientsecretname"
_AUTHORITY: Final = "authorityhost"
_TOKEN_FILE: Final = "tokenfile"
SPELLING: Final = {
    _AUTHENTICATION: "Authentication",
    _TENANT: "TenantId",
    _CLIENT: "ClientId",
    _SECRET: "ClientSecret",
    _SECRET_NAME: "ClientSecretName",
    _AUTHORITY: "AuthorityHost",
    _TOKEN_FILE: "TokenFile",
}
_TAKEN: Final = {
    CLIENT_SECRET: (_TENANT, _CLIENT, _SECRET, _SECRET_NAME, _AUTHORITY),
    WORKLOAD_IDENTITY: (_TENANT, _CLIENT, _TOKEN_FILE, _AUTHORITY),
    MANAGED_IDENTITY: (_CLIENT,),
}
assert _TAKEN.keys() == _KINDS.keys(), "every kind of identity says which parts it takes"
_ID: Final = re.compile(r"[A-Za-z0-9.-]{1,255}")
_HOST: Final = re.compile(r"(https://)?[A-Za-z0-9.-]{1,255}(:[0-9]{1,5})?/?")


@dataclass(frozen=True)
class Identity:
    """An identity that asks Entra ID for tokens, and how it does. Its repr shows no secret."""

    kind: str
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    client_secret_name: str = ""  # env:NAME or file:PATH, looked up by the process that asks for a token
    authority_host: str = ""  # empty: what AZURE_AUTHORITY_HOST says, or the public cloud's
    token_file: str = ""  # empty: what AZURE_FEDERATED_TOKEN_FILE says


def identity_of(parts: Mapping[str, str]) -> Identity | None:
    """The identity that these parts of a connection string name, or None; ValueError repeats no value of them."""
    given = [name for name in SPELLING if name in parts and name != _AUTHENTICATION]
    if _AUTHENTICATION not in parts:
        if given:
            raise ValueError(
                f"{SPELLING[given[0]]} of the connection string is for Entra ID: Authentication is missing"
            )
        return None
    kind = parts[_AUTHENTICATION].replace(" ", "").lower()
    if kind not in _KINDS:
        raise ValueError(
            "Authentication of the connection string must be ClientSecret, WorkloadIdentity or ManagedIdentity"
        )
    for name in given:
        if name not in _TAKEN[kind]:
            raise ValueError(f"{SPELLING[name]} of the connection string is not for Authentication={_KINDS[kind]}")
    if kind == CLIENT_SECRET:
        _check_secret(parts)
    for name, shape, example in (
        (_TENANT, _ID, "an id or a domain"),
        (_CLIENT, _ID, "an id"),
        (_AUTHORITY, _HOST, "https://host"),
    ):
        if name in parts and not shape.fullmatch(parts[name]):
            raise ValueError(f"{SPELLING[name]} of the connection string must be {example}")
    return Identity(
        kind,
        parts.get(_TENANT, ""),
        parts.get(_CLIENT, ""),
        parts.get(_SECRET, ""),
        parts.get(_SECRET_NAME, ""),
        parts.get(_AUTHORITY, "").rstrip("/"),
        parts.get(_TOKEN_FILE, ""),
    )


def _check_secret(parts: Mapping[str, str]) -> None:
    missing = [SPELLING[name] for name in (_TENANT, _CLIENT) if name not in parts]
    if missing:
        raise ValueError(f"Authentication=ClientSecret needs {' and '.join(missing)} in the connection string")
    if (_SECRET in parts) == (_SECRET_NAME in parts):
        raise ValueError(
            "Authentication=ClientSecret needs one of ClientSecretName (env:NAME or file:PATH) and ClientSecret"
        )
    if _SECRET_NAME in parts and not parts[_SECRET_NAME].startswith(("env:", "file:")):
        # Perhaps the secret itself, in the wrong place: not repeated.
        raise ValueError("ClientSecretName of the connection string must be env:NAME or file:PATH")


def check_installed() -> None:
    """`ValueError` with what to install."""
    try:
        is_there = importlib.util.find_spec("azure.identity") is not None
    except ModuleNotFoundError:  # not even `azure`
        is_there = False
    if not is_there:
        raise ValueError(INSTALL)
