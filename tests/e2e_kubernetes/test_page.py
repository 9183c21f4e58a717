"""The page beside an operator acts as its user: the API server authorizes and audits each request."""

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any

from e2e_kubernetes.installed_operators import InstalledOperators
from e2e_kubernetes.kubernetes import wait_for
from e2e_kubernetes.objects import job, queue, template

KUEUE = "kueue.x-k8s.io"
MODELS = "/apis/ui.batchyard.dev/v1alpha1"
ACTIONS = f"{MODELS}/actions"
READS = {"apiGroups": [KUEUE], "resources": ["workloads", "clusterqueues"], "verbs": ["get", "list"]}
WRITES = (
    {"apiGroups": [KUEUE], "resources": ["workloads", "clusterqueues"], "verbs": ["patch"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["patch", "delete"]},
    {"apiGroups": [""], "resources": ["events", "pods/log"], "verbs": ["get", "list"]},
)


class PageUser:
    """A ServiceAccount with some rights, and its requests to the page."""

    def __init__(self, cluster: InstalledOperators, name: str, *rules: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self.name = f"system:serviceaccount:default:{name}"
        rbac, metadata = "rbac.authorization.k8s.io", {"name": name}
        account = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
        cluster.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata, "namespace": "default"}},
            {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": list(rules)},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": metadata,
                "roleRef": reference,
                "subjects": [account],
            },
        )
        self._token = cluster.kubectl("create", "token", name, "-n", "default").strip()

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """The code and the document of a response of the page's server: to a GET, or to a POST with a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._cluster.page(), timeout=30)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, sent, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text)

    def offered(self, obj: Any) -> Sequence[str]:
        """The names of the actions that the page offers on an object."""
        code, document = self.ask(f"{ACTIONS}?kind={obj['kind']}&namespace={namespace(obj)}&name={name(obj)}")
        assert code == 200, document
        return [action["name"] for action in document["actions"]]

    def perform(self, obj: Any, action: str, value: str = "") -> tuple[int, Any]:
        """Perform an action on an object."""
        target = {"kind": obj["kind"], "namespace": namespace(obj), "name": name(obj), "uid": obj["metadata"]["uid"]}
        return self.ask(ACTIONS, {"action": action, "value": value, **target})


def test_page_suspends_job_and_stops_queue_with_rights_of_its_user(cluster: InstalledOperators) -> None:
    editor, viewer = PageUser(cluster, "page-editor", READS, *WRITES), PageUser(cluster, "page-viewer", READS)
    refused_before = cluster.refused()
    cluster.create(*queue("page"), job("paged", "page", template("1")))
    cluster.until("{.spec.suspend}=false", "job", "paged")
    cluster_queue, job_uid = cluster.get("clusterqueue", "page"), cluster.get("job", "paged")["metadata"]["uid"]
    (workload,) = cluster.get("workloads", "-l", f"kueue.x-k8s.io/job-uid={job_uid}")["items"]

    for obj, action, value in ((workload, "suspend", ""), (cluster_queue, "stop", "Hold")):
        assert viewer.offered(obj) == []
        code, status = viewer.perform(obj, action, value)
        assert (code, status["kind"], status["reason"]) == (403, "Status", "Forbidden")
        assert f'User "{viewer.name}" cannot patch resource' in status["message"]
        assert action in editor.offered(obj)
        assert editor.perform(obj, action, value) == (200, {"done": action, "warnings": []})
    cluster.until("{.spec.suspend}=true", "job", "paged")
    cluster.until("{.spec.stopPolicy}=Hold", "clusterqueue", "page")
    wait_for(lambda: editor.offered(workload) == ["resume", "priority", "cancel"], cluster.log)

    patches = page_patches(cluster)
    results = [(each["user"]["username"], each["responseStatus"]["code"]) for each in patches]
    assert results == [(viewer.name, 403), (editor.name, 200)] * 2
    assert cluster.refused() == refused_before, cluster.log()


def test_page_reads_events_and_logs_with_rights_of_its_user(cluster: InstalledOperators) -> None:
    editor, viewer = PageUser(cluster, "log-editor", READS, *WRITES), PageUser(cluster, "log-viewer", READS)
    cluster.create(*queue("logs"), job("logged", "logs", template("1")))
    cluster.until("{.spec.suspend}=false", "job", "logged")
    job_uid = cluster.get("job", "logged")["metadata"]["uid"]
    (workload,) = cluster.get("workloads", "-l", f"kueue.x-k8s.io/job-uid={job_uid}")["items"]
    code, document = editor.ask(f"{MODELS}/workload?namespace=default&name={name(workload)}")
    assert (code, sorted(document["model"]["answers"])) == (200, ["events", "why"])
    path = document["model"]["answers"]["events"]
    wait_for(lambda: "QuotaReserved" in [each["reason"] for each in editor.ask(path)[1]["events"]], cluster.log)
    assert viewer.ask(path)[0] == 403

    log = "/api/v1/namespaces/default/pods/none/log?tailLines=10"
    code, status = editor.ask(log)
    assert (code, status["message"]) == (404, 'pods "none" not found')
    code, status = viewer.ask(log)
    assert (code, status["reason"]) == (403, "Forbidden")


def page_patches(cluster: InstalledOperators) -> Sequence[Any]:
    """The completed patches of the page, from the audit log."""
    events = [json.loads(line) for line in cluster.kubernetes.audit_log.read_text("utf-8").splitlines()]
    completed = [event for event in events if event["verb"] == "patch" and "responseStatus" in event]
    return [event for event in completed if event["userAgent"].startswith("batchyard-page")]


def namespace(obj: Any) -> str:
    """The namespace of an object, or ''."""
    return str(obj["metadata"].get("namespace", ""))


def name(obj: Any) -> str:
    """The name of an object."""
    return str(obj["metadata"]["name"])
