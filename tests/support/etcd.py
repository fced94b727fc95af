"""A real etcd of one member, and binlogd's own, each on a port of its own."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from random import Random

from grpclib.const import Cardinality

from binlogd.grpc.channel import PlainChannel
from binlogd.grpc.methods import OpenStreams
from binlogd.host.tls import ServerTls
from binlogd.placement.etcd_services import PROGRESS_S, EtcdServices
from binlogd.serving.server import Server
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.keyspace.store import KeyspaceLimits, KeyspaceStore
from binlogd.wire.generated.etcdserverpb import CompactionRequest, PutRequest
from tests.support.ports import free_port
from tests.support.started import started
from tests.support.tried import tried


@contextmanager
def real_etcd(directory: Path) -> Iterator[int]:
    """Runs one in a directory; its client port. Raises AssertionError when it does not start."""
    program = shutil.which("etcd")
    assert program is not None, "etcd is not installed: `make system` installs etcd-server"
    client, peer = free_port(), free_port()
    words = [
        program,
        "--name=one",
        f"--data-dir={directory / 'data'}",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=one=http://127.0.0.1:{peer}",
        "--heartbeat-interval=20",
        "--election-timeout=200",
    ]
    log = directory / "etcd.log"
    with started(words, lambda: _is_healthy(client), directory=directory, log=log):
        yield client


def say_version(port: int) -> None:
    """That a test has to do with the real one at this port."""
    tried("etcd", _version_at(port))


@cache
def _version_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=30) as answer:
        return str(json.load(answer)["etcdserver"])


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


@asynccontextmanager
async def own_etcd(
    path: Path,
    *,
    port: int = 0,
    limits: KeyspaceLimits | None = None,
    tls: ServerTls | None = None,
    url: str = "http://127.0.0.1",
    progress_s: float = PROGRESS_S,
) -> AsyncIterator[tuple[int, KeyspaceStore]]:
    """Serves a keyspace; the port, and the keyspace. Leases end only where it runs; `url` is what
    the member says of itself."""
    keyspace = await KeyspaceStore.open(path, Random(1), limits)
    streams = OpenStreams()
    server = Server(
        [
            EtcdServices(keyspace, streams, name="own", url=url, progress_s=progress_s),
        ],
        tls=tls,
    )
    try:
        _, bound = await server.start("127.0.0.1", port)
        yield bound, keyspace
    finally:
        streams.close()
        await server.close()
        await keyspace.close()


async def forgotten(client: EtcdClient, keyspace: KeyspaceStore | None) -> int:
    """Has an etcd forget what was written before; up to which revision. A real one is told to, our
    own does so when enough has been written."""
    if keyspace is not None:
        before = keyspace.compacted
        while keyspace.compacted == before:
            await client.put(PutRequest(key=b"/elsewhere"))
        return keyspace.compacted
    header = (await client.put(PutRequest(key=b"/elsewhere"))).header
    assert header is not None
    async with (
        PlainChannel(*client.endpoints[0]) as raw,
        raw.request("/etcdserverpb.KV/Compact", Cardinality.UNARY_UNARY, bytes, bytes) as stream,
    ):
        await stream.send_message(bytes(CompactionRequest(revision=header.revision)), end=True)
        await stream.recv_message()
    return header.revision
