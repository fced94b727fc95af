"""Whether the configured downstream can be reached, before anything is written there."""

from __future__ import annotations

from binlogd.host.disk import check_writable
from binlogd.settings.setup import Setup


async def reach(setup: Setup) -> str:
    """Tries the configured downstream, and changes nothing there: a session of a database, a
    login at one of Kafka's brokers, a question to the schema registry, a look at a directory or a
    replica. A warning of what a start goes on without, or "".

    Raises ConfigError, DownstreamUnavailable.
    """
    if setup.relay_dir is not None:
        check_writable("syncer.relay.log-dir", setup.relay_dir)
    match setup.config.syncer.db_type:
        case "kafka":
            from binlogd.node.into_kafka import reach_kafka

            await reach_kafka(setup)
        case "mysql" | "tidb":
            from binlogd.node.into_mysql import reach_mysql

            return await reach_mysql(setup)
        case "file" | "sqlite" as db_type:
            check_writable("syncer.to.dir", setup.sink_dir)
            if db_type == "sqlite" and setup.replica_file.exists():
                from binlogd.drainer.sqlite.sink import look

                look(setup.replica_file)
    return ""
