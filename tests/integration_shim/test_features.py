"""The features of a machine that the spawner reports."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim.isolation.capabilities import NodeIsolation, missing_capabilities
from integration_shim.conftest import SharedNodes
from integration_shim.image_engines import EngineImage, ordinary_user
from integration_shim.machine import ShimMachine, machine, shell

NOTHING = "bubblewrap,network,cgroups,userns,podman,docker"


def test_features_explain_effect_of_all_missing_tools(plain: ShimMachine) -> None:
    reported = plain.features
    assert reported["spawner"] == plain.spawner.pid
    assert (reported["bubblewrap"], reported["podNetwork"], reported["cgroups"]) == (None, False, None)
    assert {row["what"] for row in reported["missing"]} >= {"bubblewrap", "pod network", "cgroups"}
    assert all(row["means"] and row["remedy"] for row in reported["missing"])


def test_features_of_fully_equipped_machine_are_complete(grouped: ShimMachine) -> None:
    reported = grouped.features
    assert (reported["isRoot"], reported["userNamespaces"], reported["podNetwork"]) == (True, False, True)
    missing_here = {row["what"] for row in reported["missing"]}
    assert not missing_here & {"user namespaces", "bubblewrap", "pod network", "cgroups"}
    assert "memory" in reported["cgroups"]["controllers"]


def test_ordinary_user_has_user_namespace(node: ShimMachine) -> None:
    reported = node.features
    assert reported["userNamespaces"] == (not reported["isRoot"])
    assert reported["podNetwork"]


def test_missing_pod_network_is_reported_with_reason() -> None:
    nothing: dict[str, Any] = dict.fromkeys(NodeIsolation._fields)
    result = missing_capabilities(NodeIsolation(**nothing | {"network_failure": "Operation not supported"}))
    assert "(Operation not supported)" in next(row["means"] for row in result if row["what"] == "pod network")


def test_mounts_are_rejected_without_bubblewrap(plain: ShimMachine) -> None:
    mount = {"source": "volumes/x", "target": "/x", "readOnly": False}
    reported = plain.ended(shell("true", mounts=[mount]))
    assert (reported["reason"], "the mount /x requires bubblewrap" in reported["message"]) == ("StartError", True)


def test_plain_processes_run_as_ordinary_user() -> None:
    user = ordinary_user()
    with machine(without=NOTHING, user=user) as node:
        node.ended(shell("id -u"))
        assert node.texts() == [str(os.geteuid() if user is None else user)]


def test_unreachable_engine_is_reported_and_not_used(pool: SharedNodes) -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is missing: apt-get install docker.io")
    with pool.lend("podman", variables={"DOCKER_HOST": "unix:///nowhere"}) as node:
        reported = node.features
        assert reported["engines"] == []
        (row,) = [row for row in reported["missing"] if row["what"] == "container engine"]
        assert "docker: Cannot connect to the Docker daemon at unix:///nowhere" in row["means"]


def test_pull_only_engine_is_not_used_without_bubblewrap(pool: SharedNodes, docker_image: EngineImage) -> None:
    with pool.lend("podman,bubblewrap", variables=docker_image.variables) as node:
        assert node.features["engines"] == []
        (row,) = [row for row in node.features["missing"] if row["what"] == "container engine"]
        assert "bubblewrap is required to run its images" in row["means"]


@pytest.mark.parametrize("command", ["sleep 600", "yes"])
def test_engine_that_hangs_or_writes_without_end_times_out(pool: SharedNodes, tmp_path: Path, command: str) -> None:
    place = tmp_path / "docker"
    place.write_text(f"#!/bin/sh\nexec {command}\n")
    place.chmod(0o755)
    with pool.lend("podman", variables={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as node:
        (row,) = [row for row in node.features["missing"] if row["what"] == "container engine"]
        assert "docker: docker did not answer within 4 seconds" in row["means"]
