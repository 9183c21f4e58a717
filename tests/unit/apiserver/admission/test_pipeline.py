"""Which webhooks are called, in which order, and what their failures mean."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.apiserver.admission.calls import WebhookCallError
from batchyard.apiserver.admission.registrations import WebhookRegistry
from batchyard.apiserver.request import Response
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
from unit.apiserver.admission.test_gate import MERGE, PODS, pod, rules
from yard import queue

FAILED = WebhookCallError('Post "https://hooks.example.com/x?timeout=10s": context deadline exceeded')


def names(api: HookedApi) -> list[str]:
    """The webhooks that were called, in order."""
    return [name for name, _ in api.asked]


def create(api: HookedApi, **metadata: Any) -> Response:
    """The answer to the creation of a pod."""
    return api.ask("POST", PODS, pod(**metadata))


# Order and reinvocation.


def test_mutating_webhooks_run_in_order_of_configurations_and_each_sees_earlier_changes() -> None:
    api = HookedApi(a=annotate("a"), b=annotate("b"), c=annotate("c"))
    api.configure(configuration("2", hook("a"), hook("b")), configuration("1", hook("c")))
    assert create(api).body["metadata"]["annotations"] == {"a": "yes", "b": "yes", "c": "yes"}
    assert names(api) == ["c", "a", "b"]
    assert api.asked[2][1]["object"]["metadata"]["annotations"] == {"a": "yes", "c": "yes"}


def test_webhook_is_reinvoked_if_a_later_one_changes_the_object() -> None:
    api = HookedApi(a=annotate("a"), b=annotate("b"))
    api.configure(configuration("1", hook("a", reinvocationPolicy="IfNeeded"), hook("b")))
    response = create(api)
    assert names(api) == ["a", "b", "a"]
    keys = sorted(key for key in response.annotations if key.startswith("mutation"))
    assert keys == [
        f"mutation.webhook.admission.k8s.io/round_{each}" for each in ("0_index_0", "0_index_1", "1_index_0")
    ]


def test_webhook_is_not_reinvoked_without_later_change() -> None:
    api = HookedApi(a=annotate("a"), b=allow)
    api.configure(configuration("1", hook("a", reinvocationPolicy="IfNeeded"), hook("b")))
    create(api)
    assert names(api) == ["a", "b"]


def test_webhook_is_not_called_for_the_first_time_in_the_second_round() -> None:
    api = HookedApi(a=allow, b=annotate("b"))
    sees = {"matchConditions": [{"name": "b", "expression": "has(object.metadata.annotations)"}]}
    api.configure(configuration("1", hook("a", reinvocationPolicy="IfNeeded", **sees), hook("b")))
    create(api)
    assert names(api) == ["b"]


def test_validating_webhooks_are_called_in_parallel_and_first_denial_wins() -> None:
    api = HookedApi(a=allow, b=deny("b"), c=deny("c"))
    api.configure(configuration("1", hook("a"), hook("b"), hook("c"), kind="Validating"))
    api.holds_replies = True
    responses = api.later("POST", PODS, pod())
    assert len(api.held) == 3
    api.deliver()
    [response] = responses
    assert isinstance(response, Response)
    assert message(response) == 'admission webhook "b.example.com" denied the request: b'


# Matching.


@pytest.mark.parametrize(
    ("fields", "is_called"),
    [
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"objectSelector": {"matchLabels": {"a": "c"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, False),
        ({"rules": rules("*", "*")}, True),
        ({"rules": rules("CREATE", "pods/*")}, True),
        ({"rules": rules("CREATE", "pods/status")}, False),
        ({"rules": rules("UPDATE", "pods")}, False),
        ({"rules": [{**rules("*", "pods")[0], "scope": "Namespaced"}]}, True),
        ({"rules": [{**rules("*", "pods")[0], "scope": "Cluster"}]}, False),
        ({"rules": [{**rules("*", "pods")[0], "apiVersions": ["v2"]}]}, False),
        ({"matchConditions": [{"name": "x", "expression": "request.operation == 'CREATE'"}]}, True),
        ({"matchConditions": [{"name": "x", "expression": "oldObject != null"}]}, False),
    ],
)
def test_webhook_is_called_for_matching_requests(fields: Mapping[str, Any], is_called: bool) -> None:
    api = HookedApi(a=allow)
    api.ask(
        "PATCH",
        "/api/v1/namespaces/team",
        {"metadata": {"labels": {"kubernetes.io/metadata.name": "team"}}},
        headers=MERGE,
    )
    api.configure(configuration("1", hook("a", **fields)))
    assert create(api, labels={"a": "b"}).code == 201
    assert bool(api.asked) == is_called


def test_object_selector_matches_the_old_object_too() -> None:
    api = HookedApi(a=allow)
    api.post(PODS, pod(labels={"a": "b"}))
    api.configure(configuration("1", hook("a", rules("UPDATE", "pods"), objectSelector={"matchLabels": {"a": "b"}})))
    assert api.ask("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": None}}}, headers=MERGE).code == 200
    assert names(api) == ["a"]


def test_equivalent_webhook_receives_and_changes_the_version_of_its_rule() -> None:
    api = HookedApi(a=annotate("a"))
    matched = [{**rules("*", "clusterqueues")[0], "apiVersions": ["v1beta1"]}]
    api.configure(configuration("1", hook("a", matched), hook("b", matched, matchPolicy="Exact")))
    sent = {key: value for key, value in queue("cq", 1, cohort="all").items() if key != "status"}
    sent["metadata"] = {"name": "cq"}
    created = api.post("/apis/kueue.x-k8s.io/v1beta2/clusterqueues", sent)
    assert created["spec"]["cohortName"] == "all"
    assert created["metadata"]["annotations"] == {"a": "yes"}
    [(_, request)] = api.asked
    assert request["object"]["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert request["object"]["spec"]["cohort"] == "all"
    assert (request["kind"]["version"], request["requestKind"]["version"]) == ("v1beta1", "v1beta2")


CONDITIONS = [{"name": "x", "expression": "object.metadata.labels['a'] == 'b'"}]


def test_failed_match_condition_follows_failure_policy() -> None:
    api = HookedApi(a=allow)
    api.configure(configuration("1", hook("a", matchConditions=CONDITIONS, failurePolicy="Ignore")))
    assert create(api).code == 201
    api.configure(configuration("2", hook("a", matchConditions=CONDITIONS)))
    response = create(api)
    assert response.code == 403
    expression = CONDITIONS[0]["expression"]
    assert message(response).startswith(
        f"pods \"p\" is forbidden: expression '{expression}' resulted in error: no such key: labels"
    )
    assert api.counts.conditions[-1] == ("a.example.com", True)
    assert api.asked == []


# Responses and failures.


def test_failed_call_follows_failure_policy() -> None:
    api = HookedApi(a=lambda _request: FAILED)
    api.configure(configuration("1", hook("a", failurePolicy="Ignore")))
    response = create(api, name="q")
    assert response.code == 201
    assert response.annotations["failed-open.mutation.webhook.admission.k8s.io/round_0_index_0"] == "a.example.com"
    api.configure(configuration("2", hook("a"), kind="Validating"))
    response = create(api)
    text = f'failed calling webhook "a.example.com": failed to call webhook: {FAILED}'
    assert (response.code, response.body["reason"]) == (500, "InternalError")
    assert message(response) == f"Internal error occurred: {text}"
    assert response.body["details"] == {"causes": [{"message": text}]}
    assert api.counts.fail_opens == ["a.example.com", "a.example.com"]
    assert api.counts.rejections == [("a.example.com", "calling_webhook_error", 503)]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"{}", "received invalid webhook response: webhook response was absent"),
        (b"no", "failed to call webhook: couldn't get version/kind; json parse error: "),
        ({"uid": "x", "allowed": True}, 'received invalid webhook response: expected response.uid="'),
        (
            {"allowed": True, "patch": "W10="},
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        (
            {"allowed": True, "patchType": "JSONPatch"},
            "received invalid webhook response: webhook returned response.patchType but not response.patch",
        ),
        ({"allowed": True, "patchType": "JSONPatch", "patch": "?"}, "received undecodable patch in webhook response: "),
        ({"allowed": True, "patchType": "Merge", "patch": "W3t9XQ=="}, 'unsupported patch type "Merge"'),
    ],
)
def test_invalid_response_is_a_failed_call(answer: Any, problem: str) -> None:
    api = HookedApi(a=lambda _request: answer)
    api.configure(configuration("1", hook("a")))
    text = message(create(api))
    assert text.startswith(f'Internal error occurred: failed calling webhook "a.example.com": {problem}'), text


def test_validating_webhook_may_not_patch() -> None:
    api = HookedApi(a=patching({"op": "add", "path": "/x", "value": 1}))
    api.configure(configuration("1", hook("a"), kind="Validating"))
    assert message(create(api)).endswith("validating webhook may not return response.patch")


def test_patch_that_does_not_apply_is_an_internal_error() -> None:
    api = HookedApi(a=patching({"op": "remove", "path": "/spec/none"}))
    api.configure(configuration("1", hook("a", failurePolicy="Ignore")))
    response = create(api)
    assert (response.code, response.body["reason"]) == (500, "InternalError")
    assert "Unable to remove nonexistent key: none: missing value" in message(response)


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        ({}, 400, 'admission webhook "a.example.com" denied the request without explanation'),
        ({"reason": "NoReason"}, 400, 'admission webhook "a.example.com" denied the request: NoReason'),
        ({"code": 200, "message": "m"}, 400, 'admission webhook "a.example.com" denied the request: m'),
        ({"code": 418, "message": "m"}, 418, 'admission webhook "a.example.com" denied the request: m'),
    ],
)
def test_denial_has_code_and_text_of_the_response(status: Mapping[str, Any], code: int, text: str) -> None:
    api = HookedApi(a=lambda _request: {"allowed": False, "status": status})
    api.configure(configuration("1", hook("a")))
    response = create(api)
    assert (response.code, message(response)) == (code, text)


def test_webhook_of_older_reviews_needs_no_uid() -> None:
    api = HookedApi(a=lambda _request: {"uid": "", "allowed": True, "patch": "W10="})
    api.configure(configuration("1", hook("a", admissionReviewVersions=["v2", "v1beta1"])))
    assert create(api).code == 201


def test_delete_request_cannot_be_patched() -> None:
    api = HookedApi(a=patching({"op": "add", "path": "/metadata", "value": {}}))
    api.post(PODS, pod())
    api.configure(configuration("1", hook("a", ALL)))
    text = "attempted to modify the object, which is not supported for this operation"
    assert message(api.ask("DELETE", f"{PODS}/p")).endswith(text)


def test_missing_namespace_is_reported_before_webhooks() -> None:
    api = HookedApi(a=allow)
    api.configure(configuration("1", hook("a")))
    assert api.ask("POST", "/api/v1/namespaces/none/pods", pod()).code == 404
    assert api.asked == []


def test_built_in_webhooks_are_not_called() -> None:
    api = HookedApi(a=deny("unserved"))
    name = "kueue-validating-webhook-configuration"
    api.post(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        configuration(name, hook("a"), kind="Validating"),
    )
    assert WebhookRegistry(api.stored, ("admission",)).is_empty
    assert [each.configuration for each in WebhookRegistry(api.stored, ("jobset",)).validating] == [name]
