"""Writes that pass webhooks: their order, what the webhooks receive, and what the client receives."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

import make
from batchyard.api.meta import with_metadata
from batchyard.apiserver.admission.attributes import AdmissionAttributes, PolicyVerdict
from batchyard.apiserver.admission.calls import REQUEST_SECONDS_MAX
from batchyard.apiserver.admission.gate import AdmissionGate, GateParts
from batchyard.apiserver.admission.pipeline import AdmissionPolicies
from batchyard.apiserver.request import Response
from batchyard.apiserver.resources import ResourcePath
from batchyard.interfaces.client import Write, WriteResult
from unit.apiserver.admission.hooked_api import (
    ALL,
    HookedApi,
    allow,
    annotate,
    configuration,
    deny,
    hook,
    message,
    patching,
)
from unit.apiserver.api import config_map

PODS = "/api/v1/namespaces/team/pods"
MAPS = "/api/v1/namespaces/team/configmaps"
MERGE = {"content-type": "application/merge-patch+json"}
MUTATED = "mutation.webhook.admission.k8s.io/round_0_index_0"


def pod(name: str = "p", **metadata: Any) -> dict[str, Any]:
    """A pod as users send it."""
    metadata, container = {"name": name, **metadata}, {"name": "main", "image": "busybox"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def rules(operation: str, *resources: str) -> list[dict[str, Any]]:
    """The rules of a webhook for an operation on resources of all groups."""
    return [{"operations": [operation], "apiGroups": ["*"], "apiVersions": ["*"], "resources": list(resources)}]


def test_mutating_webhook_changes_new_object() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    assert api.post(PODS, pod())["metadata"]["annotations"] == {"seen": "yes"}
    [(_, request)] = api.asked
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert (request["oldObject"], request["dryRun"], request["namespace"]) == (None, False, "team")


def test_mutating_webhook_receives_pod_of_built_in_plugins_without_uid() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    created = api.post(PODS, pod())
    sent = api.asked[0][1]["object"]
    assert sent["spec"]["serviceAccountName"] == "default"
    assert sent["spec"]["volumes"] == created["spec"]["volumes"]
    assert not {"uid", "creationTimestamp"} & set(sent["metadata"])


def test_validating_webhook_receives_object_as_stored() -> None:
    api = HookedApi(ok=allow)
    api.configure(configuration("a", hook("ok"), kind="Validating"))
    created = api.post(PODS, pod("", generateName="p-"))
    [(_, request)] = api.asked
    assert request["name"] == request["object"]["metadata"]["name"] == created["metadata"]["name"]
    assert request["object"]["metadata"]["uid"] == created["metadata"]["uid"]


def test_denied_object_is_not_stored() -> None:
    api = HookedApi(no=deny("bad pod"))
    api.configure(configuration("a", hook("no"), kind="Validating"))
    response = api.ask("POST", PODS, pod())
    assert response.code == 403
    assert message(response) == 'admission webhook "no.example.com" denied the request: bad pod'
    assert api.get(PODS)["items"] == []
    assert api.counts.rejections == [("no.example.com", "no_error", 403)]


def test_webhook_corrects_invalid_object() -> None:
    api = HookedApi(fix=patching({"op": "add", "path": "/spec/containers/0/name", "value": "main"}))
    api.configure(configuration("a", hook("fix")))
    sent = pod()
    del sent["spec"]["containers"][0]["name"]
    assert api.post(PODS, sent)["spec"]["containers"][0]["name"] == "main"


def test_object_that_webhook_makes_invalid_is_rejected() -> None:
    api = HookedApi(harm=patching({"op": "replace", "path": "/spec/containers/0/name", "value": "No"}))
    api.configure(configuration("a", hook("harm")))
    response = api.ask("POST", PODS, pod())
    assert response.code == 422
    assert "spec.containers[0].name: Invalid value" in message(response)


def test_fields_that_webhook_sets_have_no_owner() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    [entry] = api.post(PODS, pod())["metadata"]["managedFields"]
    assert "f:metadata" not in entry["fieldsV1"]


def test_object_is_stored_after_the_reply() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    api.holds_replies = True
    responses = api.later("POST", PODS, pod())
    assert api.get(PODS)["items"] == []
    api.deliver()
    [response] = responses
    assert isinstance(response, Response)
    assert response.code == 201
    assert [item["metadata"]["name"] for item in api.get(PODS)["items"]] == ["p"]


def test_patch_is_admitted_again_if_object_changes_meanwhile() -> None:
    api = HookedApi(note=allow)
    api.post(MAPS, config_map("c"))
    api.configure(configuration("a", hook("note", rules("UPDATE", "configmaps"))))
    api.holds_replies = True
    answer = api.answer("PATCH", f"{MAPS}/c", {"data": {"a": "1"}}, MERGE["content-type"])
    assert not isinstance(answer, Response)
    stored = api.get(f"{MAPS}/c")
    api.server.set_admission_gate(None)
    api.ask("PUT", f"{MAPS}/c", {**stored, "data": {"b": "2"}})
    api.deliver()
    api.deliver()
    assert api.get(f"{MAPS}/c")["data"] == {"a": "1", "b": "2"}
    assert [request["oldObject"].get("data") for _, request in api.asked] == [None, {"b": "2"}]


def test_slow_webhooks_end_with_timeout() -> None:
    api = HookedApi(a=allow, b=allow)
    api.configure(configuration("a", hook("a"), hook("b")))
    api.holds_replies = True
    responses = api.later("POST", PODS, pod())
    api.clock += REQUEST_SECONDS_MAX
    api.deliver()
    [response] = responses
    assert isinstance(response, Response)
    assert (response.code, message(response)) == (504, "Timeout: request did not complete within requested timeout")


def test_deleted_object_is_sent_as_old_object() -> None:
    api = HookedApi(no=deny("keep it"))
    api.post(MAPS, config_map("c"))
    api.configure(configuration("a", hook("no", rules("DELETE", "configmaps")), kind="Validating"))
    response = api.ask("DELETE", f"{MAPS}/c", {"propagationPolicy": "Background"})
    assert message(response) == 'admission webhook "no.example.com" denied the request: keep it'
    [(_, request)] = api.asked
    assert (request["object"], request["oldObject"]["metadata"]["name"], request["name"]) == (None, "c", "c")
    assert request["options"]["propagationPolicy"] == "Background"
    assert api.get(f"{MAPS}/c")


def test_deletecollection_asks_for_each_object() -> None:
    api = HookedApi(ok=allow)
    for name in ("c", "d"):
        api.post(MAPS, config_map(name))
    api.configure(configuration("a", hook("ok", rules("DELETE", "configmaps")), kind="Validating"))
    assert api.ask("DELETE", MAPS).code == 200
    assert [request["oldObject"]["metadata"]["name"] for _, request in api.asked] == ["c", "d"]
    assert api.get(MAPS)["items"] == []


def test_status_is_a_resource_of_its_own() -> None:
    api = HookedApi(ok=allow)
    created = api.post(PODS, pod())
    api.configure(configuration("a", hook("ok", rules("UPDATE", "pods/status")), kind="Validating"))
    sent = {**created, "status": {"phase": "Running"}}
    assert api.ask("PUT", f"{PODS}/p/status", sent).code == 200
    assert api.ask("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, headers=MERGE).code == 200
    [(_, request)] = api.asked
    assert request["subResource"] == "status"
    assert request["object"]["status"]["phase"] == "Running"


def test_scale_is_sent_as_scale() -> None:
    api = HookedApi(ten=patching({"op": "replace", "path": "/spec/replicas", "value": 10}))
    path = "/apis/apps/v1/namespaces/team/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    api.post(path, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
    api.configure(configuration("a", hook("ten", rules("UPDATE", "deployments/scale"))))
    assert api.ask("PATCH", f"{path}/d/scale", {"spec": {"replicas": 5}}, headers=MERGE).body["spec"] == {
        "replicas": 10
    }
    [(_, request)] = api.asked
    assert request["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert request["resource"] == {"group": "apps", "version": "v1", "resource": "deployments"}
    assert request["oldObject"]["spec"] == {"replicas": 1}
    assert request["object"]["spec"] == {"replicas": 5}


def test_exec_is_a_connection() -> None:
    api = HookedApi(no=deny("no shells"))
    api.post(PODS, pod())
    api.configure(configuration("a", hook("no", rules("CONNECT", "pods/exec")), kind="Validating"))
    response = api.ask("POST", f"{PODS}/p/exec?container=main&stdin=true")
    assert message(response) == 'admission webhook "no.example.com" denied the request: no shells'
    [(_, request)] = api.asked
    assert request["object"] == {"kind": "PodExecOptions", "apiVersion": "v1", "stdin": True, "container": "main"}
    assert (request["operation"], request["subResource"]) == ("CONNECT", "exec")


def test_applied_object_is_created_or_updated() -> None:
    api = HookedApi(ok=allow)
    api.configure(configuration("a", hook("ok", rules("*", "configmaps")), kind="Validating"))
    applied = {**config_map("c"), "data": {"a": "1"}}
    headers = {"content-type": "application/apply-patch+yaml"}
    for value in ("1", "2"):
        applied["data"] = {"a": value}
        assert api.ask("PATCH", f"{MAPS}/c?fieldManager=me", applied, headers=headers).code < 300
    assert [request["operation"] for _, request in api.asked] == ["CREATE", "UPDATE"]
    assert api.asked[0][1]["options"]["fieldManager"] == "me"


def test_configurations_and_reviews_pass_no_webhook() -> None:
    api = HookedApi(no=deny("all"))
    api.configure(configuration("a", hook("no", ALL)))
    api.post("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration("b", hook("no", ALL)))
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "team"}}
    assert api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review).code == 201
    assert api.asked == []


def test_dry_run_needs_webhooks_without_side_effects() -> None:
    api = HookedApi(ok=allow)
    api.configure(configuration("a", hook("ok")))
    assert api.ask("POST", f"{PODS}?dryRun=All", pod()).code == 201
    assert api.asked[0][1]["dryRun"] is True
    [stored] = api.gate.stages.registry.mutating
    api.gate.stages.registry.mutating = [stored._replace(definition={**stored.definition, "sideEffects": "Unknown"})]
    response = api.ask("POST", f"{PODS}?dryRun=All", pod())
    assert (response.code, response.body["reason"]) == (400, "BadRequest")
    assert message(response) == 'admission webhook "ok.example.com" does not support dry run'


def test_warnings_and_audit_annotations_reach_the_response() -> None:
    extra = {"warnings": ["be careful", "be careful"], "auditAnnotations": {"why": "because"}}
    api = HookedApi(ok=lambda _request: {"allowed": True, **extra}, no=deny("bad"))
    api.configure(configuration("a", hook("ok")), configuration("b", hook("no"), kind="Validating"))
    response = api.ask("POST", PODS, pod())
    assert (response.code, response.warnings) == (403, ("be careful",))
    mutation = {"configuration": "a", "webhook": "ok.example.com", "mutated": False}
    assert response.annotations == {"ok.example.com/why": "because", MUTATED: msgspec.json.encode(mutation).decode()}
    audited_response = api.audited[-1].response
    assert isinstance(audited_response, Response)
    assert audited_response.annotations == response.annotations


@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
def test_job_keeps_uid_of_its_selector(kind: str) -> None:
    api = HookedApi(ok=allow if kind == "Validating" else annotate("seen"))
    api.configure(configuration("a", hook("ok", rules("CREATE", "jobs")), kind=kind))
    job = make.job()
    sent = {**{k: v for k, v in job.items() if k != "status"}, "metadata": {"name": "j"}}
    created = api.post("/apis/batch/v1/namespaces/team/jobs", sent)
    uid = created["metadata"]["uid"]
    assert created["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"] == uid


class Policies:
    """Policies that set a label, and annotate the audit event."""

    mutates = validates = True

    def may_match(self, operation: str, path: ResourcePath) -> bool:
        return bool(operation and path)

    def mutate(self, attributes: AdmissionAttributes) -> Mapping[str, Any] | None:
        assert attributes.obj is not None
        return with_metadata(attributes.obj, labels={"policy": "yes"})

    def validate(self, attributes: AdmissionAttributes) -> PolicyVerdict:
        assert attributes.obj is not None
        assert attributes.obj["metadata"]["annotations"] == {"seen": "yes"}
        return PolicyVerdict(None, ("policy",), {"policy": "p"})


def admit_by_policies(api: HookedApi, policies: AdmissionPolicies) -> None:
    """Admit the later writes by policies, and by the configured webhooks."""
    parts = GateParts(api.stored, api.server.write_handler, api.gate.stages.registry, api.counts, api, 1, policies)
    api.server.set_admission_gate(AdmissionGate(parts))


def test_policies_run_before_the_webhooks_of_a_stage() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    admit_by_policies(api, Policies())
    response = api.ask("POST", PODS, pod())
    assert response.body["metadata"]["labels"] == {"policy": "yes"}
    assert api.asked[0][1]["object"]["metadata"]["labels"] == {"policy": "yes"}
    assert (response.warnings, response.annotations["policy"]) == (("policy",), "p")


def test_write_without_policies_and_validating_webhooks_needs_no_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note", rules("CREATE", "configmaps"))))
    admit_by_policies(api, api.server.policy_loader)
    attempt, dry_runs = api.stored.attempt, list[bool]()

    def record_attempt(write: Write, *, dry_run: bool = False) -> WriteResult:
        dry_runs.append(dry_run)
        return attempt(write, dry_run=dry_run)

    monkeypatch.setattr(api.stored, "attempt", record_attempt)
    assert api.post(MAPS, config_map("m"))["metadata"]["annotations"] == {"seen": "yes"}
    assert dry_runs == [False]
