"""Images that an engine brings and bubblewrap runs: docker's, and podman's of an ordinary user."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim.images import rootfs_store
from batchyard.shim.stop import stop_signal
from integration_shim.bringers import Bringer, Brings, ordinary_user
from integration_shim.conftest import Pool
from integration_shim.machine import container, is_alive, is_kept, reached, shell, state, until
from integration_shim.registry import Registry


def asked_for(brings: Brings, number: int = 0, **fields: Any) -> Path:
    """The run of the wish that an image be there."""
    names = dict.fromkeys(("image", "named", "reference"), fields.pop("name", brings.image))
    wish = {"kind": "image", "for": "main", "policy": "IfNotPresent", "pod": {"uid": "u"}, "cacheBytes": 1 << 30}
    return brings.node.wish(f"pods/u/images/main/{number}", {**wish, "engine": brings.engine, **names, **fields})


def brought(brings: Brings) -> dict[str, Any]:
    """The image as a container's wish has it."""
    reported = reached(asked_for(brings), "Exited")
    assert reported["exitCode"] == 0, reported
    found = reported["image"]
    return {"name": brings.image, "engine": brings.engine, "id": found["id"], "unpacked": found["unpacked"]}


def stated(brings: Brings, script: str, **fields: Any) -> list[str]:
    """What a script writes in a container of the image."""
    brings.node.sandbox(hostname="a-pod")
    brings.node.ended(shell(script, image=brought(brings), **fields))
    return brings.node.texts()


def test_a_container_sees_its_images_files_and_what_the_pod_shares(brings: Brings) -> None:
    text = "ls /; hostname; cat /etc/hosts; echo $WHO $KEPT; test -e /usr || echo alone; echo err >&2"
    found = stated(brings, text, environment={"WHO": "pod"}, workingDir="/srv", user="1234")
    assert {"bin", "srv", "a-pod", "127.0.0.1 localhost", "pod yes", "alone"} <= set(found)
    assert ("stderr", "F", "err") in brings.node.log()


def test_who_runs_is_looked_up_in_the_image_and_has_no_privileges(brings: Brings) -> None:
    found = stated(brings, "id -u; id -g; echo $HOME; grep -E 'CapEff|NoNewPrivs' /proc/self/status", user="worker")
    assert found[:3] == ["1234", "50", "/srv"]
    assert [line.split()[1].strip("0") for line in found[3:]] == ["", "1"]


def test_a_user_that_the_image_does_not_know_is_told(brings: Brings) -> None:
    brings.node.sandbox()
    reported = brings.node.ended(shell("true", image=brought(brings), user="nobody-here"))
    assert reported["reason"] == "StartError"
    assert reported["message"].endswith("unable to find user nobody-here: no matching entries in passwd file")


def test_what_a_container_writes_is_its_own_and_goes_with_it(brings: Brings) -> None:
    assert stated(brings, "echo x > /srv/x && echo y > /bin/y && cat /srv/x /bin/y", user="1234") == ["x", "y"]
    again = shell("ls /srv; test -e /bin/y || echo as it was", image=brought(brings), attempt=1)
    brings.node.ended(again)
    assert [text for _, _, text in brings.node.log(name="main/1.log")] == ["as it was"]
    run = brings.node.root / "pods/u/runs/main/1"
    until(lambda: not is_kept(run), "the end of the keeper")
    assert not (run / "root").exists()


def test_a_mount_goes_where_the_links_of_the_image_lead(brings: Brings) -> None:
    (brings.node.make("pods/u/volumes/token", 0o755) / "ca.crt").write_text("trusted")
    mount = {"source": "volumes/token", "target": "/var/run/secrets/token", "readOnly": True}
    found = stated(brings, "cat /var/run/secrets/token/ca.crt; ls /run/secrets", mounts=[mount])
    assert found == ["trustedtoken"]
    assert not Path("/run/secrets/token").exists()


def test_its_command_and_its_end_are_told_as_those_of_others(brings: Brings) -> None:
    image = brought(brings)
    brings.node.sandbox()
    reported = brings.node.ended(container("nosuch", image=image))
    assert reported["message"].endswith('exec: "nosuch": executable file not found in $PATH')
    trap = "trap 'echo told; exit 4' USR1; echo up; while :; do sleep 0.01; done"
    run = brings.node.start(shell(trap, image=image, stopSignal="SIGUSR1", attempt=1))
    until(lambda: reached(run, "Running") and brings.node.log(name="main/1.log"), "it is up")
    brings.node.stop(run)
    assert reached(run, "Exited")["exitCode"] == 4


def test_probes_run_in_it_as_its_user_with_its_variables(brings: Brings) -> None:
    ready = {"exec": {"command": ["sh", "-c", "echo $WHO $HOME $(id -u) > /tmp/probed"]}}
    times = {"periodSeconds": 1, "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 3}
    script = "while ! test -e /tmp/probed; do sleep 0.01; done; sleep 0.1; cat /tmp/probed"
    found = stated(brings, script, user="1234", probes={"readiness": ready | times})
    assert found == ["image /srv 1234"]


def test_an_image_is_told_with_what_it_says(brings: Brings) -> None:
    reported = reached(asked_for(brings), "Exited")
    assert [row["message"] for row in reported["warnings"]] == [
        f'Container image "{brings.image}" already present on machine'
    ]
    found = reported["image"]
    assert (found["user"], found["workingDir"]) == ("1234", "/srv")
    assert stop_signal(found["stopSignal"]) == signal.SIGUSR1
    assert (found["entrypoint"], found["environment"]["WHO"]) == (["/bin/sh", "-c"], "image")
    assert "sha256:" in found["digest"]


def test_one_that_is_not_there_fails_as_its_policy_says(brings: Brings) -> None:
    missing = "localhost:1/no/such:1"
    reported = reached(asked_for(brings, name=missing, policy="Never"), "Exited")
    assert reported["message"] == f'Container image "{missing}" is not present with pull policy of Never'
    reported = reached(asked_for(brings, 1, name=missing, policy="Always"), "Exited")
    assert (reported["reason"], reported["warnings"][0]["message"]) == ("ErrImagePull", f'Pulling image "{missing}"')
    assert "connection refused" in reported["message"]


def test_an_image_is_pulled_by_who_may_have_it(
    brings: Brings, images: Registry, request: pytest.FixtureRequest
) -> None:
    name = images.push(request.getfixturevalue("docker_image" if brings.engine == "docker" else "users_image"))
    refused = reached(asked_for(brings, name=name), "Exited")
    assert refused["reason"] == "ErrImagePull"
    assert re.search("no basic auth credentials|authentication required|unauthorized", refused["message"])
    reported = reached(asked_for(brings, 1, name=name, auth=images.auth), "Exited")
    assert re.match(f'Successfully pulled image "{name}" in [0-9.]+m?s', reported["warnings"][-1]["message"])
    image = {"name": name, "engine": brings.engine, "unpacked": reported["image"]["unpacked"]}
    brings.node.sandbox()
    brings.node.ended(shell("echo $WHO", image=image))
    assert brings.node.texts() == ["image"]


def test_who_asks_at_once_has_it_unpacked_once(brings: Brings) -> None:
    runs = [asked_for(brings, number) for number in range(4)]
    names = {reached(run, "Exited")["image"]["unpacked"] for run in runs}
    assert len(names) == 1
    assert names <= {path.name for path in (brings.node.root / "roots").iterdir()}
    assert not list((brings.node.root / "roots").glob("*.new"))


def test_what_nobody_uses_goes_first_where_there_is_too_much(brings: Brings) -> None:
    image = brought(brings)
    place = brings.node.root / "roots" / image["unpacked"]
    brings.node.sandbox()
    go = brings.node.make("pods/u/volumes/data", 0o755) / "go"
    mount = {"source": "volumes/data", "target": "/data", "readOnly": True}
    script = "while ! test -e /data/go; do sleep 0.01; done; cat /etc/group"
    run = brings.node.start(shell(script, image=image, mounts=[mount]))
    reached(run, "Running")
    os.utime(place / "lock", (0, 0))
    rootfs_store.trim(brings.node.folder, 0)
    assert place.exists()  # it is in use
    go.touch()
    assert reached(run, "Exited")["exitCode"] == 0
    until(lambda: not is_kept(run), "the end of the keeper")
    os.utime(place / "lock", (0, 0))
    rootfs_store.trim(brings.node.folder, 0)
    assert not place.exists()
    assert reached(asked_for(brings, 3), "Exited")["image"]["unpacked"] == image["unpacked"]
    assert place.exists()


def test_a_pull_that_nobody_wants_any_more_leaves_nothing(brings: Brings) -> None:
    run = asked_for(brings, policy="Always", name="localhost:1/no/such:1")
    until(lambda: state(run).get("keeper"), "a keeper")
    brings.node.wish_for_end(run, 0)
    os.kill(state(run)["keeper"], signal.SIGTERM)
    assert reached(run, "Exited")["reason"] == "ErrImagePull"
    until(lambda: not is_alive(state(run)["keeper"]), "the end of the keeper")


def test_a_spawner_that_begins_forgets_what_was_begun(brings: Brings) -> None:
    begun = brings.node.make("roots/0123.new/root")
    brings.node.spawner.kill()
    brings.node.spawner.wait()
    brings.node.spawner = brings.node.start_spawner()
    until(lambda: not begun.exists(), "what was begun is gone")
    features = json.loads((brings.node.root / "features.json").read_text())
    assert [engine["name"] for engine in features["engines"]] == [brings.engine]


def test_an_ordinary_user_who_may_ask_docker_has_its_images(pool: Pool, docker_image: Bringer) -> None:
    with pool.lend("podman", ordinary_user(), docker_image.variables) as node:
        assert [engine["name"] for engine in node.features["engines"]] == ["docker"]
        assert stated(Brings(node, "docker", docker_image.image), "id -u; echo $WHO", user="7") == ["7", "image"]
