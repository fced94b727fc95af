"""What a reload takes of a configuration, beside what stays."""

from __future__ import annotations

from binlogd.node.reloading import Reloading
from binlogd.settings import config
from binlogd.settings.setup import Setup

RULES = """
[[syncer.table-migrate-rule]]
source = {schema = "shop", table = "log_*"}
binlog-filter-rule = ["no-drops"]
[syncer.binlog-filter-rule.no-drops]
ignore-event = ["drop table"]
"""


def test_rules_that_only_filter_and_keys_without_a_value_are_no_hindrance() -> None:
    def setup(text: str) -> Setup:
        return Setup(config.parse(text + RULES, "binlogd.toml"))

    renewed = []
    reloading = Reloading(setup(""), lambda: setup('[syncer]\nignore-schemas = "mysql"\n'))
    reply = reloading.reload(lambda: renewed.append(True))
    assert reply.message.startswith("taken: syncer.ignore-schemas")
    assert reloading.setup.config == setup('[syncer]\nignore-schemas = "mysql"\n').config
    assert renewed == [True]
