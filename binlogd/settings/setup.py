"""What commands and parts ask of a configuration: roles, paths, and the TLS of each direction.

It is all that most commands need; the parts of a running node are put together elsewhere.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

from binlogd.host.tls import ClientTls, ServerTls, TlsFiles
from binlogd.settings.config import Config, TlsConfig
from binlogd.settings.quantities import listen_address


@dataclass(frozen=True, slots=True)
class Setup:
    """A configuration whose paths are in their places (settings/sources.py)."""

    config: Config
    is_elsewhere: bool = False
    """Whether the address is one that a command was given, and may not be that of the node whose
    configuration this is."""

    @property
    def data_dir(self) -> Path:
        """The one volume."""
        return Path(self.config.data_dir)

    @property
    def has_pump(self) -> bool:
        """Whether this node receives."""
        return "pump" in self.config.roles

    @property
    def has_drainer(self) -> bool:
        """Whether this node replicates."""
        return "drainer" in self.config.roles and self.config.drainer.enabled

    @property
    def is_open(self) -> bool:
        """Whether other machines reach the port, and neither TLS nor a token was thought of."""
        security = self.config.security
        host, _ = listen_address(self.config.addr)
        return not (is_loopback(host) or security.ssl_ca or security.admin_token)

    @property
    def relay_dir(self) -> Path | None:
        """Where the relay log is; None when it is off."""
        log_dir = self.config.syncer.relay.log_dir
        return Path(log_dir) if log_dir else None

    @property
    def binlog_socket(self) -> Path | None:
        """Where the unix socket is; None when there is none."""
        path = self.config.binlog_socket
        return Path(path) if path else None

    @property
    def history_file(self) -> Path | None:
        """The file that `upstream.schema-history` names; None for a URL, or where it names none."""
        file = self.config.upstream.schema_history
        return Path(file) if file and "://" not in file else None

    @property
    def sink_dir(self) -> Path:
        """Where the file sink writes."""
        return Path(self.config.syncer.to.dir or self.data_dir / "drainer")

    @property
    def replica_file(self) -> Path:
        """What the SQLite sink writes."""
        return self.sink_dir / "replica.db"


def tls_files(table: TlsConfig) -> TlsFiles | None:
    """The files of a security table; None where there is no TLS."""
    if not table.ssl_ca:
        return None
    return TlsFiles(
        ca=Path(table.ssl_ca),
        cert=Path(table.ssl_cert) if table.ssl_cert else None,
        key=Path(table.ssl_key) if table.ssl_key else None,
        key_password=table.ssl_key_password,
        allowed_names=tuple(name.strip() for name in table.cert_allowed_cn),
    )


def server_tls(setup: Setup) -> ServerTls | None:
    """Of the port. Raises ConfigError when its files do not load."""
    files = tls_files(setup.config.security)
    if files is None:
        return None
    asks = bool(setup.config.security.operators_cn)
    return ServerTls(replace(files, asks_for_certificate=asks))


def client_tls(setup: Setup) -> ClientTls | None:
    """Towards other nodes. Raises ConfigError when its files do not load."""
    return plain_tls(setup.config.security, is_grpc=True)


def http_tls(setup: Setup, host: str) -> ssl.SSLContext | None:
    """For a command that speaks to a running node. At a loopback address it is this machine that
    answers, whatever name its certificate has; the CA is asked for all the same."""
    files = tls_files(setup.config.security)
    if files is None:
        return None
    context = ClientTls(files).fresh()
    context.check_hostname = not is_loopback(host)
    return context


def is_loopback(host: str) -> bool:
    """Whether only this machine can be there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def plain_tls(table: TlsConfig, *, is_grpc: bool = False) -> ClientTls | None:
    """Towards what `table` is for. Raises ConfigError when its files do not load."""
    files = tls_files(table)
    return ClientTls(files, is_grpc=is_grpc) if files is not None else None
