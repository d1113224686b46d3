"""The key of a data directory: random, made on first start, readable by its owner alone.

`--dev` stands for the well-known key that the Service Bus emulator documents; anyone can know it, so it serves this
machine only.
"""

import base64
import json
import os
from pathlib import Path
from typing import Final

from spillway.dialect.rights import MANAGE, AccessRule, Rights
from spillway.server.files import PRIVATE, write_whole

KEY_NAME: Final = "RootManageSharedAccessKey"
DEVELOPMENT_KEY: Final = "SAS_KEY_VALUE"
KEY_BYTES: Final = 32
FILE_NAME: Final = "keys.json"


class BadKeyFile(Exception):
    """The key file cannot be used; the text says what to do."""


def read_key(data: Path) -> str | None:
    """The key of this data directory, or None if it has none yet."""
    path = data / FILE_NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        key = json.loads(text)[KEY_NAME]
    except (ValueError, KeyError, TypeError):
        key = None
    if not isinstance(key, str) or not key:
        raise BadKeyFile(f"{path} holds no key; restore it, or remove it and a new key is made")
    return key


def ensure_key(data: Path) -> str:
    key = read_key(data)
    if key is None:
        key = base64.b64encode(os.urandom(KEY_BYTES)).decode()
        write_whole(data / FILE_NAME, json.dumps({KEY_NAME: key}).encode() + b"\n", PRIVATE)
    return key


def root_rights(key: str) -> Rights:
    return Rights([AccessRule(KEY_NAME, key, MANAGE)])


def is_key_known(rights: Rights) -> bool:
    """Whether anybody can sign a token: one of the keys is the emulator's."""
    return any(rule.key == DEVELOPMENT_KEY for rule in rights.rules.values())


def connection_string(host: str, port: int, key: str, is_clear_text: bool = True) -> str:
    """As the SDKs read it. The emulator's flag makes them speak in clear, so it is left out where that is refused."""
    where = f"[{host}]" if ":" in host else host
    flag = "UseDevelopmentEmulator=true;" if is_clear_text else ""
    return f"Endpoint=sb://{where}:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={key};{flag}"
