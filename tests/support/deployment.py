"""The files below `deploy/`, as what reads them there would read them."""

from __future__ import annotations

import configparser
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from tests.support.tried import library

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric that a rule or a panel reads, and the labels that it names."""

    metric: str
    equal: tuple[tuple[str, str], ...]
    labels: tuple[str, ...]


def document(name: str) -> Any:
    """Of a YAML file that holds one."""
    return yaml.safe_load((DEPLOY / name).read_text())


def documents(name: str) -> list[Any]:
    """Of a YAML file that holds several."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def dashboard() -> Any:
    """The Grafana dashboard."""
    return json.loads((DEPLOY / "grafana.json").read_text())


def unit() -> configparser.RawConfigParser:
    """The systemd unit; of a key that is given several times, the last."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=False)
    parser.read_string((DEPLOY / "binlogd.service").read_text())
    return parser


def grants() -> list[str]:
    """The statements of the user downstream."""
    lines = (DEPLOY / "grants.sql").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return [each.strip() for each in text.split(";") if each.strip()]


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every rule and panel."""
    for group in document("alerts.yml")["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"].replace("$__rate_interval", "1m")


def selectors(expression: str) -> list[Selector]:
    """What it reads. Raises ValueError when it is no PromQL."""
    library("promql-parser")
    found: list[Selector] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            matchers = node.matchers.matchers
            equal = tuple((m.name, m.value) for m in matchers if m.op == promql.MatchOp.Equal)
            found.append(Selector(str(node.name), equal, tuple(m.name for m in matchers)))
        return True

    promql.walk(promql.parse(expression), visit)
    return found
