"""Passwords that do not stand in a file as they are read: the original's `encrypted_password`.

Base64 of a 16 byte IV, "@" and AES-CFB; the key is in BINLOG_SECRET_KEY, or one that everybody
knows. It hides a password from a glance, not from whoever has the key, and has no integrity.

Source: tidb-binlog pkg/encrypt.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.decrepit.ciphers.modes import CFB
    from cryptography.hazmat.primitives.ciphers import Cipher

from binlogd.errors import ConfigError

KEY_VARIABLE = "BINLOG_SECRET_KEY"
_KEY_OF_ALL = "a529b7665997f043a30ac8fadcb51d6aa032c226ab5b7750530b12b8c1a16a48"
"""Published with the original: what is encrypted by it, everybody can read."""
_IV_BYTES, _KEY_BYTES = 16, (16, 24, 32)


def is_key_of_all(key_hex: str) -> bool:
    """Whether the key that is used is the published one."""
    return key_hex in ("", _KEY_OF_ALL)


def encrypt(text: str, key_hex: str, random_bytes: Callable[[int], bytes]) -> str:
    """What to write as `encrypted_password`. Raises ConfigError for a key that is none."""
    iv = random_bytes(_IV_BYTES)
    encryptor = _cipher(_key(key_hex), iv).encryptor()
    return base64.b64encode(iv + b"@" + encryptor.update(text.encode())).decode()


def decrypt(encrypted: str, key_hex: str) -> str:
    """The password. Raises ConfigError; its text holds nothing of either."""
    key = _key(key_hex)
    try:
        data = base64.b64decode(encrypted, validate=True)
    except ValueError as error:  # also for what is not ASCII
        raise ConfigError("is not base64; make it by `binlogd ctl encrypt`") from error
    iv, mark, hidden = data[:_IV_BYTES], data[_IV_BYTES : _IV_BYTES + 1], data[_IV_BYTES + 1 :]
    if mark != b"@":
        raise ConfigError("ciphertext not valid; make it by `binlogd ctl encrypt`")
    try:
        return _cipher(key, iv).decryptor().update(hidden).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"was encrypted by another key than that in {KEY_VARIABLE}") from None


def _cipher(key: bytes, iv: bytes) -> Cipher[CFB]:
    from cryptography.hazmat.decrepit.ciphers.modes import CFB
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.AES(key), CFB(iv))


def _key(key_hex: str) -> bytes:
    try:
        key = bytes.fromhex(key_hex or _KEY_OF_ALL)
    except ValueError:
        key = b""
    if len(key) not in _KEY_BYTES:
        raise ConfigError(f"{KEY_VARIABLE}: expected 16, 24 or 32 bytes as hexadecimal digits")
    return key
