"""The complete specification of a container run."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from batchyard.api.manifests import decode
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import ImageMapping
from batchyard.kubelet.local.node import ContainerDevices
from batchyard.kubelet.local.run_requests import ContainerInputs, ContainerRunSpec, NodeSettings, build_container_run
from batchyard.kubelet.local.volumes import EmptyDirPlan, VolumeFile, VolumeFiles, VolumeSources, volume_plans
from unit.kubelet.local.local_make import NOTHING, FixedObjects, container, pod

SETTINGS = NodeSettings(images=[ImageMapping("python:*", environment="/venv")], processes_max=500, host_network=True)

DEFAULTS: Mapping[str, Any] = {
    "workingDir": None,
    "stdin": False,
    "stdinOnce": False,
    "tty": False,
    "mounts": [],
    "readOnlyRoot": False,
    "user": None,
    "devices": [],
    "probes": {},
    "hooks": {},
}


def run(only: Mapping[str, Any], given: ContainerInputs | None = None, **spec: Any) -> ContainerRunSpec:
    """The second attempt of a container."""
    return build_container_run(pod(only, **spec), only, 1, given or ContainerInputs(), SETTINGS, NOTHING)


def spec_of(only: Mapping[str, Any], given: ContainerInputs | None = None, **spec: Any) -> dict[str, Any]:
    return run(only, given, **spec).spec


def test_minimal_container_gets_defaults() -> None:
    spec = spec_of(container())
    assert json.loads(json.dumps(spec)) == {
        "kind": "container",
        "pod": {"uid": "uid-pod", "namespace": "team", "name": "pod"},
        "container": "main",
        **DEFAULTS,
        "attempt": 1,
        "argv": ["run"],
        "environment": {"HOSTNAME": "pod"},
        "image": {"name": "python:3.11", "environment": "/venv"},
        "limits": {"cpu": None, "memory": None, "pids": 500},
        "requests": {"cpu": None},
        "network": "pod",
        "seccomp": {"type": "RuntimeDefault"},
        "procMount": "Default",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "log": {"maxBytes": 10485760, "maxFiles": 5},
    }


def test_container_fields_are_copied_to_spec() -> None:
    fields: dict[str, Any] = {
        "workingDir": "/data",
        "stdin": True,
        "tty": True,
        "terminationMessagePath": "/tmp/end",
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec = spec_of(container(securityContext={"readOnlyRootFilesystem": True, "runAsUser": 7}, **fields))
    assert {field: spec[field] for field in fields} == fields
    assert (spec["readOnlyRoot"], spec["user"]) == (True, {"uid": 7, "gid": 0})


def test_cpu_is_in_millicores_and_zero_is_no_limit() -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "1Ki"}, "requests": {"cpu": "250m"}}
    spec = spec_of(container(resources=resources))
    assert (spec["limits"], spec["requests"]) == ({"cpu": 1500, "memory": 1024, "pids": 500}, {"cpu": 250})
    spec = spec_of(container(resources={"limits": {"cpu": "0", "memory": "0"}}))
    assert (spec["limits"]["cpu"], spec["limits"]["memory"], spec["requests"]["cpu"]) == (None, None, None)
    assert spec_of(container(resources={"limits": {"cpu": 2}}))["requests"] == {"cpu": 2000}


def test_pod_limit_applies_to_container_without_limit() -> None:
    resources = {"limits": {"cpu": "4", "memory": "1Gi"}}
    spec = spec_of(container(resources={"limits": {"cpu": "1"}}), resources=resources)
    assert (spec["limits"]["cpu"], spec["limits"]["memory"]) == (1000, 2**30)


def test_container_variables_override_device_variables() -> None:
    devices = {"main": ContainerDevices(["/dev/nvidia1"], {"NVIDIA_VISIBLE_DEVICES": "1", "OTHER": "device"})}
    only = container(env=[{"name": "OTHER", "value": "own"}], args=["$(NVIDIA_VISIBLE_DEVICES)$(HOSTNAME)"])
    spec = spec_of(only, ContainerInputs(devices=devices))
    assert spec["devices"] == ["/dev/nvidia1"]
    assert spec["environment"] == {"HOSTNAME": "pod", "NVIDIA_VISIBLE_DEVICES": "1", "OTHER": "own"}
    assert spec["argv"] == ["run", "1$(HOSTNAME)"]


def test_mounts_are_listed_as_rows_and_as_objects() -> None:
    only = container(volumeMounts=[{"name": "work", "mountPath": "/work"}])
    created = run(only, ContainerInputs(volumes={"work": EmptyDirPlan()}))
    assert created.spec["mounts"] == [mount.to_spec() for mount in created.mounts]
    assert [mount.volume for mount in created.mounts] == ["work"]


def test_pod_on_host_network_has_no_hostname_variable() -> None:
    spec = spec_of(container(), hostNetwork=True)
    assert (spec["network"], spec["environment"]) == ("node", {})


def test_pod_ip_is_available_as_variable() -> None:
    only = container(env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])
    assert spec_of(only, ContainerInputs(addresses=["10.77.0.9"]))["environment"]["IP"] == "10.77.0.9"


WRITTEN = """
kind: Secret
stringData: {word: hidden}
---
kind: ConfigMap
data: {file: text}
---
kind: Pod
spec:
  nodeName: node
  volumes:
  - {name: files, projected: {sources: [{configMap: {name: all}}, {secret: {name: all}}]}}
  containers:
  - name: main
    image: python:3
    command: [sh, -c, echo $(WORD)]
    resources: {limits: {cpu: 2, memory: 1Gi}}
    env:
    - {name: WORD, valueFrom: {secretKeyRef: {name: all, key: word}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
    readinessProbe: {httpGet: {port: 80}, periodSeconds: 3}
    volumeMounts: [{name: files, mountPath: /files}]
"""


def test_objects_decoded_by_api_give_complete_run() -> None:
    heads = {"apiVersion": "v1", "metadata": {"name": "all", "namespace": "team", "uid": "u"}}
    decoded = [decode({**heads, **written}).obj or {} for written in yaml.safe_load_all(WRITTEN)]
    *configs, of = decoded
    objects = FixedObjects(*configs)
    plans = volume_plans(of, VolumeSources(objects, lambda *_: ""))
    assert plans == {"files": VolumeFiles({"file": VolumeFile(b"text", 0o644), "word": VolumeFile(b"hidden", 0o644)})}
    spec = build_container_run(
        of, of["spec"]["containers"][0], 0, ContainerInputs(volumes=plans), SETTINGS, objects
    ).spec
    assert spec["argv"] == ["sh", "-c", "echo hidden"]
    assert spec["environment"] == {"HOSTNAME": "all", "WORD": "hidden", "CPUS": "2"}
    assert spec["probes"]["readiness"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    assert spec["mounts"] == [{"source": "volumes/files", "target": "/files", "readOnly": True}]
    assert (spec["limits"]["cpu"], spec["requests"]["cpu"]) == (2000, 2000)


def container_error(only: Mapping[str, Any], **spec: Any) -> tuple[str, str]:
    with pytest.raises(ContainerError) as caught:
        run(only, **spec)
    return caught.value.reason, caught.value.message


def test_errors_are_reported_image_first_command_last() -> None:
    mount = {"name": "no", "mountPath": "/x"}
    bad = container(image="other", env=[{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}], command=[])
    assert container_error({**bad, "volumeMounts": [mount]})[0] == "ErrImagePull"
    bad = {**bad, "image": "python:3", "volumeMounts": [mount]}
    assert container_error(bad) == ("CreateContainerConfigError", "unsupported fieldPath: x")
    assert container_error({**bad, "env": []})[1].startswith("cannot find volume")
    reason, reported = container_error({**bad, "env": [], "volumeMounts": []})
    assert (reason, reported.partition(":")[0]) == ("CreateContainerError", "no command specified")


def test_args_are_command_when_image_row_has_none() -> None:
    only = container(command=[], args=["echo", "$(WORD)"], env=[{"name": "WORD", "value": "hi"}])
    assert run(only).spec["argv"] == ["echo", "hi"]


def test_unsupported_field_and_too_long_hostname_are_rejected() -> None:
    assert "hostPID" in container_error(container(), hostPID=True)[1]
    names = {"hostname": "h" * 60, "subdomain": "s", "setHostnameAsFQDN": True}
    assert container_error(container(), **names)[0] == "CreateContainerConfigError"
