"""`batchyard platform create` and `destroy` on an existing Kubernetes cluster, with the real kubectl."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.cli.platform import drive
from batchyard.cli.platform.target import ClusterOptions
from cloud_commands import PLATFORM, run_in_process
from e2e_platform.platform_process import UpProcess

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: long, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: lq-team-a-lp}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: x, resources: {requests: {cpu: 1}}}]
"""
OURS = "--selector=app.kubernetes.io/part-of=small"
KINDS = "namespaces,clusterqueues,localqueues,resourceflavors,serviceaccounts,roles,networkpolicies"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("platform") / "data") as platform:
        yield platform


class PlatformFolder:
    """A platform file, its rendered folder, and its cluster."""

    def __init__(self, folder: Path, running: UpProcess) -> None:
        document = yaml.safe_load(PLATFORM)
        document["spec"]["engine"] = "batchyard"
        del document["spec"]["google"]
        self.file = folder / "platform.yaml"
        self.file.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
        expected = ClusterOptions(str(running.kubeconfig), "")
        self.request = drive.PlatformRequest(str(self.file), folder / "out", "", expected, is_confirmed=True)
        self.reported = folder / "told"

    def create(self, *, exit_code: int = 0, **options: Any) -> str:
        """Create the platform with these options of the request; return the output."""
        request = replace(self.request, **options)
        return self._reported(
            run_in_process(lambda: drive.run_create(drive.render_requested_platform(request), request), self.reported),
            exit_code,
        )

    def destroy(self, *, exit_code: int = 0) -> str:
        """Destroy the platform; return the output."""

        def work() -> None:
            drive.run_destroy(drive.render_requested_platform(self.request), self.request, is_unprotecting=False)

        return self._reported(run_in_process(work, self.reported), exit_code)

    def _reported(self, code: int, expected_code: int) -> str:
        reported = self.reported.read_text("utf-8")
        self.reported.unlink()
        assert code == expected_code, reported
        return reported


def test_platform_is_created_and_destroyed_on_existing_cluster(tmp_path: Path, running: UpProcess) -> None:
    place = PlatformFolder(tmp_path, running)
    assert "cluster-queues: ok: 1 Active" in place.create()
    running.kubectl("apply", "--filename=-", sent=JOB)
    running.kubectl("wait", "--namespace=team-a", "workloads", "--all", "--for=condition=Admitted", "--timeout=30s")
    before = running.kubectl("get", KINDS, OURS, "--all-namespaces", "--output=jsonpath={.items[*].metadata.uid}")
    assert "0 steps done" in place.create(), "it is there already"
    assert running.kubectl("get", KINDS, OURS, "-A", "--output=jsonpath={.items[*].metadata.uid}") == before
    assert "running Workloads: 1 (team-a/job-long-" in place.destroy()
    assert running.kubectl("get", KINDS, OURS, "--all-namespaces", "--output=name") == ""
    assert "team-a" not in running.kubectl("get", "namespaces", "--output=name")


def test_namespace_of_others_is_neither_adopted_nor_deleted(tmp_path: Path, running: UpProcess) -> None:
    place = PlatformFolder(tmp_path, running)
    running.kubectl("create", "namespace", "team-a")
    running.kubectl("create", "configmap", "theirs", "--namespace=team-a")
    for reported in (place.create(exit_code=1), place.destroy(exit_code=1)):
        assert "own-namespaces: FAILED: without the labels of the platform: 1 (team-a)" in reported
    assert running.kubectl("get", KINDS, OURS, "--all-namespaces", "--output=name") == ""
    running.kubectl("get", "configmap", "theirs", "--namespace=team-a")
    labels = ("app.kubernetes.io/managed-by=batchyard", "app.kubernetes.io/part-of=small")
    running.kubectl("label", "namespace", "team-a", *labels)
    place.create()
    place.destroy()
    assert "team-a" not in running.kubectl("get", "namespaces", "--output=name")


def test_create_resumes_only_queues_stopped_by_destroy(tmp_path: Path, running: UpProcess) -> None:
    place = PlatformFolder(tmp_path, running)
    text = yaml.safe_load(place.file.read_text("utf-8"))
    text["spec"]["teams"].append({"name": "team-b", "queues": [{"class": "lp"}]})
    place.file.write_text(yaml.safe_dump(text, sort_keys=False), "utf-8")
    place.create()
    patch = {"metadata": {"annotations": {"platform.batchyard.dev/stopped-by": "destroy"}}}
    stopped = json.dumps({**patch, "spec": {"stopPolicy": "HoldAndDrain"}})
    held = json.dumps({"spec": {"stopPolicy": "Hold"}})
    for name, sent in (("cq-team-a-lp", stopped), ("cq-team-b-lp", held)):
        running.kubectl("patch", "clusterqueue", name, "--type=merge", f"--patch={sent}")
    reported = place.create()
    assert "resume-queues: done" in reported
    for name in ("cq-team-b-lp", "team-b/lq-team-b-lp"):
        assert f"stopped by their stopPolicy, not waited for: {name}" in reported
    policies = running.kubectl("get", "clusterqueues", OURS, "--output=jsonpath={.items[*].spec.stopPolicy}")
    assert policies == "None Hold"
    assert "stopped-by" not in running.kubectl("get", "clusterqueues", OURS, "--output=yaml")
    place.destroy()


def test_create_reports_removed_teams_and_prune_deletes_them(tmp_path: Path, running: UpProcess) -> None:
    place = PlatformFolder(tmp_path, running)
    place.create()
    running.kubectl("apply", "--filename=-", sent=JOB)
    running.kubectl("wait", "--namespace=team-a", "workloads", "--all", "--for=condition=Admitted", "--timeout=30s")
    text = place.file.read_text("utf-8")
    place.file.write_text(text.replace("name: team-a", "name: team-b"), "utf-8")
    goes = "ClusterQueue cq-team-a-lp, Namespace team-a with all its objects"
    assert f"obsolete-objects: failed, optional: {goes}; --prune removes these objects" in place.create()
    reported = place.create(is_pruning=True)
    ending = "This deletes these objects. These Workloads end: 1 (team-a/job-long-"
    assert f"The file no longer defines: {goes}. {ending}" in reported
    assert "obsolete-objects: done" in reported
    running.kubectl("wait", "--for=delete", "namespace/team-a", "clusterqueue/cq-team-a-lp", "--timeout=60s")
    place.file.write_text(text, "utf-8")
    assert "obsolete-objects: failed, optional: ClusterQueue cq-team-b-lp" in place.destroy()
    assert running.kubectl("get", KINDS, OURS, "--all-namespaces", "--output=name") == ""


def test_create_keeps_configured_stop_policy_and_prunes_removed_roles(tmp_path: Path, running: UpProcess) -> None:
    place = PlatformFolder(tmp_path, running)
    held = "stopPolicy: Hold, flavors: [{name: spot, resources: {cpu: {nominalQuota: 1}}}]"
    text = place.file.read_text("utf-8").replace("  teams:", f"  queues: [{{name: held, {held}}}]\n  teams:")
    place.file.write_text(text.replace("name: team-a,", "name: team-a, admins: {users: [ann]},"), "utf-8")
    assert "cluster-queues: ok: 1 Active" in place.create()
    running.kubectl("annotate", "clusterqueue", "held", "platform.batchyard.dev/stopped-by=destroy")
    place.file.write_text(text, "utf-8")
    assert "unmark-queues: done" in place.create(is_pruning=True)
    assert running.kubectl("get", "clusterqueue", "held", "--output=jsonpath={.spec.stopPolicy}") == "Hold"
    rights = "roles,rolebindings,clusterroles,clusterrolebindings"
    assert running.kubectl("get", rights, OURS, "--all-namespaces", "--output=name") == ""
    place.destroy()
