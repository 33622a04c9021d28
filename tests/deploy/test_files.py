"""What the files in deploy/ say is what the program knows: variables, flags, routes, ports, times, sizes."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import pytest
import uvicorn
import yaml  # type: ignore[import-untyped]  # it comes with apcore, without types

from apcore_a2a.app.serve import LAST_ANSWERS
from apcore_a2a.cli.serve.command import command
from apcore_a2a.http.health import LIVE, READY, STORE_TIMEOUT
from apcore_a2a.http.server.server import LAST_GRACE
from apcore_a2a.http.traffic import TrustedProxies
from apcore_a2a.settings import Settings
from tests.sources import ROOT

DEFAULTS: Final = Settings()
OF_THE_DATABASE: Final = {"PGPASSWORD"}  # what asyncpg reads itself
VARIABLES: Final = {
    variable: option
    for option in command.params
    if isinstance(option, click.Option)
    for variable in option.envvar or ()
}
REPLICAS: Final = ["agent1:8000", "agent2:8000", "agent3:8000"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:  # Any: YAML
    return yaml.safe_load(read(name))


def kubernetes(kind: str) -> Any:
    found = [each for each in yaml.safe_load_all(read("deploy/kubernetes.yaml")) if each["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


def pod() -> Any:
    return kubernetes("Deployment")["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def docker_lines(word: str) -> list[str]:
    """What follows a word of the Dockerfile, each time, with continued lines put together."""
    text = read("Dockerfile").replace("\\\n", " ")
    return re.findall(rf"^{word} (.*)$", text, re.MULTILINE)


def unit() -> dict[str, str]:
    """The settings of the systemd unit; of those that stand there twice, the last."""
    lines = [line for line in read("deploy/agent.service").splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def kubernetes_environment() -> dict[str, str]:
    found = {}
    for each in container()["env"]:
        found[each["name"]] = each.get("value") or "postgresql://from.a.secret/agents"
    return found


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    """The environment of the program, by the file that sets it."""
    yield "compose.yaml", read_yaml("compose.yaml")["services"]["agent"]["environment"]
    for name in ("agent1", "agent2", "agent3"):
        yield f"deploy/compose.yaml {name}", read_yaml("deploy/compose.yaml")["services"][name]["environment"]
    yield "deploy/kubernetes.yaml", kubernetes_environment()
    (line,) = docker_lines("ENV")
    variables = dict(word.split("=", 1) for word in shlex.split(line))
    del variables["PATH"]
    yield "Dockerfile", variables
    yield "deploy/agent.service", dict(word.split("=", 1) for word in shlex.split(unit().get("Environment", "")))


ENVIRONMENTS: Final = dict(environments())


def parse(arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command makes of its arguments and its environment.

    Raises:
        click.UsageError: it cannot be read.
    """
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return command.make_context("serve", arguments).params


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def mebibytes(text: str) -> float:
    return float(re.sub("[mM]B?$", "", text))


# ---- variables, flags, programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_every_variable_is_one_that_the_program_reads(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = ENVIRONMENTS[where]
    assert environment.keys() - VARIABLES.keys() - OF_THE_DATABASE == set()
    given = parse([], environment, monkeypatch)
    for name in environment.keys() - OF_THE_DATABASE:
        assert str(given[VARIABLES[name].name]).lower().removesuffix(".0") == environment[name].lower()


@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_a_proxy_is_trusted_by_address_and_no_password_stands_in_a_file(where: str) -> None:
    environment = ENVIRONMENTS[where]
    TrustedProxies(tuple(environment.get("APCORE_A2A_TRUSTED_PROXIES", "127.0.0.1").split(",")))
    assert urlsplit(environment.get("APCORE_A2A_STORE", "")).password is None
    for name, value in environment.items():
        assert "PASSWORD" not in name or value.startswith("${POSTGRES_PASSWORD:?")


def test_a_variable_that_is_misspelt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "APCORE_A2A_DRAINDELAY" not in VARIABLES
    with pytest.raises(click.UsageError, match="'soon' is not a valid float"):
        parse([], {"APCORE_A2A_DRAIN_DELAY": "soon"}, monkeypatch)


def test_the_commands_of_unit_and_image_are_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    program, word, *arguments = shlex.split(unit()["ExecStart"])
    assert (Path(program).name, word) == ("apcore-a2a", "serve")
    given = parse(arguments, {}, monkeypatch)
    assert given["workers"] == 4
    assert [json.loads(line) for line in docker_lines("CMD")] == [["apcore-a2a", "serve"]]


# ---- routes and ports ---------------------------------------------------------------------------------------------


def test_probes_ask_what_they_should() -> None:
    probes = {
        name: container()[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert probes == {"startupProbe": LIVE, "livenessProbe": LIVE, "readinessProbe": READY}
    assert container()["readinessProbe"]["timeoutSeconds"] > STORE_TIMEOUT  # a slow store is told as that
    (image_check,) = docker_lines("HEALTHCHECK")
    assert f"'{LIVE}'" in image_check  # who restarts what is unhealthy must not look at the database
    for name in ("agent1", "agent2", "agent3"):
        check = read_yaml("deploy/compose.yaml")["services"][name]["healthcheck"]["test"]
        assert f"{DEFAULTS.port}{READY}'" in check[-1]
    assert f"health_uri {READY}\n" in read("deploy/Caddyfile")


def test_ports_lead_to_the_program() -> None:
    assert docker_lines("EXPOSE") == [str(DEFAULTS.port)]
    assert container()["ports"] == [{"name": "http", "containerPort": DEFAULTS.port}]
    (port,) = kubernetes("Service")["spec"]["ports"]
    assert port["targetPort"] == "http"
    (rule,) = kubernetes("Ingress")["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "agent", "port": {"name": port["name"]}}
    assert read_yaml("compose.yaml")["services"]["agent"]["ports"] == [f"127.0.0.1:8000:{DEFAULTS.port}"]


def test_balancers_know_every_replica_of_compose() -> None:
    services = read_yaml("deploy/compose.yaml")["services"]
    assert [f"{name}:{DEFAULTS.port}" for name in services if name.startswith("agent")] == REPLICAS
    assert (
        re.findall(r"server (\S+) ", read("deploy/nginx.conf")) == REPLICAS * 2
    )  # and again, for when all have failed
    assert f"reverse_proxy {' '.join(REPLICAS)} {{" in read("deploy/Caddyfile")
    balancer = services["balancer"]
    assert (
        services["agent1"]["environment"]["APCORE_A2A_TRUSTED_PROXIES"]
        == balancer["networks"]["default"]["ipv4_address"]
    )
    assert balancer["ports"] == ["127.0.0.1:8000:80"]
    assert "listen 80;" in read("deploy/nginx.conf")


def test_labels_select_the_pods() -> None:
    deployment = kubernetes("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert kubernetes("Service")["spec"]["selector"] == labels
    assert kubernetes("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert [each["labelSelector"]["matchLabels"] for each in pod()["topologySpreadConstraints"]] == [labels, labels]
    assert kubernetes("PodDisruptionBudget")["spec"]["minAvailable"] < deployment["replicas"]


# ---- times and sizes ----------------------------------------------------------------------------------------------


def time_to_end(environment: dict[str, str]) -> float:
    """Seconds that a replica may take after a signal, at worst."""
    delay = float(environment.get("APCORE_A2A_DRAIN_DELAY", DEFAULTS.drain_delay))
    return delay + float(environment.get("SHUTDOWN_TIMEOUT", DEFAULTS.shutdown_timeout)) + LAST_ANSWERS + LAST_GRACE


def test_no_process_is_killed_before_its_shutdown_is_complete() -> None:
    assert pod()["terminationGracePeriodSeconds"] > time_to_end(ENVIRONMENTS["deploy/kubernetes.yaml"])
    assert float(unit()["TimeoutStopSec"]) > time_to_end({})
    single = read_yaml("compose.yaml")["services"]["agent"]
    assert seconds(single["stop_grace_period"]) > time_to_end(single["environment"])
    for name in ("agent1", "agent2", "agent3"):
        replica = read_yaml("deploy/compose.yaml")["services"][name]
        assert seconds(replica["stop_grace_period"]) > time_to_end(replica["environment"])


def test_the_balancer_leaves_before_the_port_is_closed() -> None:
    ready = container()["readinessProbe"]
    noticed = ready["periodSeconds"] * ready["failureThreshold"]
    assert float(kubernetes_environment()["APCORE_A2A_DRAIN_DELAY"]) > noticed
    found = re.search(r"health_interval (\S+)", read("deploy/Caddyfile"))
    assert found is not None
    assert float(ENVIRONMENTS["deploy/compose.yaml agent1"]["APCORE_A2A_DRAIN_DELAY"]) > seconds(found[1])


def test_balancers_wait_longer_and_take_more_than_the_program() -> None:
    nginx = dict(re.findall(r"^\s*(\w+) ([^;]+);", read("deploy/nginx.conf"), re.MULTILINE))
    ingress = kubernetes("Ingress")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    caddy = re.search(r"max_size (\S+)", read("deploy/Caddyfile"))
    assert caddy is not None
    assert DEFAULTS.execution_timeout is not None
    for wait in (nginx["proxy_read_timeout"], ingress[f"{prefix}proxy-read-timeout"]):
        assert seconds(wait) > max(DEFAULTS.execution_timeout, DEFAULTS.keep_alive_interval)
    for size in (nginx["client_max_body_size"], ingress[f"{prefix}proxy-body-size"], caddy[1]):
        assert mebibytes(size) * 1_000_000 > DEFAULTS.limits.max_request_bytes
    kept = re.search(r"keepalive (\S+)", read("deploy/Caddyfile"))
    assert kept is not None
    for idle in (nginx["keepalive_timeout"], kept[1]):
        assert seconds(idle) < uvicorn.Config("").timeout_keep_alive


# ---- who may do what ----------------------------------------------------------------------------------------------


def test_the_container_has_an_unprivileged_user_and_writes_only_its_data() -> None:
    (user,) = docker_lines("USER")
    uid, gid = user.split(":")
    assert f"useradd --uid {uid} " in docker_lines("RUN")[-1]
    assert int(uid) > 0
    whole = pod()["securityContext"]
    assert (whole["runAsNonRoot"], whole["runAsUser"], whole["runAsGroup"]) == (True, int(uid), int(gid))
    own = container()["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    composed = [read_yaml("compose.yaml")["services"]["agent"], read_yaml("deploy/compose.yaml")["services"]["agent1"]]
    for service in composed:
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    sandbox = unit()
    assert (sandbox["User"], sandbox["ProtectSystem"], sandbox["CapabilityBoundingSet"]) == ("agent", "strict", "")


def test_the_image_has_what_its_lines_copy() -> None:
    kept = [line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")]
    for line in docker_lines("COPY"):
        *sources, _ = line.split()
        for source in sources:
            if not line.startswith("--from="):
                assert (ROOT / source).exists()
                assert any(source == each or source.startswith(f"{each}/") for each in kept), source


def test_the_image_builds_for_both_architectures(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "buildx", "inspect"], capture_output=True, check=False).returncode:
        pytest.skip("no docker with buildx and a daemon")
    command = [
        docker,
        "buildx",
        "build",
        "--platform",
        "linux/amd64,linux/arm64",
        "--output",
        f"type=oci,dest={tmp_path}/x",
    ]
    built = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False, timeout=1_800)
    assert built.returncode == 0, built.stderr[-2_000:]
