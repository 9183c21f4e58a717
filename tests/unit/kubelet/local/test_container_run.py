"""The whole of what a run of a container is to be."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from batchyard.api.manifests import decode
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import ImageRow
from batchyard.kubelet.local.node import ContainerDevices
from batchyard.kubelet.local.run_requests import ContainerInputs, ContainerRunSpec, NodeSettings, container_run
from batchyard.kubelet.local.volumes import EmptyDirPlan, VolumeFile, VolumeFiles, VolumeSources, volume_plans
from unit.kubelet.local.local_make import NOTHING, Shelf, container, pod

SETTINGS = NodeSettings(images=[ImageRow("python:*", environment="/venv")], pids=500, host_network=True)

UNSAID: Mapping[str, Any] = {
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
    return container_run(pod(only, **spec), only, 1, given or ContainerInputs(), SETTINGS, NOTHING)


def spec_of(only: Mapping[str, Any], given: ContainerInputs | None = None, **spec: Any) -> dict[str, Any]:
    return run(only, given, **spec).spec


def test_a_container_that_says_little_has_all_else_filled_in() -> None:
    spec = spec_of(container())
    assert json.loads(json.dumps(spec)) == {
        "kind": "container",
        "pod": {"uid": "uid-pod", "namespace": "team", "name": "pod"},
        "container": "main",
        **UNSAID,
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


def test_what_a_container_says_is_in_its_spec() -> None:
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


def test_amounts_are_thousandths_and_bytes_and_zero_is_no_limit() -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "1Ki"}, "requests": {"cpu": "250m"}}
    spec = spec_of(container(resources=resources))
    assert (spec["limits"], spec["requests"]) == ({"cpu": 1500, "memory": 1024, "pids": 500}, {"cpu": 250})
    spec = spec_of(container(resources={"limits": {"cpu": "0", "memory": "0"}}))
    assert (spec["limits"]["cpu"], spec["limits"]["memory"], spec["requests"]["cpu"]) == (None, None, None)
    assert spec_of(container(resources={"limits": {"cpu": 2}}))["requests"] == {"cpu": 2000}


def test_where_a_container_has_no_limit_its_pods_holds() -> None:
    resources = {"limits": {"cpu": "4", "memory": "1Gi"}}
    spec = spec_of(container(resources={"limits": {"cpu": "1"}}), resources=resources)
    assert (spec["limits"]["cpu"], spec["limits"]["memory"]) == (1000, 2**30)


def test_devices_bring_variables_that_the_container_may_set_otherwise() -> None:
    devices = {"main": ContainerDevices(["/dev/nvidia1"], {"NVIDIA_VISIBLE_DEVICES": "1", "OTHER": "device"})}
    only = container(env=[{"name": "OTHER", "value": "own"}], args=["$(NVIDIA_VISIBLE_DEVICES)$(HOSTNAME)"])
    spec = spec_of(only, ContainerInputs(devices=devices))
    assert spec["devices"] == ["/dev/nvidia1"]
    assert spec["environment"] == {"HOSTNAME": "pod", "NVIDIA_VISIBLE_DEVICES": "1", "OTHER": "own"}
    assert spec["argv"] == ["run", "1$(HOSTNAME)"]


def test_mounts_are_told_twice_as_rows_and_for_those_who_look_them_up() -> None:
    only = container(volumeMounts=[{"name": "work", "mountPath": "/work"}])
    made = run(only, ContainerInputs(volumes={"work": EmptyDirPlan()}))
    assert made.spec["mounts"] == [mount.row() for mount in made.mounts]
    assert [mount.volume for mount in made.mounts] == ["work"]


def test_who_uses_the_nodes_network_has_the_nodes_name() -> None:
    spec = spec_of(container(), hostNetwork=True)
    assert (spec["network"], spec["environment"]) == ("node", {})


def test_the_address_of_a_pod_is_known_to_its_containers() -> None:
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


def test_objects_are_read_as_the_api_keeps_them() -> None:
    heads = {"apiVersion": "v1", "metadata": {"name": "all", "namespace": "team", "uid": "u"}}
    decoded = [decode({**heads, **written}).obj or {} for written in yaml.safe_load_all(WRITTEN)]
    *configs, of = decoded
    shelf = Shelf(*configs)
    plans = volume_plans(of, VolumeSources(shelf, lambda *_: ""))
    assert plans == {"files": VolumeFiles({"file": VolumeFile(b"text", 0o644), "word": VolumeFile(b"hidden", 0o644)})}
    spec = container_run(of, of["spec"]["containers"][0], 0, ContainerInputs(volumes=plans), SETTINGS, shelf).spec
    assert spec["argv"] == ["sh", "-c", "echo hidden"]
    assert spec["environment"] == {"HOSTNAME": "all", "WORD": "hidden", "CPUS": "2"}
    assert spec["probes"]["readiness"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    assert spec["mounts"] == [{"source": "volumes/files", "target": "/files", "readOnly": True}]
    assert (spec["limits"]["cpu"], spec["requests"]["cpu"]) == (2000, 2000)


def refused(only: Mapping[str, Any], **spec: Any) -> tuple[str, str]:
    with pytest.raises(ContainerError) as caught:
        run(only, **spec)
    return caught.value.reason, caught.value.message


def test_the_image_is_looked_at_first_and_the_command_last() -> None:
    mount = {"name": "no", "mountPath": "/x"}
    bad = container(image="other", env=[{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}], command=[])
    assert refused({**bad, "volumeMounts": [mount]})[0] == "ErrImagePull"
    bad = {**bad, "image": "python:3", "volumeMounts": [mount]}
    assert refused(bad) == ("CreateContainerConfigError", "unsupported fieldPath: x")
    assert refused({**bad, "env": []})[1].startswith("cannot find volume")
    reason, reported = refused({**bad, "env": [], "volumeMounts": []})
    assert (reason, reported.partition(":")[0]) == ("CreateContainerError", "no command specified")


def test_arguments_alone_are_the_command_where_what_stands_for_the_image_has_none() -> None:
    only = container(command=[], args=["echo", "$(WORD)"], env=[{"name": "WORD", "value": "hi"}])
    assert run(only).spec["argv"] == ["echo", "hi"]


def test_what_cannot_be_given_and_a_name_too_long_are_refused() -> None:
    assert "hostPID" in refused(container(), hostPID=True)[1]
    names = {"hostname": "h" * 60, "subdomain": "s", "setHostnameAsFQDN": True}
    assert refused(container(), **names)[0] == "CreateContainerConfigError"
