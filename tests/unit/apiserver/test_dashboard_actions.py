"""Actions of the dashboard: as their user, only from the page, and only what RBAC allows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.auth.authorization import RbacAuthorizer
from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH
from batchyard.apiserver.dashboard_actions import ACTION_BODY_MAX, ACTION_TOKEN_HEADER, DashboardActions
from batchyard.apiserver.request import PAGE_TOKEN_EXTRA, READ_ONLY_TOKEN, ApiRequest, Response, StatusError, UserInfo
from batchyard.interfaces.client import ObjectReader
from unit.apiserver.api import OWNER, Api
from unit.apiserver.roles import GROUP, binding, role, rule

KUEUE = "kueue.x-k8s.io"
READER = UserInfo("reader", ("readers", "system:authenticated"))
EDITOR = UserInfo("editor", ("editors", "system:authenticated"))
STRANGER = UserInfo("stranger", ("system:authenticated",))
PAGE = {"content-type": "application/json", "host": "localhost:8443", "origin": "https://localhost:8443"}


class Actions:
    """A server with a Job's Workload in the namespace team, a queue, a reader, and an editor of Jobs."""

    def __init__(self) -> None:
        self.api = Api()
        api = self.api
        authorizer = RbacAuthorizer(api.stored)
        api.stored.store.listen(authorizer.observe)
        handlers = DashboardActions(api.stored, authorizer, api.tokens)
        api.server.add_get_handler(DASHBOARD_ACTIONS_PATH, handlers.list_allowed_actions)
        perform = lambda request: handlers.perform(request, api.server.handle)  # noqa: E731
        api.server.add_post_handler(DASHBOARD_ACTIONS_PATH, perform)
        self.grant("readers", rule("get list", "workloads clusterqueues localqueues", KUEUE))
        self.grant("editors", rule("get", "workloads", KUEUE), rule("patch delete", "jobs", "batch"))
        self.grant("system:authenticated", {"verbs": ["get"], "nonResourceURLs": ["/apis/*"]})
        api.post(f"/apis/{KUEUE}/v1beta2/workloadpriorityclasses", make.workload_priority_class("urgent", 9))
        self.job = api.post("/apis/batch/v1/namespaces/team/jobs", make.job("train"))
        self.workload = self.put_workload(self.job)
        queue = make.cluster_queue("gpus")
        self.queue = api.post(f"/apis/{KUEUE}/v1beta2/clusterqueues", queue)

    def grant(self, group: str, *rules: dict[str, Any]) -> None:
        name = group.replace(":", "-")
        self.api.post(f"/apis/{GROUP}/v1/clusterroles", role(name, *rules))
        subject = {"kind": "Group", "name": group}
        self.api.post(f"/apis/{GROUP}/v1/clusterrolebindings", binding(name, f"ClusterRole/{name}", subject))

    def put_workload(self, owner: Obj | None, name: str = "w") -> Obj:
        obj = make.workload(name)
        if owner is not None:
            reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
            reference |= {"uid": owner["metadata"]["uid"], "controller": True}
            obj = {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}
        created: Obj = self.api.post(f"/apis/{KUEUE}/v1beta2/namespaces/team/workloads", obj)
        return created

    def store_owned_workload(self, owner: Mapping[str, str]) -> Obj:
        """Store a Workload with an owner reference that the server may reject."""
        metadata = {**self.workload["metadata"], "name": "owned", "uid": "owned", "ownerReferences": [owner]}
        owned = {**self.workload, "metadata": metadata}
        self.api.stored.store.put(Key(scheme.WORKLOAD, "team", "owned"), owned)
        return owned

    def offer(self, obj: Obj, user: UserInfo) -> Response:
        metadata = obj["metadata"]
        query = f"kind={obj['kind']}&name={metadata['name']}&namespace={metadata.get('namespace', '')}"
        return self.api.ask("GET", f"{DASHBOARD_ACTIONS_PATH}?{query}", user=user)

    def names(self, obj: Obj, user: UserInfo) -> list[str]:
        return [action["name"] for action in self.offer(obj, user).body["actions"]]

    def perform(
        self, user: UserInfo, obj: Obj, action: str, value: str = "", headers: Mapping[str, str] = PAGE, **other: Any
    ) -> Response:
        metadata = obj["metadata"]
        body = {"action": action, "kind": obj["kind"], "namespace": metadata.get("namespace", ""), "value": value}
        body |= {"name": metadata["name"], "uid": metadata["uid"], **other}
        sent = {ACTION_TOKEN_HEADER: self.api.tokens.issue_action_token(user), **headers}
        return self.api.ask("POST", DASHBOARD_ACTIONS_PATH, body, headers=sent, user=user)

    def stored(self, obj: Obj) -> Obj | None:
        kind = scheme.find_kind(obj["apiVersion"], obj["kind"])
        assert kind is not None
        return self.api.stored.get(Key(kind.constant, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))


@pytest.fixture
def page() -> Actions:
    return Actions()


def test_actions_are_offered_by_rights_and_state(page: Actions) -> None:
    assert page.names(page.workload, OWNER) == ["suspend", "priority", "cancel"]
    assert page.names(page.workload, EDITOR) == ["priority", "cancel"]
    assert page.names(page.workload, READER) == []
    assert page.names(page.queue, OWNER) == ["stop"]
    assert page.offer(page.workload, STRANGER).code == 404
    assert page.offer(page.queue, EDITOR).code == 404
    priority = page.offer(page.workload, OWNER).body["actions"][1]
    assert (priority["values"], priority["target"]) == (["urgent"], "Job team/train")


def test_read_only_link_is_offered_no_action_and_no_token(page: Actions) -> None:
    visitor = OWNER._replace(extra=((PAGE_TOKEN_EXTRA, (READ_ONLY_TOKEN,)),))
    offered = page.offer(page.workload, visitor).body
    assert (offered["readOnly"], offered["actions"], offered["token"]) == (True, [], "")


@pytest.mark.parametrize("action", ["suspend", "cancel", "priority"])
def test_user_without_rights_cannot_change_a_workload(page: Actions, action: str) -> None:
    before = page.stored(page.workload), page.stored(page.job)
    assert page.perform(READER, page.workload, action, "urgent").code == 403
    assert page.perform(STRANGER, page.workload, action, "urgent").code == 404
    assert (page.stored(page.workload), page.stored(page.job)) == before


def test_user_without_rights_cannot_stop_a_queue(page: Actions) -> None:
    assert page.perform(READER, page.queue, "stop", "Hold").code == 403
    assert page.perform(EDITOR, page.queue, "stop", "Hold").code == 404
    assert page.stored(page.queue) == page.queue


def test_workload_is_suspended_and_resumed(page: Actions) -> None:
    assert page.perform(OWNER, page.workload, "suspend").body == {"done": "suspend", "warnings": []}
    suspended = page.stored(page.workload)
    assert suspended is not None
    assert suspended["spec"]["active"] is False
    assert page.names(page.workload, OWNER) == ["resume", "priority", "cancel"]
    assert page.perform(OWNER, page.workload, "suspend").code == 409
    assert page.perform(OWNER, page.workload, "resume").code == 200
    resumed = page.stored(page.workload)
    assert resumed is not None
    assert resumed["spec"]["active"] is True


def test_cancel_deletes_the_job_that_owns_the_workload(page: Actions) -> None:
    assert page.perform(EDITOR, page.workload, "cancel").code == 200
    assert page.stored(page.job) is None


def test_cancel_without_a_job_deletes_the_workload(page: Actions) -> None:
    alone = page.put_workload(None, "alone")
    assert page.perform(EDITOR, alone, "cancel").code == 403
    assert page.perform(OWNER, alone, "cancel").code == 200
    left = page.stored(alone)
    assert left is None or "deletionTimestamp" in left["metadata"]


def test_cancel_of_a_replaced_job_is_a_conflict(page: Actions) -> None:
    metadata = page.workload["metadata"]
    owner = {**metadata["ownerReferences"][0], "uid": "of-an-earlier-job"}
    late = {**page.workload, "metadata": {**metadata, "name": "late", "ownerReferences": [owner]}}
    page.api.stored.store.put(Key(scheme.WORKLOAD, "team", "late"), late)
    assert page.perform(EDITOR, late, "cancel").code == 409
    assert page.stored(page.job) is not None


@pytest.mark.parametrize("name", ["..", ".", "a/b", "x/proxy/y", "a%2Fb", "Train", "", "a" * 254])
@pytest.mark.parametrize("action", ["cancel", "priority"])
def test_owner_with_an_invalid_name_is_not_changed(page: Actions, name: str, action: str) -> None:
    owned = page.store_owned_workload({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u"})
    assert page.names(owned, OWNER) == ["suspend"]
    page.api.audited.clear()
    rejected = page.perform(OWNER, owned, action, "urgent")
    assert (rejected.code, rejected.body["reason"]) == (409, "Conflict")
    assert "of its owner is invalid" in rejected.body["message"]
    assert [each.effective_request.method for each in page.api.audited] == ["POST"], "nothing is written"


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("v1", "Secret"), ("v1", "ConfigMap"), ("v1", "Namespace"), ("apps/v1", "Deployment"), ("ray.io/v1", "RayJob")],
)
def test_owner_of_another_kind_than_jobs_and_pods_is_not_deleted(page: Actions, api_version: str, kind: str) -> None:
    secret = page.api.post(
        "/api/v1/namespaces/team/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "train"}}
    )
    uid = secret["metadata"]["uid"]
    owned = page.store_owned_workload({"apiVersion": api_version, "kind": kind, "name": "train", "uid": uid})
    assert page.names(owned, OWNER) == ["suspend"]
    rejected = page.perform(OWNER, owned, "cancel")
    assert (rejected.code, rejected.body["reason"]) == (409, "Conflict")
    assert f"its owner is a {kind} ({api_version})" in rejected.body["message"]
    assert page.stored(secret) is not None


def test_cancel_deletes_the_pod_that_owns_the_workload(page: Actions) -> None:
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    pod = page.api.post("/api/v1/namespaces/team/pods", pod)
    owned = page.put_workload(pod, "of-pod")
    assert page.offer(owned, OWNER).body["actions"][-1]["target"] == "Pod team/p"
    assert page.perform(OWNER, owned, "cancel").code == 200
    left = page.stored(pod)
    assert left is None or "deletionTimestamp" in left["metadata"]


def test_priority_is_set_on_the_job(page: Actions) -> None:
    assert page.perform(EDITOR, page.workload, "priority", "urgent").code == 200
    job = page.stored(page.job)
    assert job is not None
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "urgent"


def test_hidden_and_missing_priority_classes_answer_alike(page: Actions) -> None:
    alone = page.put_workload(None, "alone")
    page.grant("patchers", rule("get patch", "workloads", KUEUE), rule("patch", "jobs", "batch"))
    patcher = UserInfo("patcher", ("patchers", "system:authenticated"))
    hidden, missing = (page.perform(patcher, alone, "priority", name) for name in ("urgent", "none"))
    assert (hidden.code, missing.code) == (404, 404)
    assert hidden.body["message"].replace("urgent", "none") == missing.body["message"]
    assert page.perform(patcher, page.workload, "priority", "urgent").code == 200, "the label of the job is the user's"
    assert page.perform(patcher, page.workload, "priority", "none").code == 200
    assert page.perform(patcher, page.workload, "priority", "no/name").code == 404


def test_missing_priority_class_is_reported_to_users_who_may_get_it(page: Actions) -> None:
    before = page.stored(page.job)
    missing = page.perform(OWNER, page.workload, "priority", "none")
    message = "value: WorkloadPriorityClass 'none' not found, or not visible to you: use another, or create it"
    assert (missing.code, missing.body["message"]) == (404, message)
    assert page.stored(page.job) == before


class RecordingReader:
    """Reads stored objects, and records the keys."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self.read_keys: list[Key] = []

    def get(self, key: Key) -> Obj | None:
        self.read_keys.append(key)
        return self._reader.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return self._reader.list(kind, namespace)


def test_objects_are_read_only_for_users_who_may_get_them(page: Actions) -> None:
    authorizer, reader = RbacAuthorizer(page.api.stored), RecordingReader(page.api.stored)
    handlers = DashboardActions(reader, authorizer, page.api.tokens)
    for name in ("w", "missing", "a/b", "x" * 254):
        query = {"kind": "Workload", "namespace": "team", "name": name}
        with pytest.raises(StatusError) as rejected:
            handlers.list_allowed_actions(ApiRequest("GET", DASHBOARD_ACTIONS_PATH, query, user=STRANGER))
        assert str(rejected.value).replace(name, "w") == "Workload w not found, or not visible to you: reload the page"
    assert reader.read_keys == []


def test_queue_is_stopped_and_resumed(page: Actions) -> None:
    assert page.perform(OWNER, page.queue, "stop", "Drain").code == 400
    for action, value, policy, offered in (
        ("stop", "Hold", "Hold", ["stop", "resume"]),
        ("stop", "HoldAndDrain", "HoldAndDrain", ["resume"]),
        ("resume", "", "None", ["stop"]),
    ):
        assert page.perform(OWNER, page.queue, action, value).code == 200
        queue = page.stored(page.queue)
        assert queue is not None
        assert queue["spec"]["stopPolicy"] == policy
        assert page.names(page.queue, OWNER) == offered


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({**PAGE, "origin": "https://evil.example.com"}, 403),
        ({**PAGE, "origin": "null"}, 403),
        ({**PAGE, "sec-fetch-site": "cross-site"}, 403),
        ({**PAGE, "sec-fetch-site": "same-site"}, 403),
        ({**PAGE, ACTION_TOKEN_HEADER: ""}, 403),
        ({**PAGE, ACTION_TOKEN_HEADER: "a.b.c"}, 403),
        ({**PAGE, "content-type": "text/plain"}, 415),
    ],
    ids=["other origin", "opaque origin", "cross site", "same site", "no token", "wrong token", "form"],
)
def test_request_of_another_site_is_rejected(page: Actions, headers: Mapping[str, str], code: int) -> None:
    assert page.perform(OWNER, page.workload, "suspend", headers=headers).code == code
    assert page.stored(page.workload) == page.workload


def test_action_token_is_of_one_user_and_expires(page: Actions) -> None:
    token = page.api.tokens.issue_action_token(EDITOR)
    headers = {**PAGE, ACTION_TOKEN_HEADER: token}
    assert page.perform(OWNER, page.workload, "suspend", headers=headers).code == 403
    assert page.api.tokens.user_of(token) is None
    assert page.api.tokens.dashboard_user_of(token) is None
    page.api.pass_time(600)
    assert page.perform(EDITOR, page.workload, "cancel", headers=headers).code == 403
    assert page.stored(page.job) is not None


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"uid": "another"}, 409),
        ({"kind": "Secret"}, 404),
        ({"name": "../../jobs/train"}, 404),
        ({"action": "delete"}, 409),
        ({"extra": 1}, 400),
        ({"value": "x" * ACTION_BODY_MAX}, 413),
    ],
)
def test_malformed_action_is_rejected(page: Actions, other: Mapping[str, Any], code: int) -> None:
    assert page.perform(OWNER, page.workload, **{"action": "suspend", **other}).code == code
    assert page.stored(page.workload) == page.workload


def test_audit_log_has_the_write_and_the_action(page: Actions) -> None:
    page.api.audited.clear()
    page.perform(READER, page.workload, "cancel")
    denied = [each.response.code for each in page.api.audited if isinstance(each.response, Response)]
    assert denied == [403, 403]
    page.api.audited.clear()
    page.perform(EDITOR, page.workload, "cancel")
    write, action = page.api.audited
    assert write.path is not None
    assert (write.effective_request.method, write.path.served_kind.plural, write.path.name) == (
        "DELETE",
        "jobs",
        "train",
    )
    assert write.effective_request.user == EDITOR
    assert isinstance(action.response, Response)
    assert dict(action.response.annotations) == {
        "batchyard.dev/page-action": "cancel Workload team/w (by delete of Job team/train)"
    }


def test_audit_log_has_no_value_that_the_action_ignores(page: Actions) -> None:
    page.api.audited.clear()
    page.perform(OWNER, page.workload, "suspend", "(by delete of Job team/other)")
    response = page.api.audited[-1].response
    assert isinstance(response, Response)
    assert dict(response.annotations) == {"batchyard.dev/page-action": "suspend Workload team/w"}
