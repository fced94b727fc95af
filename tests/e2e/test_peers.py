"""Who may do more than write: this machine, whom the configuration names, and certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from binlogd.binlog import Pulled
from binlogd.client.pump_client import PumpClient, RemoteSource
from binlogd.errors import EtcdRefused, PumpUnavailable
from binlogd.host.tls import ClientTls
from binlogd.tso import Tso, compose
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.generated.etcdserverpb import RangeRequest
from binlogd.wire.mutation import encode_mutations
from tests.integration.serving.test_guard import address_of_this_machine
from tests.support.appliance import Appliance
from tests.support.certificates import Authority

CLUSTER_ID = 7
BASE = compose(1_700_000_000_000)
NOT_ASKED = "may write binlogs here and nothing else"


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path, history=b"[]")
    yield machine
    machine.close()


class Stranger:
    """Somebody at an address that is not loopback."""

    def __init__(self, appliance: Appliance, tls: ClientTls | None = None) -> None:
        self._target = address_of_this_machine(), appliance.port
        self._tls = tls

    async def write(self) -> None:
        async with PumpClient(*self._target, cluster_id=CLUSTER_ID, tls=self._tls) as client:
            rows = encode_mutations(3, [])
            await client.write(prewrite_binlog(BASE, prewrite_key=b"k", prewrite_value=rows))
            await client.write(commit_binlog(BASE, Tso(BASE + 1)))

    async def pull(self) -> Pulled:
        source = RemoteSource("p", *self._target, cluster_id=CLUSTER_ID, tls=self._tls)
        async with aclosing(source.pull(Tso(0))) as batches:
            return await anext(batches)

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[EtcdClient]:
        async with EtcdClient([self._target], tls=self._tls, deadline_s=20.0) as etcd:
            yield etcd


def begin(appliance: Appliance, security: str) -> None:
    appliance.configure(
        f'[upstream]\nschema-history = "ddl_history.json"\n[security]\n{security}\n',
        'node-id = "pump0"\n',
    )
    text = appliance.config_file.read_text()
    appliance.config_file.write_text(text.replace("127.0.0.1", "0.0.0.0", 1))


async def test_whoever_is_not_named_may_write_and_nothing_else(appliance: Appliance) -> None:
    begin(appliance, "")
    appliance.start()
    stranger = Stranger(appliance)
    await stranger.write()
    with pytest.raises(PumpUnavailable, match=NOT_ASKED):
        await stranger.pull()
    async with stranger.registry() as etcd:
        with pytest.raises(EtcdRefused, match=NOT_ASKED):
            await etcd.range(RangeRequest(key=b"/"))
    assert "call_refused" in appliance.log()


async def test_whoever_is_named_may_pull_and_use_the_registry(appliance: Appliance) -> None:
    begin(appliance, f'peers-from = ["{address_of_this_machine()}"]')
    appliance.start()
    named = Stranger(appliance)
    await named.write()
    await named.pull()
    async with named.registry() as etcd:
        assert (await etcd.range(RangeRequest(key=b"/"))).header is not None


async def test_a_certificate_says_who_somebody_is_wherever_they_are(
    appliance: Appliance, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    authority.issue("node", "binlog", address_of_this_machine())
    begin(
        appliance,
        'ssl-ca = "ca/ca.pem"\nssl-cert = "ca/node.pem"\nssl-key = "ca/node.key"\n'
        'cert-allowed-cn = ["binlog"]',
    )
    appliance.start(is_ready=False)
    files = authority.files(authority.issue("drainer", "binlog"))
    known = Stranger(appliance, ClientTls(files, is_grpc=True))
    await known.write()
    await known.pull()
