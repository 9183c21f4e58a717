"""FlowSchemas match requests in order, and keep the condition Dangling; invalid ones are rejected."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Key, Obj
from batchyard.api.validation.flow_control import flow_schema_errors, priority_level_errors, provided_flow_objects
from batchyard.apiserver.auth.authorization import RequestAttributes
from batchyard.apiserver.flow_schemas import FlowSchemaController, FlowSchemaMatcher, deal_hand
from batchyard.apiserver.request import UserInfo, account_groups
from stage import Stage

AUTHENTICATED = "system:authenticated"
ADMIN = UserInfo("admin", ("system:masters", AUTHENTICATED))
ANNA = UserInfo("anna", (AUTHENTICATED,))
KUBELET = UserInfo("system:node:n", ("system:nodes", AUTHENTICATED))
SCHEDULER = UserInfo("system:kube-scheduler", (AUTHENTICATED,))
LEASES = {"verb": "update", "group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-system"}
PODS = {"verb": "list", "resource": "pods", "namespace": "team"}


def account(namespace: str) -> UserInfo:
    return UserInfo(f"system:serviceaccount:{namespace}:robot", (*account_groups(namespace), AUTHENTICATED))


def schema(name: str, precedence: int = 1000, level: str = "workload-low", **rule: Any) -> Obj:
    subjects = rule.pop("subjects", [{"kind": "User", "user": {"name": "anna"}}])
    resource_rule = {"verbs": ["*"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"], **rule}
    spec = {"matchingPrecedence": precedence, "priorityLevelConfiguration": {"name": level}}
    rules = [{"subjects": subjects, "resourceRules": [resource_rule]}]
    metadata = {"name": name}
    api_version = "flowcontrol.apiserver.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "FlowSchema", "metadata": metadata, "spec": {**spec, "rules": rules}}


def level(name: str = "mine", **limited: Any) -> Obj:
    fields = {"limitResponse": {"type": "Reject"}, **limited}
    spec = {"type": "Limited", "limited": fields}
    kind = {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration"}
    return with_defaults({**kind, "metadata": {"name": name}, "spec": spec})


def matched(user: UserInfo, *schemas: Obj, **attributes: str) -> str:
    """The name of the FlowSchema that matches a request, among the provided ones and others."""
    provided = provided_flow_objects()
    levels = [each["metadata"]["name"] for each in provided if each["kind"] != "FlowSchema"]
    objects = [*schemas, *(each for each in provided if each["kind"] == "FlowSchema")]
    fields: dict[str, str] = {"verb": "get", **attributes}
    matcher = FlowSchemaMatcher(objects, levels)
    path = attributes.get("path", "/api/v1/pods")
    return matcher.find_schema(user, path, lambda: RequestAttributes(user, **fields)).name


@pytest.mark.parametrize(
    ("user", "attributes", "name"),
    [
        (ADMIN, PODS, "exempt"),
        (ANNA, PODS, "global-default"),
        (ANNA, {"path": "/livez/ping"}, "probes"),
        (ANNA, {"path": "/version"}, "global-default"),
        (UserInfo("system:anonymous", ("system:unauthenticated",)), {"path": "/readyz"}, "probes"),
        (KUBELET, {"verb": "update", "resource": "nodes", "subresource": "status"}, "system-node-high"),
        (KUBELET, LEASES, "system-node-high"),
        (KUBELET, PODS, "system-nodes"),
        (SCHEDULER, LEASES, "system-leader-election"),
        (SCHEDULER, PODS, "kube-scheduler"),
        (account("kube-system"), LEASES, "system-leader-election"),
        (account("kube-system"), PODS, "kube-system-service-accounts"),
        (account("team"), PODS, "service-accounts"),
        (UserInfo("stranger", ()), PODS, "catch-all"),
    ],
)
def test_provided_schemas_match_as_in_kubernetes(user: UserInfo, attributes: dict[str, str], name: str) -> None:
    assert matched(user, **attributes) == name


@pytest.mark.parametrize(
    ("fields", "is_match"),
    [
        ({}, True),
        ({"verbs": ["get"]}, False),
        ({"resources": ["pods/status"]}, False),
        ({"apiGroups": ["batch"]}, False),
        ({"namespaces": ["other"]}, False),
        ({"namespaces": [], "clusterScope": True}, False),
        ({"subjects": [{"kind": "Group", "group": {"name": AUTHENTICATED}}]}, True),
        ({"subjects": [{"kind": "User", "user": {"name": "bob"}}]}, False),
        ({"level": "missing"}, False),
        ({"precedence": 9950}, False),
    ],
)
def test_schema_matches_by_subject_rule_and_precedence(fields: dict[str, Any], is_match: bool) -> None:
    assert (matched(ANNA, schema("own", **fields), **PODS) == "own") is is_match


def test_equal_precedence_is_ordered_by_name() -> None:
    assert matched(ANNA, schema("b"), schema("a"), **PODS) == "a"


def test_hands_are_dealt_as_in_kubernetes() -> None:
    assert deal_hand(0, 8, 3) == [0, 1, 2]
    assert (deal_hand(5, 4, 2), deal_hand(3, 4, 2)) == ([1, 2], [3, 0])
    assert len({tuple(deal_hand(number, 4, 2)) for number in range(12)}) == 12
    assert all(len(set(deal_hand(7**number, 64, 6))) == 6 for number in range(22))


def test_provided_objects_are_valid_and_complete() -> None:
    objects = [with_defaults(each) for each in provided_flow_objects()]
    assert [each["spec"] for each in objects] == [each["spec"] for each in provided_flow_objects()]
    rules = {"FlowSchema": flow_schema_errors, "PriorityLevelConfiguration": priority_level_errors}
    assert [error for each in objects for error in rules[each["kind"]](each)] == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"precedence": 1}, "only the schema named 'exempt' may have matchingPrecedence 1"),
        ({"precedence": 10001}, "must not be greater than 10000"),
        ({"level": ""}, "must reference a priority level"),
        ({"subjects": []}, "subjects must contain at least one value"),
        ({"subjects": [{"kind": "User"}]}, "user is required when subject kind is 'User'"),
        ({"subjects": [{"kind": "Robot"}]}, 'Unsupported value: "Robot"'),
        ({"verbs": ["*", "get"]}, "if '*' is present, must not specify other verbs"),
        ({"verbs": ["look"]}, 'Unsupported value: ["look"]'),
        ({"namespaces": []}, "resource rules that are not cluster scoped must supply at least one namespace"),
        ({"namespaces": ["A"]}, "each member of this list must be '*' or a DNS-1123 label"),
    ],
)
def test_invalid_schemas_are_rejected(fields: dict[str, Any], problem: str) -> None:
    (error,) = flow_schema_errors(schema("own", **fields))
    assert problem in error.problem


@pytest.mark.parametrize(
    ("limited", "problem"),
    [
        ({"nominalConcurrencyShares": -1}, "must be a non-negative integer"),
        ({"lendablePercent": 101}, "must be between 0 and 100, inclusive"),
        ({"limitResponse": {"type": "Queue"}}, "must not be empty if limited.limitResponse.type is Limited"),
        ({"limitResponse": {"type": "Queue", "queuing": {"queues": 2}}}, "should not be greater than queues (2)"),
        (
            {"limitResponse": {"type": "Queue", "queuing": {"queues": 10_000_000, "handSize": 9}}},
            "required entropy bits of deckSize 10000000 and handSize 9 should not be greater than 60",
        ),
    ],
)
def test_invalid_levels_are_rejected(limited: dict[str, Any], problem: str) -> None:
    (error,) = priority_level_errors(level(**limited))
    assert problem in error.problem


def test_mandatory_objects_are_fixed() -> None:
    (error,) = priority_level_errors(level("catch-all"))
    assert error.problem.endswith("spec of 'catch-all' must equal the fixed value")


def dangling(stage: Stage) -> tuple[str, str]:
    (condition,) = stage.get(scheme.FLOW_SCHEMA, "own", "")["status"]["conditions"]
    return condition["status"], condition["reason"]


def test_missing_levels_are_reported() -> None:
    stage = Stage(FlowSchemaController())
    stage.put(with_defaults(schema("own", level="mine")))
    assert dangling(stage) == ("True", "NotFound")
    stage.put(level())
    assert dangling(stage) == ("False", "Found")
    stage.delete(scheme.PRIORITY_LEVEL, "mine", "")
    assert dangling(stage) == ("True", "NotFound")


def test_provided_objects_are_restored() -> None:
    stage = Stage(FlowSchemaController())
    provided = next(each for each in provided_flow_objects() if each["metadata"]["name"] == "global-default")
    stage.put(with_defaults(provided))
    stage.delete(scheme.PRIORITY_LEVEL, "global-default", "")
    assert stage.client.get(Key(scheme.PRIORITY_LEVEL, "", "global-default")) is not None
    stored = stage.get(scheme.PRIORITY_LEVEL, "global-default", "")
    stage.put({**stored, "spec": level()["spec"]})
    assert stage.get(scheme.PRIORITY_LEVEL, "global-default", "")["spec"] == provided["spec"]
    annotations = {"apf.kubernetes.io/autoupdate-spec": "false"}
    stage.put({**stored, "metadata": {**stored["metadata"], "annotations": annotations}, "spec": level()["spec"]})
    assert stage.get(scheme.PRIORITY_LEVEL, "global-default", "")["spec"] == level()["spec"]
