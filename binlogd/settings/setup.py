"""A configuration with the place it was read at: paths, and the TLS of each direction.

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
    """A configuration and the directory that its relative upstream paths count from."""

    config: Config
    directory: Path
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
        return self.data_dir / log_dir if log_dir else None

    @property
    def binlog_socket(self) -> Path | None:
        """Where the unix socket is; None when there is none."""
        path = self.config.binlog_socket.removeprefix("unix://")
        return self.data_dir / path if path else None

    @property
    def sink_dir(self) -> Path:
        """Where the file sink writes."""
        return self.data_dir / (self.config.syncer.to.dir or "drainer")

    @property
    def archive_url(self) -> str:
        """A URL as it is; a path counts from the directory of the configuration; "" for none."""
        url = self.config.archive.url
        return url if not url or "://" in url else str(self.directory / url)

    @property
    def schema_history(self) -> str:
        """A URL as it is; a file beside the configuration, else in the working directory."""
        source = self.config.upstream.schema_history
        if not source or source.startswith(("http://", "https://")):
            return source
        beside = self.directory / source
        return str(beside if beside.exists() or not Path(source).exists() else Path(source))


def tls_files(setup: Setup, table: TlsConfig) -> TlsFiles | None:
    """The files of a security table, beside the configuration; None where there is no TLS."""
    if not table.ssl_ca:
        return None
    return TlsFiles(
        ca=setup.directory / table.ssl_ca,
        cert=setup.directory / table.ssl_cert if table.ssl_cert else None,
        key=setup.directory / table.ssl_key if table.ssl_key else None,
        allowed_names=tuple(name.strip() for name in table.cert_allowed_cn),
    )


def server_tls(setup: Setup) -> ServerTls | None:
    """Of the port. Raises ConfigError when its files do not load."""
    files = tls_files(setup, setup.config.security)
    if files is None:
        return None
    asks = bool(setup.config.security.operators_cn)
    return ServerTls(replace(files, asks_for_certificate=asks))


def client_tls(setup: Setup) -> ClientTls | None:
    """Towards other nodes. Raises ConfigError when its files do not load."""
    files = tls_files(setup, setup.config.security)
    return ClientTls(files, is_grpc=True) if files is not None else None


def http_client_tls(setup: Setup) -> ClientTls | None:
    """Towards TiDB's status port. Raises ConfigError when its files do not load."""
    return plain_tls(setup, setup.config.security)


def http_tls(setup: Setup, host: str) -> ssl.SSLContext | None:
    """For a command that speaks to a running node. At a loopback address it is this machine that
    answers, whatever name its certificate has; the CA is asked for all the same."""
    files = tls_files(setup, setup.config.security)
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


def plain_tls(setup: Setup, table: TlsConfig) -> ClientTls | None:
    """Towards what `table` is for, if not gRPC. Raises ConfigError when its files do not load."""
    files = tls_files(setup, table)
    return ClientTls(files) if files is not None else None
