"""Validation of admission policies and bindings."""

from typing import Any

import pytest

from unit.apiserver.api import Api
from unit.apiserver.policies.policy_objects import CONFIG_MAP_RULE, GROUP, binding, policy

TRUE = [{"expression": "true"}]
MUTATIONS = [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{}]"}}]


def errors(obj: dict[str, Any]) -> list[str]:
    """The errors of a new policy or binding, with their fields."""
    kind = obj["kind"].lower()
    plural = f"{kind}s" if kind.endswith("binding") else f"{kind[:-1]}ies"
    response = Api().ask("POST", f"{GROUP}/{plural}", obj)
    return [f"{each['field']}: {each['message']}" for each in response.body.get("details", {}).get("causes", ())]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"validations": []}, "spec.validations: Required value: validations or auditAnnotations must contain"),
        ({"validations": [{"expression": " "}]}, "spec.validations[0].expression: Required value: expression is not"),
        (
            {"validations": [{"expression": "true", "message": "a\nb"}]},
            'spec.validations[0].message: Invalid value: "a',
        ),
        (
            {"validations": [{"expression": "true", "reason": "X"}]},
            'spec.validations[0].reason: Unsupported value: "X"',
        ),
        ({"variables": [{"name": "in", "expression": "1"}]}, 'spec.variables[0].name: Invalid value: "in": must be a'),
        ({"paramKind": {"apiVersion": "v1"}}, "spec.paramKind.kind: Required value"),
        (
            {"matchConditions": [{"name": "a", "expression": "1"}]},
            'spec.matchConditions[0].expression: Invalid value: "1"',
        ),
        ({"matchConditions": [{"name": "a", "expression": "true"}] * 2}, "spec.matchConditions[1]"),
        (
            {"auditAnnotations": [{"key": "a", "valueExpression": "'b'"}] * 2},
            'spec.auditAnnotations[1].key: Duplicate value: "a"',
        ),
        ({"matchConstraints": {}}, "spec.matchConstraints.resourceRules: Required value"),
        (
            {"matchConstraints": {"resourceRules": [{**CONFIG_MAP_RULE, "operations": ["*", "CREATE"]}]}},
            'spec.matchConstraints.resourceRules[0].operations: Invalid value: ["*","CREATE"]: if \'*\' is present',
        ),
        (
            {"matchConstraints": {"resourceRules": [{**CONFIG_MAP_RULE, "resourceNames": ["a", "a"]}]}},
            'spec.matchConstraints.resourceRules[0].resourceNames[1]: Duplicate value: "a"',
        ),
    ],
)
def test_invalid_validating_policy_is_rejected(spec: dict[str, Any], error: str) -> None:
    assert errors(policy("Validating", "check", **{"validations": TRUE, **spec}))[0].startswith(error)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"mutations": []}, "spec.mutations: Required value: mutations must contain at least one item"),
        ({"reinvocationPolicy": None}, "spec.reinvocationPolicy: Required value"),
        ({"mutations": [{"patchType": "JSONPatch"}]}, "spec.mutations[0].jsonPatch: Required value: must be specified"),
        ({"mutations": [{}]}, "spec.mutations[0].patchType: Required value"),
        (
            {"matchConstraints": {"resourceRules": [{**CONFIG_MAP_RULE, "operations": ["DELETE"]}]}},
            'spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE"',
        ),
    ],
)
def test_invalid_mutating_policy_is_rejected(spec: dict[str, Any], error: str) -> None:
    whole_spec: dict[str, Any] = {"mutations": MUTATIONS, "reinvocationPolicy": "Never", **spec}
    assert errors(policy("Mutating", "check", **whole_spec))[0].startswith(error)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (
            {"validationActions": []},
            "spec.validationActions: Required value: at least one validation action is required",
        ),
        ({"validationActions": ["Deny", "Warn"]}, 'spec.validationActions: Invalid value: ["Deny","Warn"]: must not'),
        ({"validationActions": ["Audit", "Audit"]}, 'spec.validationActions[1]: Duplicate value: "Audit"'),
        ({"paramRef": {"parameterNotFoundAction": "Deny"}}, "spec.paramRef: Required value: one of name or selector"),
        ({"paramRef": {"name": "a"}}, "spec.paramRef.parameterNotFoundAction: Required value"),
        ({"policyName": ""}, "spec.policyName: Required value"),
    ],
)
def test_invalid_binding_is_rejected(spec: dict[str, Any], error: str) -> None:
    new_binding = binding("Validating", "check")
    assert errors({**new_binding, "spec": {**new_binding["spec"], **spec}})[0].startswith(error)
