"""`up --upstream`: the definitions and webhooks of Kueue and JobSet replace the built-in ones."""

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import Child, UpProcess
from hook_server import HookCertificates, HookServer, patch_verdict, verdict

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
UPSTREAM = ("--upstream", "kueue,jobset")
WORKLOAD = {"apiVersion": "kueue.x-k8s.io/v1", "kind": "Workload", "metadata": {"name": "first"}, "spec": {"size": 3}}
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: first, labels: {kueue.x-k8s.io/queue-name: training}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}
"""


def definition(group: str, plural: str, kind: str) -> str:
    """A definition of a namespaced kind with two versions, whose spec has a size."""
    size = {"type": "object", "properties": {"size": {"type": "integer", "maximum": 9}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": size}}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    spec = {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": versions}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return json.dumps({**head, "metadata": {"name": f"{plural}.{group}"}, "spec": spec})


def webhooks(kind: str, path: str, server: HookServer, certificates: HookCertificates) -> str:
    """A configuration with the name in Kueue's manifests, for Jobs and Workloads."""
    rules = [
        {"operations": ["*"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [plural]}
        for group, plural in (("batch", "jobs"), ("kueue.x-k8s.io", "workloads"))
    ]
    config = {"url": f"{server.url}{path}", "caBundle": certificates.bundle}
    hook = {"name": f"{path.strip('/')}.kb.io", "rules": rules, "clientConfig": config, "sideEffects": "None"}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration"}
    metadata = {"name": f"kueue-{kind.lower()}-webhook-configuration"}
    return json.dumps({**head, "metadata": metadata, "webhooks": [{**hook, "admissionReviewVersions": ["v1"]}]})


def respond(path: str, review: Mapping[str, Any]) -> Mapping[str, Any]:
    request = review["request"]
    if path == "/mutate" and request["kind"]["kind"] == "Job" and request["operation"] == "CREATE":
        return patch_verdict(review, {"op": "add", "path": "/spec/suspend", "value": True})
    is_bad = path == "/validate" and request["name"] == "bad"
    return verdict(review, allowed=not is_bad, **({"status": {"message": "a bad name"}} if is_bad else {}))


def apply(platform: UpProcess, *manifests: str, fails: bool = False) -> str:
    return "".join(platform.kubectl("create", "-f", "-", sent=each, fails=fails) for each in manifests)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path / "data", *UPSTREAM) as up:
        yield up


def define_workloads(platform: UpProcess) -> None:
    apply(platform, definition("kueue.x-k8s.io", "workloads", "Workload"))
    platform.kubectl("wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io", "--timeout=20s")


def test_kinds_exist_only_as_their_definitions_say(platform: UpProcess) -> None:
    names = platform.kubectl("get", "crd,apiservices,clusterroles", "-o", "name")
    assert "kueue" not in names
    assert "jobset" not in names
    assert "the server doesn't have a resource type" in platform.kubectl("get", "workloads", fails=True)
    define_workloads(platform)
    conditions = json.loads(platform.kubectl("get", "crd", "workloads.kueue.x-k8s.io", "-o", "json"))["status"]
    assert [each["type"] for each in conditions["conditions"]] == ["NamesAccepted", "Established"]
    apply(platform, json.dumps(WORKLOAD))
    refusal = apply(platform, json.dumps({**WORKLOAD, "spec": {"size": 10}}), fails=True)
    assert "spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9" in refusal
    platform.kubectl("delete", "crd", "workloads.kueue.x-k8s.io", "--timeout=20s")
    refusal = platform.kubectl("get", "--raw", "/apis/kueue.x-k8s.io/v1/workloads", fails=True)
    assert "the server could not find the requested resource" in refusal


def test_jobs_follow_webhooks_of_project(platform: UpProcess, tmp_path: Path) -> None:
    apply(platform, JOB)
    assert platform.kubectl("get", "job", "first", "-o", "jsonpath={.spec.suspend}") == "false"
    platform.kubectl("delete", "job", "first")
    define_workloads(platform)
    certificates = HookCertificates(tmp_path)
    with HookServer(certificates, respond) as server:
        for kind, path in (("Mutating", "/mutate"), ("Validating", "/validate")):
            apply(platform, webhooks(kind, path, server, certificates))
        apply(platform, JOB, json.dumps(WORKLOAD))
        refusal = apply(platform, JOB.replace("name: first", "name: bad"), fails=True)
    assert platform.kubectl("get", "job", "first", "-o", "jsonpath={.spec.suspend}") == "true"
    assert 'admission webhook "validate.kb.io" denied the request: a bad name' in refusal
    assert {review["request"]["kind"]["kind"] for _, review in server.asked} == {"Job", "Workload"}


def test_data_directory_keeps_option(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with UpProcess(folder, *UPSTREAM) as up:
        define_workloads(up)
        apply(up, json.dumps(WORKLOAD))
        up.kill()
    with UpProcess(folder) as up:
        assert up.kubectl("get", "workloads", "-o", "jsonpath={.items[*].spec.size}") == "3"
    with Child("up", "--data-dir", str(folder), "--upstream", "kueue") as other:
        assert other.ended() == 1
        assert f"{folder} was created with --upstream kueue,jobset; " in other.reported.read()


def test_definitions_of_other_shapes_do_not_stop_platform(platform: UpProcess) -> None:
    """Controllers that also read Workloads skip objects that are not Kueue's."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    text = json.loads(definition("kueue.x-k8s.io", "workloads", "Workload"))
    text["spec"]["versions"][0] |= {"schema": schema}
    apply(platform, json.dumps(text))
    platform.kubectl("wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io", "--timeout=20s")
    for name, fields in (("a", {"spec": 3}), ("b", {"spec": {"podSets": "x"}}), ("c", {"status": []}), ("d", {})):
        apply(platform, json.dumps({**WORKLOAD, "metadata": {"name": name}} | {"spec": None} | fields))
    threading.Event().wait(1)
    apply(platform, JOB)
    platform.kubectl("wait", "--for=jsonpath={.status.active}=1", "job/first", "--timeout=20s")
    assert platform.kubectl("get", "workloads", "-o", "name").count("workload") == 4
