"""Whether the configured downstream can be reached, before anything is written there."""

from __future__ import annotations

from contextlib import closing

from binlogd.drainer.kafka.broker import Broker
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.host.disk import check_writable
from binlogd.node.assembly import avro_schemas, downstream_server, kafka_options
from binlogd.settings.setup import Setup


async def reach(setup: Setup) -> str:
    """Tries the configured downstream, and changes nothing there: a session of a database, a
    login at one of Kafka's brokers, a question to the schema registry, a look at a directory. A
    warning of what a start goes on without, or "".

    Raises ConfigError, DownstreamUnavailable.
    """
    syncer = setup.config.syncer
    if syncer.db_type == "kafka":
        options = kafka_options(setup, 0)
        await Broker(options).greet()
        schemas = avro_schemas(setup, options)
        if schemas is not None:
            await schemas.greet()
    if setup.relay_dir is not None:
        check_writable("syncer.relay.log-dir", setup.relay_dir)
    if syncer.db_type in ("file", "sqlite"):
        check_writable("syncer.to.dir", setup.sink_dir)
    if syncer.db_type not in ("mysql", "tidb"):
        return ""
    server = downstream_server(setup)
    with closing(await SqlSession.connect(server)) as session:
        is_lacking = await catalog.lacks_process(session)
    if not is_lacking:
        return ""
    return (
        f"the downstream's user {server.user} lacks the PROCESS privilege: an interrupted swap of"
        " tables or EXCHANGE PARTITION will stop and ask; see deploy/grants.sql"
    )
