"""Images that docker, or podman of an ordinary user, pulls and bubblewrap runs."""

import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim.images import rootfs_store
from batchyard.shim.stop import parse_stop_signal
from integration_shim.conftest import SharedNodes
from integration_shim.image_engines import EngineImage, ImageNode, ordinary_user
from integration_shim.machine import container, is_alive, is_supervised, shell, state, until, wait_for_phase
from integration_shim.registry import Registry


def request_image(image_node: ImageNode, number: int = 0, **fields: Any) -> Path:
    """Request an image; return the folder of the request."""
    names = dict.fromkeys(("image", "named", "reference"), fields.pop("name", image_node.image))
    spec = {"kind": "image", "for": "main", "policy": "IfNotPresent", "pod": {"uid": "u"}, "cacheBytes": 1 << 30}
    return image_node.node.request_run(
        f"pods/u/images/main/{number}", {**spec, "engine": image_node.engine, **names, **fields}
    )


def image_of(image_node: ImageNode) -> dict[str, Any]:
    """The image for the spec of a container."""
    reported = wait_for_phase(request_image(image_node), "Exited")
    assert reported["exitCode"] == 0, reported
    result = reported["image"]
    return {"name": image_node.image, "engine": image_node.engine, "id": result["id"], "unpacked": result["unpacked"]}


def output_of(image_node: ImageNode, script: str, **fields: Any) -> list[str]:
    """The output lines of a script in a container of the image."""
    image_node.node.sandbox(hostname="a-pod")
    image_node.node.ended(shell(script, image=image_of(image_node), **fields))
    return image_node.node.texts()


def test_container_sees_files_of_image_and_shared_files_of_pod(image_node: ImageNode) -> None:
    text = "ls /; hostname; cat /etc/hosts; echo $WHO $KEPT; test -e /usr || echo alone; echo err >&2"
    result = output_of(image_node, text, environment={"WHO": "pod"}, workingDir="/srv", user="1234")
    assert {"bin", "srv", "a-pod", "127.0.0.1 localhost", "pod yes", "alone"} <= set(result)
    assert ("stderr", "F", "err") in image_node.node.log()


def test_container_user_is_looked_up_in_image_and_has_no_privileges(image_node: ImageNode) -> None:
    result = output_of(
        image_node, "id -u; id -g; echo $HOME; grep -E 'CapEff|NoNewPrivs' /proc/self/status", user="worker"
    )
    assert result[:3] == ["1234", "50", "/srv"]
    assert [line.split()[1].strip("0") for line in result[3:]] == ["", "1"]


def test_user_unknown_to_image_is_reported_as_start_error(image_node: ImageNode) -> None:
    image_node.node.sandbox()
    reported = image_node.node.ended(shell("true", image=image_of(image_node), user="nobody-here"))
    assert reported["reason"] == "StartError"
    assert reported["message"].endswith("unable to find user nobody-here: no matching entries in passwd file")


def test_container_writes_are_private_and_removed_with_its_run(image_node: ImageNode) -> None:
    assert output_of(image_node, "echo x > /srv/x && echo y > /bin/y && cat /srv/x /bin/y", user="1234") == ["x", "y"]
    again = shell("ls /srv; test -e /bin/y || echo as it was", image=image_of(image_node), attempt=1)
    image_node.node.ended(again)
    assert [text for _, _, text in image_node.node.log(name="main/1.log")] == ["as it was"]
    run = image_node.node.root / "pods/u/runs/main/1"
    until(lambda: not is_supervised(run), "the end of the supervisor")
    assert not (run / "root").exists()


def test_mount_follows_symlinks_of_image(image_node: ImageNode) -> None:
    (image_node.node.make("pods/u/volumes/token", 0o755) / "ca.crt").write_text("trusted")
    mount = {"source": "volumes/token", "target": "/var/run/secrets/token", "readOnly": True}
    result = output_of(image_node, "cat /var/run/secrets/token/ca.crt; ls /run/secrets", mounts=[mount])
    assert result == ["trustedtoken"]
    assert not Path("/run/secrets/token").exists()


def test_container_reports_missing_command_and_ends_by_stop_signal(image_node: ImageNode) -> None:
    image = image_of(image_node)
    image_node.node.sandbox()
    reported = image_node.node.ended(container("nosuch", image=image))
    assert reported["message"].endswith('exec: "nosuch": executable file not found in $PATH')
    trap = "trap 'echo told; exit 4' USR1; echo up; while :; do sleep 0.01; done"
    run = image_node.node.start(shell(trap, image=image, stopSignal="SIGUSR1", attempt=1))
    until(lambda: wait_for_phase(run, "Running") and image_node.node.log(name="main/1.log"), "it is up")
    image_node.node.stop(run)
    assert wait_for_phase(run, "Exited")["exitCode"] == 4


def test_probes_run_with_user_and_variables_of_container(image_node: ImageNode) -> None:
    ready = {"exec": {"command": ["sh", "-c", "echo $WHO $HOME $(id -u) > /tmp/probed"]}}
    times = {"periodSeconds": 1, "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 3}
    script = "while ! test -e /tmp/probed; do sleep 0.01; done; sleep 0.1; cat /tmp/probed"
    result = output_of(image_node, script, user="1234", probes={"readiness": ready | times})
    assert result == ["image /srv 1234"]


def test_image_request_reports_configuration_of_image(image_node: ImageNode) -> None:
    reported = wait_for_phase(request_image(image_node), "Exited")
    assert [row["message"] for row in reported["warnings"]] == [
        f'Container image "{image_node.image}" already present on machine'
    ]
    result = reported["image"]
    assert (result["user"], result["workingDir"]) == ("1234", "/srv")
    assert parse_stop_signal(result["stopSignal"]) == signal.SIGUSR1
    assert (result["entrypoint"], result["environment"]["WHO"]) == (["/bin/sh", "-c"], "image")
    assert "sha256:" in result["digest"]


def test_missing_image_fails_according_to_pull_policy(image_node: ImageNode) -> None:
    missing = "localhost:1/no/such:1"
    reported = wait_for_phase(request_image(image_node, name=missing, policy="Never"), "Exited")
    assert reported["message"] == f'Container image "{missing}" is not present with pull policy of Never'
    reported = wait_for_phase(request_image(image_node, 1, name=missing, policy="Always"), "Exited")
    assert (reported["reason"], reported["warnings"][0]["message"]) == ("ErrImagePull", f'Pulling image "{missing}"')
    assert "connection refused" in reported["message"]


def test_private_image_is_pulled_only_with_credentials(
    image_node: ImageNode, images: Registry, request: pytest.FixtureRequest
) -> None:
    name = images.push(request.getfixturevalue("docker_image" if image_node.engine == "docker" else "users_image"))
    request.addfinalizer(partial(image_node.remove_image, name))
    refused = wait_for_phase(request_image(image_node, name=name), "Exited")
    assert refused["reason"] == "ErrImagePull"
    assert re.search("no basic auth credentials|authentication required|unauthorized", refused["message"])
    reported = wait_for_phase(request_image(image_node, 1, name=name, auth=images.auth), "Exited")
    assert re.match(f'Successfully pulled image "{name}" in [0-9.]+m?s', reported["warnings"][-1]["message"])
    image = {"name": name, "engine": image_node.engine, "unpacked": reported["image"]["unpacked"]}
    image_node.node.sandbox()
    image_node.node.ended(shell("echo $WHO", image=image))
    assert image_node.node.texts() == ["image"]


def test_concurrent_image_requests_unpack_image_once(image_node: ImageNode) -> None:
    runs = [request_image(image_node, number) for number in range(4)]
    names = {wait_for_phase(run, "Exited")["image"]["unpacked"] for run in runs}
    assert len(names) == 1
    assert names <= {path.name for path in (image_node.node.root / "roots").iterdir()}
    assert not list((image_node.node.root / "roots").glob("*.new"))


def test_trim_removes_unused_image_only(image_node: ImageNode) -> None:
    image = image_of(image_node)
    place = image_node.node.root / "roots" / image["unpacked"]
    image_node.node.sandbox()
    go = image_node.node.make("pods/u/volumes/data", 0o755) / "go"
    mount = {"source": "volumes/data", "target": "/data", "readOnly": True}
    script = "while ! test -e /data/go; do sleep 0.01; done; cat /etc/group"
    run = image_node.node.start(shell(script, image=image, mounts=[mount]))
    wait_for_phase(run, "Running")
    os.utime(place / "lock", (0, 0))
    rootfs_store.collect_garbage(image_node.node.folder, 0)
    assert place.exists()  # it is in use
    go.touch()
    assert wait_for_phase(run, "Exited")["exitCode"] == 0
    until(lambda: not is_supervised(run), "the end of the supervisor")
    os.utime(place / "lock", (0, 0))
    rootfs_store.collect_garbage(image_node.node.folder, 0)
    assert not place.exists()
    assert wait_for_phase(request_image(image_node, 3), "Exited")["image"]["unpacked"] == image["unpacked"]
    assert place.exists()


def test_canceled_pull_ends_its_supervisor(image_node: ImageNode) -> None:
    run = request_image(image_node, policy="Always", name="localhost:1/no/such:1")
    until(lambda: state(run).get("keeper"), "a supervisor")
    image_node.node.request_stop(run, 0)
    os.kill(state(run)["keeper"], signal.SIGTERM)
    assert wait_for_phase(run, "Exited")["reason"] == "ErrImagePull"
    until(lambda: not is_alive(state(run)["keeper"]), "the end of the supervisor")


def test_new_spawner_removes_incomplete_root(image_node: ImageNode) -> None:
    begun = image_node.node.make("roots/0123.new/root")
    image_node.node.spawner.kill()
    image_node.node.spawner.wait()
    image_node.node.spawner = image_node.node.start_spawner()
    until(lambda: not begun.exists(), "what was begun is gone")
    features = json.loads((image_node.node.root / "features.json").read_text())
    assert [engine["name"] for engine in features["engines"]] == [image_node.engine]


def test_ordinary_user_with_access_to_docker_runs_its_images(pool: SharedNodes, docker_image: EngineImage) -> None:
    with pool.lend("podman", ordinary_user(), docker_image.variables) as node:
        assert [engine["name"] for engine in node.features["engines"]] == ["docker"]
        assert output_of(ImageNode(node, docker_image, ordinary_user()), "id -u; echo $WHO", user="7") == ["7", "image"]
