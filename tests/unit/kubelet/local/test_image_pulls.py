"""Images of a container engine: when they are looked for, what is said meanwhile, and what containers take of them."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import ImageRow, credentials, effective_policy, find_row, reference
from batchyard.kubelet.local.run_requests import ContainerInputs, NodeSettings, ResolvedImage, container_run
from unit.kubelet.local.local_make import Shelf, container
from unit.kubelet.local.pretended import LocalStage, Script, pod

FOUND: Mapping[str, Any] = {
    "id": "abc",
    "name": "docker.io/library/busybox:1",
    "digest": "docker.io/library/busybox@sha256:1",
    "entrypoint": ["/entry"],
    "command": ["of", "image"],
    "workingDir": "/srv",
    "user": "app",
    "stopSignal": "SIGINT",
    "lacksFolder": False,
}
THERE: dict[str, Any] = {"image": FOUND}
MISSING: dict[str, Any] = {"code": 1, "reason": "ErrImagePull", "message": "no such image"}


class EngineStage(LocalStage):
    """A node with podman."""

    engine = "podman"


def of_engine(**fields: Any) -> Mapping[str, Any]:
    """A container of an image that nothing of this machine stands for."""
    return container(image="busybox:1", **fields)


def stage(*images: dict[str, Any], policy: str = "Never", **scripts: Script) -> LocalStage:
    """A node on which that becomes of images, with a pod that needs one."""
    made = EngineStage(**scripts)
    made.machine.images = [*images]
    made.put(pod(of_engine(), restartPolicy=policy))
    return made


def waiting(stage: LocalStage) -> tuple[str, str]:
    """Reason and message of what the container waits for."""
    state = stage.container()["state"]["waiting"]
    return state["reason"], state.get("message", "")


def test_a_container_starts_when_its_image_is_there() -> None:
    made = stage(THERE)
    made.run(0.5)
    assert (waiting(made), made.machine.started) == (("ContainerCreating", ""), ["sandbox", "images/main/0"])
    made.run(2)
    assert made.machine.started[2:] == ["main/0"]
    status = made.container()
    assert (status["image"], status["imageID"]) == (FOUND["name"], FOUND["digest"])


def test_what_fails_is_tried_later_and_later() -> None:
    made = stage(MISSING, MISSING, MISSING, THERE)
    made.run(1.5)
    assert waiting(made) == ("ErrImagePull", "no such image")
    made.run(3)
    reported = 'Back-off pulling image "busybox:1": ErrImagePull: no such image'
    assert waiting(made) == ("ImagePullBackOff", reported)
    made.run(100)
    looked = [at for name, at in zip(made.machine.started, made.machine.times, strict=True) if "images" in name]
    assert [round(at) for at in looked] == [0, 11, 32, 73]
    assert made.machine.started[-1] == "main/0"
    assert made.reported("BackOff") == ['Back-off pulling image "busybox:1"'] * 3
    assert made.reported("Failed")[:2] == ['Failed to pull image "busybox:1": no such image', "Error: ErrImagePull"]


def test_while_it_is_tried_again_it_is_said_what_was_said_before() -> None:
    made = stage(MISSING, THERE)
    made.run(11.5)
    assert waiting(made)[0] == "ImagePullBackOff"


def test_an_image_is_looked_for_before_each_start() -> None:
    made = stage(THERE, THERE, policy="OnFailure", main=Script(seconds=1, code=1))
    made.run(15)
    assert made.machine.started[:5] == ["sandbox", "images/main/0", "main/0", "images/main/1", "main/1"]


def test_a_pod_that_is_deleted_leaves_nothing() -> None:
    made = stage(MISSING)
    made.run(0.5)
    made.delete_pod(grace=1)
    made.run(60)
    assert made.is_gone()


def test_nothing_is_tried_twice_at_a_time_when_the_platform_restarts() -> None:
    made = stage(THERE)
    made.run(0.5)
    made.restart()
    made.run(3)
    assert made.machine.started == ["sandbox", "images/main/0", "main/0"]


@pytest.mark.parametrize(
    ("stated", "argv"),
    [
        ({}, ["/entry", "of", "image"]),
        ({"args": ["own"]}, ["/entry", "own"]),
        ({"command": ["cmd"]}, ["cmd"]),
        ({"command": ["cmd"], "args": ["own"]}, ["cmd", "own"]),
    ],
)
def test_commands_of_pod_and_image_are_put_together(stated: Mapping[str, Any], argv: list[str]) -> None:
    assert run_of(stated)["argv"] == argv


def test_users_of_pod_and_image_are_put_together() -> None:
    def user(**context: Any) -> str | None:
        found: str | None = run_of({"command": ["x"], "securityContext": context})["user"]
        return found

    assert (user(), user(runAsUser=7), user(runAsUser=7, runAsGroup=8), user(runAsGroup=8)) == (
        None,
        "7",
        "7:8",
        "app:8",
    )
    with pytest.raises(ContainerError, match=r"image has non-numeric user \(app\), cannot verify user is non-root"):
        user(runAsNonRoot=True)


def run_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The run of a container of the image."""
    own = container(image="busybox:1", **{"command": None, **stated})
    given = ContainerInputs(standing=ResolvedImage(ImageRow("*", engine="podman"), FOUND))
    return container_run(pod(own), own, 0, given, NodeSettings(), Shelf()).spec


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("team/app:2", "docker.io/team/app:2"),
        ("localhost/app", "localhost/app:latest"),
        ("host:5000/app:1", "host:5000/app:1"),
        ("quay.io/a/b@sha256:" + "0" * 64, "quay.io/a/b@sha256:" + "0" * 64),
    ],
)
def test_the_whole_name_of_an_image(image: str, whole: str) -> None:
    assert reference(image) == whole


def test_what_the_user_says_stands_before_the_engine() -> None:
    rows = [ImageRow("own/*", engine="podman", image="other:1"), ImageRow("*", machine=True)]
    assert find_row("own/a", rows, ["podman"]).image == "other:1"
    assert find_row("busybox", rows, ["podman"]).machine
    with pytest.raises(ContainerError, match="comes from podman, which is not usable on this node"):
        find_row("own/a", rows)


def test_the_policy_of_a_pod_is_about_the_image_that_it_names() -> None:
    own = ImageRow("app", engine="podman", image="localhost/app:1")
    asked = [effective_policy(policy, own) for policy in ("Always", "IfNotPresent", "Never")]
    assert asked == ["IfNotPresent", "IfNotPresent", "Never"]
    assert effective_policy("Always", own._replace(image="localhost/app")) == "Always"
    assert effective_policy("Always", ImageRow("app", engine="podman")) == "Always"


def test_secrets_for_registries_are_passed_on() -> None:
    plain = {"auths": {"one.example": {"username": "u", "password": "p"}, "two.example": {"auth": "eDp5"}}}
    data = {".dockerconfigjson": base64.b64encode(json.dumps(plain).encode()).decode()}
    secret: Obj = {"apiVersion": "v1", "kind": "Secret", "metadata": make.metadata("reg", "team"), "data": data}
    asks = pod(of_engine(), imagePullSecrets=[{"name": "gone"}, {"name": "reg"}])
    found = credentials(asks, Shelf(secret))
    assert found == {"auths": {"one.example": {"auth": "dTpw"}, "two.example": {"auth": "eDp5"}}}
