"""TLS from files: the port's side, which follows a change of the files, and the side of a client.

Invariant. A connection sees a certificate and key that belong together: new files count when they
load as a whole, and until then the ones before stay.
Why it holds. Contexts are made anew, never changed, and a handshake is given the one that is fresh.
Sessions are not resumed, so that no peer gets past a change of the CA.

Source: tidb-binlog pkg/security, whose certificates are read at each handshake.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binlogd.errors import ConfigError

ANY_NAME = "*"
"""Among the allowed names: whatever the CA has signed."""
_PROTOCOLS = ["http/1.1", "h2"]  # the port chooses the first that is offered; h2 is gRPC's
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the CA that peers are verified by, and what this side shows of itself.

    With `allowed_names` a peer must show a certificate with one of these common names.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    allowed_names: tuple[str, ...] = ()
    asks_for_certificate: bool = False  # of clients that may have none
    key_password: str = field(default="", repr=False)

    def stamp(self) -> _Stamp:
        """What differs after a change. Raises OSError."""
        found = [path.stat() for path in (self.ca, self.cert, self.key) if path is not None]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises ConfigError that names the file."""
        try:
            context.load_verify_locations(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            is_wrong = isinstance(error, ssl.SSLError)
            reason = "it holds no certificates in PEM" if is_wrong else error.strerror
            raise ConfigError(f"ssl-ca: could not read {self.ca}: {reason}") from error
        if self.cert is None or self.key is None:
            return
        try:
            context.load_cert_chain(self.cert, self.key, self.key_password)  # or OpenSSL asks
        except (OSError, ValueError) as error:  # the latter for a password that is too long
            reason = (
                "the key is not of this certificate, not in PEM, or encrypted with another password"
                " than ssl-key-password"
                if isinstance(error, ssl.SSLError)
                else str(getattr(error, "strerror", "") or error)
            )
            raise ConfigError(
                f"ssl-cert, ssl-key: could not load {self.cert} with {self.key}: {reason}"
            ) from error


class _Followed:
    """A context that is made anew when its files have changed."""

    _peer: str  # what the other side is

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        try:
            self._seen = files.stamp()
        except OSError as error:
            raise ConfigError(
                f"ssl-ca, ssl-cert, ssl-key: {error.filename}: {error.strerror}"
            ) from error
        self._context = self.make()

    def make(self) -> ssl.SSLContext:
        raise NotImplementedError

    def fresh(self) -> ssl.SSLContext:
        """Looks at the files, a few microseconds beside the milliseconds of a handshake."""
        try:
            stamp = self.files.stamp()
            if stamp != self._seen:
                self._seen = stamp  # what does not load is tried again after its next change
                self._context = self.make()
                _log().info(
                    "certificates_reloaded", cert=str(self.files.cert), ca=str(self.files.ca)
                )
        except (OSError, ConfigError) as error:
            _log().warning(
                "certificates_not_reloaded",
                cause=str(error),
                consequence="those loaded before stay in use",
            )
        return self._context

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Why a peer with this verified certificate is refused; "" if it is not."""
        names, allowed, who = common_names(certificate), self.files.allowed_names, self._peer
        if not allowed or (certificate and ANY_NAME in allowed) or set(names) & set(allowed):
            return ""
        return (
            f"{who} certificate authentication failed. The Common Name from the {who} certificate"
            f" {list(names)} was not found in the configuration cert-allowed-cn with value:"
            f" {list(allowed)}"
        )


def _log() -> Any:
    import structlog  # a command that asks a node once has nothing to log

    return structlog.get_logger(__name__)


class ServerTls(_Followed):
    """What the port shows and asks for. Raises ConfigError when the files do not load."""

    _peer = "client"

    def make(self) -> ssl.SSLContext:
        """A context for new handshakes. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        context.set_alpn_protocols(_PROTOCOLS)
        if self.files.allowed_names:
            context.verify_mode = ssl.CERT_REQUIRED
        elif self.files.asks_for_certificate:
            context.verify_mode = ssl.CERT_OPTIONAL
        self.files.load_into(context)
        return context

    def listener(self) -> ssl.SSLContext:
        """For a listener, for good: each handshake is given what the files hold then."""
        context = self.make()

        def choose(handshake: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            handshake.context = self.fresh()

        context.sni_callback = choose  # called for a peer without SNI, too
        return context


class ClientTls(_Followed):
    """What a client shows and verifies: the CA, and the name that it asked for."""

    _peer = "server"

    def __init__(self, files: TlsFiles, *, is_grpc: bool = False) -> None:
        """Raises ConfigError when the files do not load."""
        self._is_grpc = is_grpc
        super().__init__(files)

    def make(self) -> ssl.SSLContext:
        """A context for new connections. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._is_grpc:
            context.set_alpn_protocols(_PROTOCOLS[1:])
        self.files.load_into(context)
        return context


def common_names(certificate: Mapping[str, Any] | None) -> Sequence[str]:
    """Of the subject, as `getpeercert` tells it."""
    subject = (certificate or {}).get("subject", ())
    return [value for part in subject for name, value in part if name == "commonName"]
