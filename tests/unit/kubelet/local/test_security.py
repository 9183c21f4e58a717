"""The user of a container, and unsupported security fields."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.security import (
    ROOT,
    ContainerUser,
    reject_unsupported,
    seccomp_of,
    user_in_folder,
    user_of,
)
from unit.kubelet.local.local_make import NOTHING, FixedObjects, container, pod

NON_ROOT = ContainerUser(1000, 100)


def user(
    own: Mapping[str, Any] | None = None, of_pod: Mapping[str, Any] | None = None, default: ContainerUser = NON_ROOT
) -> dict[str, Any] | None:
    """The user of a container with these security contexts."""
    only = container(securityContext=own)
    return user_of(pod(only, securityContext=of_pod), only, default)


def container_error(only: Mapping[str, Any], reader: FixedObjects = NOTHING, **spec: Any) -> tuple[str, str]:
    with pytest.raises(ContainerError) as caught:
        reject_unsupported(pod(only, **spec), only, reader)
    return caught.value.reason, caught.value.message


def test_user_is_unset_without_security_context() -> None:
    assert user() is None
    assert user({"runAsUser": None}, {"fsGroupChangePolicy": "Always"}) is None


def test_container_security_context_overrides_pod() -> None:
    assert user({"runAsUser": 7}, {"runAsUser": 8, "runAsGroup": 9}) == {"uid": 7, "gid": 9}


def test_user_without_group_gets_group_zero() -> None:
    assert user({"runAsUser": 7}) == {"uid": 7, "gid": 0}
    assert user({"runAsGroup": 7}) == {"uid": 1000, "gid": 7}


def test_fs_group_does_not_set_user() -> None:
    assert user(None, {"fsGroup": 2000}) is None


@pytest.mark.parametrize(
    ("own", "reported"),
    [
        ({"runAsUser": 0}, "container's runAsUser breaks non-root policy"),
        ({}, "container has runAsNonRoot and image will run as root"),
    ],
)
def test_run_as_non_root_rejects_root(own: Mapping[str, Any], reported: str) -> None:
    with pytest.raises(ContainerError) as caught:
        user(own, {"runAsNonRoot": True}, ROOT)
    assert caught.value.reason == "CreateContainerConfigError"
    assert caught.value.message == f'{reported} (pod: "pod_team(uid-pod)", container: main)'


def test_run_as_non_root_accepts_other_user() -> None:
    assert user({"runAsNonRoot": True}) is None
    assert user({"runAsUser": 7}, {"runAsNonRoot": True}, ROOT) == {"uid": 7, "gid": 0}
    assert user({"runAsNonRoot": False}, {"runAsNonRoot": True}, ROOT) is None


def test_root_folder_runs_as_non_root_user_only_if_required() -> None:
    required = {"runAsNonRoot": True}
    only = container(securityContext={"allowPrivilegeEscalation": False})
    assert user_in_folder(pod(only, securityContext=required), only, ROOT) == {"uid": 65532, "gid": 65532}
    assert user_in_folder(pod(only), only, ROOT) is None
    assert user_in_folder(pod(only, securityContext=required), only, NON_ROOT) is None
    with_user = container(securityContext={"runAsUser": 7})
    assert user_in_folder(pod(with_user, securityContext=required), with_user, ROOT) == {"uid": 7, "gid": 0}
    root = container(securityContext={"runAsUser": 0})
    with pytest.raises(ContainerError, match="runAsUser breaks non-root policy"):
        user_in_folder(pod(root, securityContext=required), root, ROOT)


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"securityContext": {"privileged": True}}, "privileged"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN", "NET_RAW"]}}}, "capabilities SYS_ADMIN, NET_RAW"),
        ({"securityContext": {"procMount": "Unmasked"}}, "procMount Unmasked without hostUsers: false"),
        ({"securityContext": {"appArmorProfile": {"type": "Localhost"}}}, "appArmorProfile of type Localhost"),
        ({"volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]}, "volumeDevices disk"),
        ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims"),
        ({"lifecycle": {"stopSignal": "SIGUSR1"}}, "stopSignal SIGUSR1"),
        ({"ports": [{"containerPort": 80, "hostPort": 8080}]}, "hostPort 8080 without hostNetwork"),
    ],
)
def test_unsupported_container_fields_are_rejected(fields: Mapping[str, Any], reported: str) -> None:
    assert container_error(container(**fields)) == (
        "CreateContainerConfigError",
        f"not supported on this node: {reported}",
    )


@pytest.mark.parametrize("field", ["hostPID", "hostIPC", "shareProcessNamespace"])
def test_unsupported_pod_fields_are_rejected(field: str) -> None:
    spec: dict[str, Any] = {field: True}
    assert container_error(container(), **spec)[1] == f"not supported on this node: {field}"


def test_all_unsupported_fields_are_reported_at_once() -> None:
    context = {"sysctls": [{"name": "net.core.somaxconn", "value": "9"}], "supplementalGroups": [7, 8]}
    reported = container_error(container(securityContext={"privileged": True}), hostPID=True, securityContext=context)[
        1
    ]
    listed = "hostPID; sysctls net.core.somaxconn; supplementalGroups 7, 8; privileged"
    assert reported == f"not supported on this node: {listed}"


def test_supported_fields_are_accepted() -> None:
    own = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "privileged": False,
    }
    ports = [{"containerPort": 80, "hostPort": 80}]
    only = container(securityContext=own, ports=ports, lifecycle={"preStop": {"sleep": {"seconds": 1}}})
    context = {"seccompProfile": {"type": "Unconfined"}, "seLinuxOptions": {"level": "s0"}}
    of = pod(only, hostNetwork=True, hostPID=False, securityContext=context)
    reject_unsupported(of, only, NOTHING, host_network=True)


def test_host_network_requires_node_option() -> None:
    reason, reported = container_error(container(), hostNetwork=True)
    assert (reason, "batchyard up --host-network" in reported) == ("CreateContainerConfigError", True)


def test_unmasked_proc_mount_requires_user_namespace() -> None:
    only = container(securityContext={"procMount": "Unmasked"})
    reject_unsupported(pod(only, hostUsers=False), only, NOTHING)


def profile(own: Mapping[str, Any] | None, of_pod: Mapping[str, Any] | None = None, fault: str = "") -> dict[str, str]:
    """The seccomp profile of a container with these security contexts."""
    only = container(securityContext=own and {"seccompProfile": own})
    context = of_pod and {"seccompProfile": of_pod}
    return seccomp_of(pod(only, securityContext=context), only, lambda name: fault and f"{name}: {fault}")


def test_seccomp_profile_defaults_to_runtime_default() -> None:
    assert profile(None) == {"type": "RuntimeDefault"}
    assert profile(None, {"type": "Unconfined"}) == {"type": "Unconfined"}
    assert profile({"type": "RuntimeDefault"}, {"type": "Unconfined"}) == {"type": "RuntimeDefault"}


def test_localhost_seccomp_profile_is_named_by_path() -> None:
    assert profile({"type": "Localhost", "localhostProfile": "team/a.json"}) == {
        "type": "Localhost",
        "profile": "team/a.json",
    }


@pytest.mark.parametrize(
    ("named", "reason", "reported"),
    [
        (None, "CreateContainerConfigError", "localhostProfile must be set if seccompProfile type is Localhost."),
        (
            "../x",
            "CreateContainerConfigError",
            "localhostProfile ../x must be a relative path that does not contain '..'",
        ),
        ("/x", "CreateContainerConfigError", "localhostProfile /x must be a relative path that does not contain '..'"),
        ("x", "CreateContainerError", "failed to create containerd container: x: no such file"),
    ],
)
def test_invalid_seccomp_profile_is_rejected(named: str | None, reason: str, reported: str) -> None:
    with pytest.raises(ContainerError) as caught:
        profile({"type": "Localhost", "localhostProfile": named}, fault="no such file")
    assert (caught.value.reason, caught.value.message) == (reason, reported)


def test_runtime_class_with_other_isolation_is_rejected() -> None:
    def named(name: str, handler: str) -> Mapping[str, Any]:
        return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler}

    objects = FixedObjects(named("gpu", "nvidia"), named("sandboxed", "runsc"))
    reject_unsupported(pod(runtimeClassName="gpu"), container(), objects)
    reported = container_error(container(), objects, runtimeClassName="sandboxed")
    assert reported == ("CreateContainerError", 'no runtime for "runsc" is configured')
    assert container_error(container(), objects, runtimeClassName="no")[1] == 'RuntimeClass "no" not found'
