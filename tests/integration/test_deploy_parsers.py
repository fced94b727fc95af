"""What stands below `deploy/`, read by the libraries of Helm, of Kubernetes' API and of Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from binlogd.settings import config
from tests.support.deployment import DEPLOY, ROOT, document
from tests.support.manifests import CHART, MANIFEST, manifest, program, rendered, run

CLIENTS = [{"podSelector": {"matchLabels": {"app.kubernetes.io/component": "tidb"}}}]
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.org/binlogd", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "config": {
        "pump": {"shards": 8, "max-message-size": 134217728},
        "syncer": {"replicate-do-table": [{"db-name": "shop", "tbl-name": 'a "b" & <c>'}]},
    },
    "secret": {"name": "other", "adminToken": "token"},
    "tls": {"secretName": "certificate", "clientNames": ["tidb", "binlogd"]},
    "persistence": {"size": "1Ti", "storageClassName": "fast"},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "podAnnotations": {"example.org/owner": "replication"},
    "networkPolicy": {"enabled": True, "from": CLIENTS},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}


def test_the_manifest_is_the_chart_and_both_are_of_this_version() -> None:
    text = MANIFEST.read_text()
    body = text[text.index("---\n") :]
    assert text == manifest(body), "one of the two was changed alone: `make manifests`"
    chart = document(str(CHART.relative_to(DEPLOY) / "Chart.yaml"))
    assert f'version = "{chart["appVersion"]}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"image: binlogd:{chart['appVersion']}\n" in body


@pytest.mark.soak
def test_helm_kubernetes_and_compose_read_what_is_shipped(tmp_path: Path) -> None:
    command = program(tmp_path)
    assert MANIFEST.read_text() == manifest(rendered(command, tmp_path))
    decoded = run(command, "kubernetes", MANIFEST)
    assert decoded.stdout.split() == ["ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"]

    full = tmp_path / "full.yaml"
    full.write_text(rendered(command, tmp_path, EVERYTHING))
    decoded = run(command, "kubernetes", full)
    assert decoded.stderr == ""
    assert {"NetworkPolicy", "ServiceMonitor"} <= set(decoded.stdout.split())
    (made,) = [each for each in yaml.safe_load_all(full.read_text()) if each["kind"] == "ConfigMap"]
    file = tmp_path / "binlogd.toml"
    file.write_text(made["data"]["binlogd.toml"])
    loaded = config.load(file)
    assert loaded.pump.max_message_size == 134217728
    assert loaded.security.cert_allowed_cn == ("tidb", "binlogd")
    assert loaded.security.admin_token_file == "/etc/binlogd-secret/token"
    assert [each.tbl_name for each in loaded.syncer.replicate_do_table] == ['a "b" & <c>']

    composed = run(command, "compose", DEPLOY / "compose.yaml")
    assert composed.stdout.split() == sorted(document("compose.yaml")["services"])

    # and each of them refuses
    full.write_text(full.read_text().replace("  serviceName:", "  servicename:"))
    assert 'unknown field "spec.servicename"' in run(command, "kubernetes", full).stderr
    (tmp_path / "values.yaml").write_text("persistance: {size: 1Gi}")
    refused = run(command, "render", CHART, tmp_path / "values.yaml")
    assert "persistance" in refused.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text("services: {binlogd: {image: binlogd, port: [8250]}}")
    assert run(command, "compose", wrong).returncode == 1
