"""What stands below `deploy/` loads, and agrees with the image and the configuration."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from binlogd.settings import config
from binlogd.settings.config import Config
from binlogd.settings.effects import flattened
from binlogd.settings.sources import PATHS
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.submit import PROGRAMS, check_speculation
from tests.support.deployment import (
    DEPLOY,
    ROOT,
    dashboard,
    document,
    documents,
    expressions,
    grants,
    unit,
)
from tests.support.submitted import arguments_of

DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEBIAN_12 = "3.11.2"
ENTRYPOINT = "/opt/spark/entrypoint.sh"
"""Of the image with Spark."""
PORT, UID, VOLUME = 8250, 8250, "/var/lib/binlogd"
ROUTES = (ROOT / "binlogd" / "serving" / "routes" / "application.py").read_text()


def instructions(word: str) -> list[str]:
    """What follows an instruction of the Dockerfile, each time it is there."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [re.sub(" +", " ", rest) for rest in re.findall(rf"^{word} (.*)$", joined, re.MULTILINE)]


def kind(name: str) -> Any:
    """The document of a kind in the Kubernetes example."""
    return next(each for each in documents("kubernetes.yaml") if each["kind"] == name)


def pod() -> Any:
    return kind("StatefulSet")["spec"]["template"]["spec"]


def check_serve(words: list[str]) -> Path:
    """`serve --config FILE` and nothing else; the file."""
    assert words[:2] == ["serve", "--config"]
    assert len(words) == 3
    return Path(words[2])


# --- the image --------------------------------------------------------------------------


def test_the_image_is_what_the_documents_say() -> None:
    assert instructions("EXPOSE") == [str(PORT)]
    assert set(instructions("USER")) == {f"{UID}:{UID}"}
    assert set(instructions("VOLUME")) == {VOLUME}
    assert Config().data_dir == VOLUME
    entries = [json.loads(each) for each in instructions("ENTRYPOINT")]
    assert entries == [["tini", "--", "binlogd"], ["tini", "--", ENTRYPOINT]]
    assert json.loads(instructions("CMD")[0]) == ["serve", "--addr", f"0.0.0.0:{PORT}"]
    (health,) = instructions("HEALTHCHECK")
    assert json.loads(health.partition("CMD ")[2]) == ["binlogd", "health"]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert stages[-1] == "run", "the default is the small one"
    assert {"check", "spark"} <= set(stages)
    assert "base" in stages
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"VERSION={project['version']}" in instructions("ARG")
    labels = re.findall(r"org\.opencontainers\.image\.([\w.]+)=", instructions("LABEL")[0])
    assert set(labels) == {"title", "description", "version", "revision", "base.name"}


def test_an_image_is_released_on_a_base_named_by_its_digest_or_not_at_all(tmp_path: Path) -> None:
    docker = tmp_path / "docker"  # says what it was asked
    docker.write_text('#!/bin/sh\necho "asked: $*"\n')
    docker.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    make = ["make", "--silent", "release-image", "IMAGE=registry.example.org/binlogd"]

    def released(base: str) -> subprocess.CompletedProcess[str]:
        words = [*make, f"BASE={base}"]
        return subprocess.run(
            words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )

    tag = "python:3.11-slim-bookworm"
    for moving in ("", tag, f"{tag}@sha256:abc"):
        refused = released(moving)
        assert refused.returncode == 2
        assert "docker buildx imagetools inspect" in refused.stdout
        assert "asked" not in refused.stdout
    made = released(f"{tag}@sha256:{'0' * 64}")
    assert made.returncode == 0, made.stderr
    assert f"--build-arg BASE={tag}@sha256:{'0' * 64} " in made.stdout
    assert "--platform linux/amd64,linux/arm64 " in made.stdout


def test_what_the_image_is_built_from_reaches_the_build() -> None:
    let_in = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    copied = [
        word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]
    ]
    for path in (*(set(copied) - {"."}), "tests", "config", "docs", "deploy", ".importlinter"):
        assert path.split("/")[0] in let_in
        assert (ROOT / path).exists()


# --- compose ----------------------------------------------------------------------------


def test_the_compose_file_runs_the_image_as_it_is_meant() -> None:
    compose = document("compose.yaml")
    service = compose["services"]["binlogd"]
    assert (DEPLOY / service["build"]["context"] / "Dockerfile").exists()
    assert service["ports"] == [f"127.0.0.1:{PORT}:{PORT}"], "whoever wants more says so"
    assert f"data:{VOLUME}" in service["volumes"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "user" not in service, "the image's own"
    mounts = dict(each.split(":")[:2] for each in service["volumes"])
    inside = check_serve(service["command"])
    file = next(DEPLOY / source for source, target in mounts.items() if target == str(inside))
    loaded = config.load(file)
    assert loaded.addr == f"0.0.0.0:{PORT}"
    assert loaded.data_dir == VOLUME
    assert loaded.advertise_addr == f"binlogd:{PORT}", "the name of the service"
    assert loaded.syncer.to.host in compose["services"]
    assert loaded.syncer.to.password_file == f"/run/secrets/{service['secrets'][0]}"
    sockets = str(Path(loaded.binlog_socket).parent)
    assert [each for each in service["tmpfs"] if each.startswith(f"{sockets}:uid={UID},")]
    assert service["depends_on"] == {"mariadb": {"condition": "service_healthy"}}
    assert "healthcheck" in compose["services"]["mariadb"]


def test_whatever_a_service_names_is_there() -> None:
    compose = document("compose.yaml")
    for service in compose["services"].values():
        for each in service.get("volumes", ()):
            source = each.split(":")[0]
            assert (
                (DEPLOY / source).exists()
                if source.startswith(".")
                else source in compose["volumes"]
            )
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        assert {each["source"] for each in service.get("configs", ())} <= set(compose["configs"])
    for each in compose["configs"].values():
        assert yaml.safe_load(each["content"])["apiVersion"] == 1


# --- downstream ---------------------------------------------------------------------------


def test_nothing_that_is_shipped_is_root_downstream_or_has_a_password() -> None:
    manifest = tomllib.loads(kind("ConfigMap")["data"]["binlogd.toml"])
    shipped = [config.load(ROOT / "config" / "example.toml"), config.load(DEPLOY / "binlogd.toml")]
    unsaid = config.parse("", "test")
    users = [manifest["syncer"]["to"]["user"], *(each.syncer.to.user for each in shipped)]
    users += [unsaid.syncer.to.user, unsaid.syncer.to.checkpoint.user, unsaid.upstream.user]
    made = document("compose.yaml")["services"]["mariadb"]
    assert {*users, made["environment"]["MARIADB_USER"]} == {"binlogd"}
    assert not any(each.syncer.to.password for each in shipped)
    assert "./grants.sql:/docker-entrypoint-initdb.d/grants.sql:ro" in made["volumes"]
    assert all("GRANT " in each and "TO 'binlogd'@'%'" in each for each in grants())
    for path in (*DEPLOY.rglob("*"), *(ROOT / "config").iterdir()):
        assert path.is_dir() or "change me" not in path.read_text().lower(), path


def test_what_is_shipped_has_a_way_in_for_a_tidb(tmp_path: Path) -> None:
    """By PD, which a cluster has, or by a socket; a Pump that nobody finds receives nothing."""
    file = tmp_path / "binlogd.toml"
    file.write_text(kind("ConfigMap")["data"]["binlogd.toml"])
    by_pd = [config.load(ROOT / "config" / "example.toml"), config.load(file)]
    assert all(each.upstream.kind == "pd" and each.upstream.pd_urls for each in by_pd)
    assert all(not each.advertise_addr.startswith("0.0.0.0") for each in by_pd)
    in_compose = config.load(DEPLOY / "binlogd.toml")
    assert in_compose.binlog_socket
    for each in (*by_pd, in_compose):  # read from /etc/binlogd, where nothing can be written
        paths = [str(value) for key, value in flattened(each) if key in PATHS and value]
        assert all(Path(path).is_absolute() for path in paths if "://" not in path), paths


# --- systemd ----------------------------------------------------------------------------


def test_the_unit_runs_the_command_in_the_directories_of_the_configuration() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "binlogd"
    check_serve(words)
    assert f"/var/lib/{service['StateDirectory']}" == VOLUME
    assert service["RestartPreventExitStatus"] == "2", "the exit code of a wrong configuration"
    assert service["User"] == "binlogd"
    assert int(service["TimeoutStopSec"]) > 10
    assert service["KillMode"] == "mixed", "what the node has begun is not told to stop before it"
    assert service["ProtectSystem"] == "strict"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    text = (DEPLOY / "binlogd.service").read_text()
    file = tmp_path / "binlogd.service"
    file.write_text(text.replace("/opt/binlogd/bin/binlogd", "/bin/true"))
    environ = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)]
    said = subprocess.run(verify, capture_output=True, text=True, check=False, env=environ)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(file)]
    judged = subprocess.run(security, capture_output=True, text=True, check=False, env=environ)
    assert judged.returncode == 0, judged.stdout[-500:]


# --- Kubernetes -------------------------------------------------------------------------


def test_the_stateful_set_runs_the_image_as_it_is_meant() -> None:
    spec, (container,) = kind("StatefulSet")["spec"], pod()["containers"]
    assert spec["replicas"] == 1
    assert spec["serviceName"] == kind("Service")["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == kind("Service")["spec"]["selector"]
    assert pod()["securityContext"]["runAsUser"] == UID
    assert pod()["securityContext"]["fsGroup"] == UID
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["ports"] == [{"name": "binlogd", "containerPort": PORT}]
    assert kind("Service")["spec"]["ports"][0]["port"] == PORT
    assert pod()["terminationGracePeriodSeconds"] > 10
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == "binlogd"
        assert f'add_get("{asked["path"]}"' in ROUTES


def test_what_the_stateful_set_mounts_is_there_and_the_configuration_loads(tmp_path: Path) -> None:
    spec, (container,) = kind("StatefulSet")["spec"], pod()["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
    assert set(mounts) == claims | {each["name"] for each in pod()["volumes"]}
    assert mounts["data"] == VOLUME
    inside = check_serve(container["args"])
    assert mounts["config"] == str(inside.parent)
    file = tmp_path / inside.name
    file.write_text(kind("ConfigMap")["data"][inside.name])
    loaded = config.load(file)
    assert loaded.addr == f"0.0.0.0:{PORT}"
    name, service = kind("StatefulSet")["metadata"]["name"], spec["serviceName"]
    assert loaded.advertise_addr == f"{name}-0.{service}:{PORT}"
    secret = Path(loaded.syncer.to.password_file)
    assert mounts["secret"] == str(secret.parent)
    how = (DEPLOY / "kubernetes.yaml").read_text()
    assert f"kubectl create secret generic binlogd --from-file={secret.name} " in how
    assert not [each for each in documents("kubernetes.yaml") if each["kind"] == "Secret"]


# --- Spark on Kubernetes ----------------------------------------------------------------


def started(words: list[str], directory: Path, **environ: str) -> list[str]:
    """What the first process of the image with Spark becomes: the program and its words."""
    bin_ = directory / "bin"
    bin_.mkdir(exist_ok=True)
    for name in ("spark-submit", "java", "binlogd"):
        (bin_ / name).write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        (bin_ / name).chmod(0o755)
    environ |= {"PATH": f"{bin_}:{os.environ['PATH']}", "SPARK_HOME": str(directory)}
    script = [str(DEPLOY / "spark-entrypoint.sh"), *words]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_image_with_spark_is_driver_executor_and_binlogd(tmp_path: Path) -> None:
    """In the words of Spark's own image; the names are those that Spark gives its pods."""
    words = ["--properties-file", "p", "local:///x.py", "a b"]
    driver = started(["driver", *words], tmp_path, SPARK_DRIVER_BIND_ADDRESS="10.0.0.2")
    assert driver[0] == "spark-submit"
    assert "spark.driver.bindAddress=10.0.0.2" in driver
    assert driver[-6:] == ["--deploy-mode", "client", *words]
    given = {
        "DRIVER_URL": "spark://driver:7078",
        "EXECUTOR_ID": "3",
        "EXECUTOR_CORES": "2",
        "APPLICATION_ID": "app",
        "EXECUTOR_POD_IP": "10.0.0.3",
        "RESOURCE_PROFILE_ID": "0",
        "EXECUTOR_POD_NAME": "pod-3",
        "EXECUTOR_MEMORY": "1g",
        "JAVA_OPT_0": "-Dspark.a=b c",
        "JAVA_OPT_1": "-XX:+UseSerialGC",
    }
    executor = started(
        ["executor"], tmp_path, **{f"SPARK_{name}": value for name, value in given.items()}
    )
    assert executor[:5] == ["java", given["JAVA_OPT_0"], given["JAVA_OPT_1"], "-Xms1g", "-Xmx1g"]
    assert f":{tmp_path}/jars/*:" in executor[executor.index("-cp") + 1]
    backend = executor.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    told = dict(zip(executor[backend + 1 :: 2], executor[backend + 2 :: 2], strict=True))
    assert told == {
        "--driver-url": given["DRIVER_URL"],
        "--executor-id": given["EXECUTOR_ID"],
        "--cores": given["EXECUTOR_CORES"],
        "--app-id": given["APPLICATION_ID"],
        "--hostname": given["EXECUTOR_POD_IP"],
        "--resourceProfileId": given["RESOURCE_PROFILE_ID"],
        "--podName": given["EXECUTOR_POD_NAME"],
    }
    assert started(["export", "--as-of", "latest"], tmp_path) == [
        "binlogd",
        "export",
        "--as-of",
        "latest",
    ]


def test_the_pipeline_of_the_spark_operator_is_one_that_the_image_runs() -> None:
    claim, application = documents("spark-pipeline.yaml")
    spec = application["spec"]
    arguments = arguments_of(*spec["arguments"])
    assert arguments.is_lake
    assert place_of(arguments.into).kind in KINDS
    assert arguments.interval_s is not None, "the operator keeps up what goes on"
    check_speculation(spec["sparkConf"])
    driver, executor = spec["driver"], spec["executor"]
    assert driver["annotations"]["prometheus.io/port"] == arguments.metrics_addr.split(":")[1]
    (mount,) = driver["volumeMounts"]
    (volume,) = spec["volumes"]
    assert Path(mount["mountPath"]) in Path(arguments.checkpoint).parents
    assert mount["name"] == volume["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert driver["podSecurityContext"]["fsGroup"] == UID
    assert driver["envFrom"] == executor["envFrom"], "both go to the store"
    program = Path(spec["mainApplicationFile"].removeprefix("local://"))
    assert f"binlogd pipeline --package {program.parent}" in DOCKERFILE
    assert program.name in {f"{each}.py" for each in PROGRAMS}
    locked = (ROOT / "locks" / "extras.txt").read_text()
    assert f"\npyspark=={spec['sparkVersion']} " in locked
    how = (DEPLOY / "spark-pipeline.yaml").read_text()
    secret = driver["envFrom"][0]["secretRef"]["name"]
    assert f"kubectl create secret generic {secret} " in how
    assert f"--tag {spec['image']} " in how


# --- Prometheus and Grafana -------------------------------------------------------------


def test_prometheus_scrapes_the_service_and_reads_the_rules() -> None:
    scrape = document("prometheus.yml")
    assert [(DEPLOY / each).exists() for each in scrape["rule_files"]] == [True]
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"binlogd:{PORT}"]}]
    assert 'add_get("/metrics"' in ROUTES, "the path that Prometheus asks when none is given"
    for group in document("alerts.yml")["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert set(rule["annotations"]) == {"summary", "description"}
            assert rule["labels"]["severity"] in {"warning", "critical"}


def test_each_page_that_an_alert_names_is_there() -> None:
    text = (DEPLOY / "alerts.yml").read_text()
    assert all((ROOT / page).exists() for page in re.findall(r"docs/[\w/]+\.md", text))
    commands = re.findall(r"`binlogd ([\w-]+)", text)
    names = {path.stem for path in (ROOT / "binlogd" / "commands").glob("*.py")}
    assert set(commands) <= names


def test_the_dashboard_is_whole() -> None:
    board = dashboard()
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "instance"}
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
    assert len(list(expressions())) > 40


def test_the_lock_is_for_the_python_of_debian_12() -> None:
    for package in distributions():
        for wanted in package.metadata.get_all("Requires-Python") or ():
            assert SpecifierSet(wanted).contains(DEBIAN_12), f"{package.name} wants {wanted}"
