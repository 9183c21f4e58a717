"""The installed permissions of an operator are enforced, sufficient and all needed."""

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchyard.api.scheme import DESCRIBED_KINDS
from batchyard.controller_groups import GROUPS, KUBERNETES_GROUPS
from batchyard.operator_manifests import InstallSettings, manifests
from e2e_platform.operator_account import forbidden_requests, install_account, used_permissions
from e2e_platform.operator_process import OperatorRun
from e2e_platform.platform_process import UpProcess

SETTINGS = InstallSettings(webhooks=False, page=False)
OTHERS = ",".join(group for group in GROUPS if group not in KUBERNETES_GROUPS)
WORK = Path(__file__).with_name("rights.yaml")
_ATTEMPTS_MAX = 600
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def allowed() -> set[tuple[str, str, str]]:
    """The permissions of the account, by group, resource and verb.

    No request uses permissions on finalizers: an admission plugin of other API servers checks them. The platform has no
    definitions of custom kinds of jobs, so no request uses permissions on these kinds.
    """
    rules = [
        rule
        for obj in manifests(SETTINGS)
        if obj["metadata"]["name"] == SETTINGS.name
        for rule in obj.get("rules") or ()
    ]
    result = {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    custom_groups = {info.group for info in DESCRIBED_KINDS.values()}
    return {right for right in result if not right[1].endswith("/finalizers") and right[0] not in custom_groups}


def wait_for(is_so: Callable[[], bool], reported: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    for _ in range(_ATTEMPTS_MAX):
        if is_so():
            return
        threading.Event().wait(0.1)
    raise AssertionError(reported())


class OperatedPlatform:
    """A platform, an operator with its permissions, and those that it has used."""

    def __init__(self, platform: UpProcess, audit_log: Path) -> None:
        self.platform = platform
        self.audit_log = audit_log

    def until_used(self, *wanted: tuple[str, str, str]) -> None:
        """Wait until the operator has used permissions."""
        wait_for(lambda: set(wanted) <= self.used(), lambda: sorted(set(wanted) - self.used()))

    def used(self) -> set[tuple[str, str, str]]:
        """The permissions that the operator has used."""
        return used_permissions(self.audit_log, SETTINGS)

    def workload_of(self, job: str) -> Mapping[str, Any]:
        """The Workload of a Job."""
        items = json.loads(self.platform.kubectl("get", "workloads", "-o", "json"))["items"]
        result: Mapping[str, Any] = next(each for each in items if each["metadata"]["name"].startswith(f"job-{job}-"))
        return result

    def create(self, obj: Mapping[str, Any]) -> None:
        """Create an object as the owner of the platform."""
        self.platform.kubectl("create", "-f", "-", sent=json.dumps(obj))

    def disturb(self) -> None:
        """Create a second Workload of a Job and a leftover template, and drain the queues."""
        workload = self.workload_of("asks")
        metadata = {"name": "left", "namespace": "default", "labels": {"kueue.x-k8s.io/managed": "true"}}
        owner = {"apiVersion": workload["apiVersion"], "kind": "Workload", "name": workload["metadata"]["name"]}
        owners = [{**owner, "uid": workload["metadata"]["uid"], "controller": True}]
        template = {"spec": {"containers": [{"name": "main", "image": "python"}]}}
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {**metadata, "ownerReferences": owners},
                "template": template,
            }
        )
        of_job = self.workload_of("long")
        twin = {"name": "twin", "namespace": "default", "ownerReferences": of_job["metadata"]["ownerReferences"]}
        pod_sets = [{**of_job["spec"]["podSets"][0], "count": 2}]
        self.create({**of_job, "metadata": twin, "spec": {**of_job["spec"], "podSets": pod_sets}, "status": {}})
        began = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
        self.platform.kubectl(
            "patch", "job", "managed", "--subresource=status", "--type=merge", "-p", json.dumps(began)
        )
        self.stop_queue("HoldAndDrain")
        asks = workload["metadata"]["name"]
        self.platform.kubectl("patch", "workload", asks, "--type=merge", "-p", '{"spec": {"active": false}}')

    def repeat_event(self) -> None:
        """Update the message of an admission check until an Event of its Job is repeated."""
        asks = self.workload_of("asks")["metadata"]["name"]
        check = {"name": "capacity", "state": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for number in range(_ATTEMPTS_MAX):
            if ("", "events", "patch") in self.used():
                return
            stated = json.dumps({"status": {"admissionChecks": [{**check, "message": f"{number}"}]}})
            self.platform.kubectl("patch", "workload", asks, "--subresource=status", "--type=merge", "-p", stated)
        raise AssertionError("no Event was repeated")

    def stop_queue(self, policy: str) -> None:
        """Set the stop policy of a queue."""
        stop = json.dumps({"spec": {"stopPolicy": policy}})
        self.platform.kubectl("patch", "clusterqueue", "plain", "--type=merge", "-p", stop)


#: The kind PreemptionConfig is read only with its feature gate.
WITH_PREEMPTION_CONFIGS = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare]}
featureGates: {ConfigurablePreemptions: true}
"""


def test_operator_uses_exactly_its_granted_permissions(tmp_path: Path) -> None:
    audit_log = tmp_path / "audit.log"
    options = ("--speed", "60x", "--controllers", OTHERS, "--audit-log", str(audit_log))
    with UpProcess(tmp_path / "data", *options) as platform:
        kubeconfig = install_account(platform.kubeconfig, tmp_path, SETTINGS)
        configuration = tmp_path / "kueue.yaml"
        configuration.write_text(WITH_PREEMPTION_CONFIGS, "utf-8")
        named = ("--leader-elect-resource-name", SETTINGS.name, "--config", str(configuration))
        with OperatorRun(kubeconfig, *named).wait_until("runs admission") as operator:
            story = OperatedPlatform(platform, audit_log)
            platform.kubectl("create", "-f", str(WORK))
            story.until_used(("", "podtemplates", "patch"), ("jobset.x-k8s.io", "jobsets", "delete"))
            story.repeat_event()
            story.disturb()
            story.until_used(("", "podtemplates", "delete"), ("batch", "jobs/status", "patch"))
            story.stop_queue("None")
            platform.kubectl(
                "delete", "jobs,localqueues,clusterqueues,resourceflavors,topologies,admissionchecks", "--all"
            )
            story.until_used(*allowed())
            assert forbidden_requests(audit_log, SETTINGS) == [], operator.log()
    assert story.used() == allowed()
