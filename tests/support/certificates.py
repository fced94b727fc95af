"""A certificate authority for tests, and files of what it has signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from binlogd.host.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """One CA with a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, common_name: str = "binlog", *addresses: str) -> Pair:
        """Files NAME.pem and NAME.key for localhost and these; replaces what was there."""
        made = self._ca.issue_cert(
            "localhost",
            "127.0.0.1",
            *addresses,
            common_name=common_name,
            key_type=trustme.KeyType.ECDSA,
        )
        pair = Pair(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        pair.cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        pair.key.write_bytes(made.private_key_pem.bytes())
        return pair

    def files(self, pair: Pair | None = None, *allowed_names: str) -> TlsFiles:
        """As a server or client takes them."""
        if pair is None:
            return TlsFiles(self.file, allowed_names=allowed_names)
        return TlsFiles(self.file, pair.cert, pair.key, allowed_names)
