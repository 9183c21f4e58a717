"""Images of a container engine: lookups, container states meanwhile, and image defaults of containers."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import (
    ImageMapping,
    effective_pull_policy,
    find_image_mapping,
    full_image_reference,
    registry_credentials,
)
from batchyard.kubelet.local.run_requests import ContainerInputs, NodeSettings, ResolvedImage, build_container_run
from unit.kubelet.local.fake_machine import ContainerScript, LocalStage, pod
from unit.kubelet.local.local_make import FixedObjects, container

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


def engine_container(**fields: Any) -> Mapping[str, Any]:
    """A container of an image without an image row."""
    return container(image="busybox:1", **fields)


def stage(*images: dict[str, Any], policy: str = "Never", **scripts: ContainerScript) -> LocalStage:
    """A node with these image lookup results, and a pod that needs an image."""
    created = EngineStage(**scripts)
    created.machine.images = [*images]
    created.put(pod(engine_container(), restartPolicy=policy))
    return created


def waiting(stage: LocalStage) -> tuple[str, str]:
    """Reason and message of the waiting state of the container."""
    state = stage.container()["state"]["waiting"]
    return state["reason"], state.get("message", "")


def test_container_starts_after_image_is_found() -> None:
    created = stage(THERE)
    created.run(0.5)
    assert (waiting(created), created.machine.started) == (("ContainerCreating", ""), ["sandbox", "images/main/0"])
    created.run(2)
    assert created.machine.started[2:] == ["main/0"]
    status = created.container()
    assert (status["image"], status["imageID"]) == (FOUND["name"], FOUND["digest"])


def test_failed_image_pull_is_retried_with_backoff() -> None:
    created = stage(MISSING, MISSING, MISSING, THERE)
    created.run(1.5)
    assert waiting(created) == ("ErrImagePull", "no such image")
    created.run(3)
    reported = 'Back-off pulling image "busybox:1": ErrImagePull: no such image'
    assert waiting(created) == ("ImagePullBackOff", reported)
    created.run(100)
    looked = [at for name, at in zip(created.machine.started, created.machine.times, strict=True) if "images" in name]
    assert [round(at) for at in looked] == [0, 11, 32, 73]
    assert created.machine.started[-1] == "main/0"
    assert created.reported("BackOff") == ['Back-off pulling image "busybox:1"'] * 3
    assert created.reported("Failed")[:2] == ['Failed to pull image "busybox:1": no such image', "Error: ErrImagePull"]


def test_container_stays_in_backoff_while_pull_is_retried() -> None:
    created = stage(MISSING, THERE)
    created.run(11.5)
    assert waiting(created)[0] == "ImagePullBackOff"


def test_image_is_looked_up_before_each_start() -> None:
    created = stage(THERE, THERE, policy="OnFailure", main=ContainerScript(seconds=1, code=1))
    created.run(15)
    assert created.machine.started[:5] == ["sandbox", "images/main/0", "main/0", "images/main/1", "main/1"]


def test_deleted_pod_with_failed_pull_leaves_nothing() -> None:
    created = stage(MISSING)
    created.run(0.5)
    created.delete_pod(grace=1)
    created.run(60)
    assert created.is_gone()


def test_restart_of_platform_does_not_repeat_image_pull() -> None:
    created = stage(THERE)
    created.run(0.5)
    created.restart()
    created.run(3)
    assert created.machine.started == ["sandbox", "images/main/0", "main/0"]


@pytest.mark.parametrize(
    ("stated", "argv"),
    [
        ({}, ["/entry", "of", "image"]),
        ({"args": ["own"]}, ["/entry", "own"]),
        ({"command": ["cmd"]}, ["cmd"]),
        ({"command": ["cmd"], "args": ["own"]}, ["cmd", "own"]),
    ],
)
def test_command_and_args_of_pod_override_image(stated: Mapping[str, Any], argv: list[str]) -> None:
    assert run_of(stated)["argv"] == argv


def test_user_of_pod_overrides_image_user() -> None:
    def user(**context: Any) -> str | None:
        result: str | None = run_of({"command": ["x"], "securityContext": context})["user"]
        return result

    assert (user(), user(runAsUser=7), user(runAsUser=7, runAsGroup=8), user(runAsGroup=8)) == (
        None,
        "7",
        "7:8",
        "app:8",
    )
    with pytest.raises(ContainerError, match=r"image has non-numeric user \(app\), cannot verify user is non-root"):
        user(runAsNonRoot=True)


def test_run_as_non_root_accepts_named_image_user_if_uid_is_set() -> None:
    context = {"runAsUser": 1000, "runAsNonRoot": True}
    assert run_of({"command": ["x"], "securityContext": context})["user"] == "1000"


def run_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The run of a container of the image."""
    own = container(image="busybox:1", **{"command": None, **stated})
    given = ContainerInputs(resolved_image=ResolvedImage(ImageMapping("*", engine="podman"), FOUND))
    return build_container_run(pod(own), own, 0, given, NodeSettings(), FixedObjects()).spec


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
def test_image_reference_is_completed(image: str, whole: str) -> None:
    assert full_image_reference(image) == whole


def test_image_row_of_user_takes_precedence_over_engine() -> None:
    rows = [ImageMapping("own/*", engine="podman", image="other:1"), ImageMapping("*", machine=True)]
    assert find_image_mapping("own/a", rows, ["podman"]).image == "other:1"
    assert find_image_mapping("busybox", rows, ["podman"]).machine
    with pytest.raises(ContainerError, match="is mapped to podman, which is not usable on this node: install podman"):
        find_image_mapping("own/a", rows)


def test_pull_policy_applies_to_image_of_row() -> None:
    own = ImageMapping("app", engine="podman", image="localhost/app:1")
    request = [effective_pull_policy(policy, own) for policy in ("Always", "IfNotPresent", "Never")]
    assert request == ["IfNotPresent", "IfNotPresent", "Never"]
    assert effective_pull_policy("Always", own._replace(image="localhost/app")) == "Always"
    assert effective_pull_policy("Always", ImageMapping("app", engine="podman")) == "Always"


def test_registry_credentials_are_read_from_pull_secrets() -> None:
    plain = {"auths": {"one.example": {"username": "u", "password": "p"}, "two.example": {"auth": "eDp5"}}}
    data = {".dockerconfigjson": base64.b64encode(json.dumps(plain).encode()).decode()}
    secret: Obj = {"apiVersion": "v1", "kind": "Secret", "metadata": make.metadata("reg", "team"), "data": data}
    asks = pod(engine_container(), imagePullSecrets=[{"name": "gone"}, {"name": "reg"}])
    result = registry_credentials(asks, FixedObjects(secret))
    assert result == {"auths": {"one.example": {"auth": "dTpw"}, "two.example": {"auth": "eDp5"}}}
