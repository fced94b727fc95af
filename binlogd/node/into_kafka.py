"""Into Kafka, as a configuration says it."""

from __future__ import annotations

from functools import partial

from binlogd.drainer.kafka.avro import check_installed
from binlogd.drainer.kafka.broker import Broker, BrokerOptions, topic_name
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.kafka.login import KafkaLogin
from binlogd.drainer.kafka.message import Notation
from binlogd.drainer.kafka.original import OriginalMessages
from binlogd.drainer.kafka.schema_registry import AvroSchemas, RegistryOptions, SchemaRegistry
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.settings.config import DownstreamConfig
from binlogd.settings.setup import Setup, plain_tls


def kafka_sink(setup: Setup, cluster_id: int) -> KafkaSink:
    """Not opened yet."""
    options = _options(setup, cluster_id)
    schemas = _avro_schemas(setup, options)
    if schemas is not None:
        return KafkaSink(options, Debezium(options.topic, schemas), schemas)
    return KafkaSink(options, _notation(setup.config.syncer.to, options.topic))


async def reach_kafka(setup: Setup) -> None:
    """Logs in at one of the brokers, and asks the schema registry."""
    options = _options(setup, 0)
    await Broker(options).greet()
    schemas = _avro_schemas(setup, options)
    if schemas is not None:
        await schemas.greet()


def _options(setup: Setup, cluster_id: int) -> BrokerOptions:
    """Raises ConfigError for certificates that do not load."""
    to = setup.config.syncer.to
    return BrokerOptions(
        addresses=tuple(each.strip() for each in to.kafka_addrs.split(",") if each.strip()),
        topic=to.topic_name or f"{cluster_id}_obinlog",
        progress_topic=f"binlogd_progress_{cluster_id}",
        client_id=to.kafka_client_id,
        partitions=to.partitions,
        message_bytes_max=to.kafka_max_message_size,
        compression=to.kafka_compression,
        tls=plain_tls(to.security),
        login=_kafka_login(setup),
    )


def _kafka_login(setup: Setup) -> KafkaLogin | None:
    to = setup.config.syncer.to
    match to.kafka_sasl_mechanism:
        case "":
            return None
        case "OAUTHBEARER":
            if not to.kafka_token_url:
                return KafkaLogin("OAUTHBEARER", token_file=to.kafka_token_file)
            url, scope = to.kafka_token_url, to.kafka_token_scope
            return KafkaLogin("OAUTHBEARER", to.user, to.password, token_url=url, token_scope=scope)
        case mechanism:
            return KafkaLogin(mechanism, to.user, to.password)


def _avro_schemas(setup: Setup, options: BrokerOptions) -> AvroSchemas | None:
    """None where messages are not in Avro. Raises ConfigError where its library is missing."""
    to = setup.config.syncer.to
    if to.protocol != "debezium-avro":
        return None
    check_installed()
    user, password = to.schema_registry_user, to.schema_registry_password
    registry = RegistryOptions(to.schema_registry, user, password, options.tls)
    return AvroSchemas(SchemaRegistry(registry), partial(topic_name, options.topic))


def _notation(to: DownstreamConfig, topic: str) -> Notation:
    match to.protocol:
        case "canal-json":
            return CanalJson()
        case "debezium":
            return Debezium(topic, DebeziumJson(has_schemas=to.debezium_schemas))
        case _:
            return OriginalMessages()
