"""The status of ValidatingAdmissionPolicies: the warnings of type checking, and the observed generation."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.policies.type_checking import PolicyStatusController
from unit.apiserver.api import Api
from unit.apiserver.policies.policy_objects import API_VERSION

POLICIES = f"/apis/{API_VERSION}/validatingadmissionpolicies"
JOBS = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}


def status_of(*expressions: str, **spec: Any) -> Any:
    """The status of a policy for Jobs with these expressions."""
    api = Api()
    policy = {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [JOBS]},
            "validations": [{"expression": each} for each in expressions],
            **spec,
        },
    }
    api.post(POLICIES, policy)
    controller, key = PolicyStatusController(lambda: api.resources), Key(scheme.VALIDATING_POLICY, "", "p")
    for write in controller.reconcile(key, api.stored.client, 0).writes:
        assert api.stored.attempt(write).error is None
    assert not controller.reconcile(key, api.stored.client, 0).writes
    return api.get(f"{POLICIES}/p")["status"]


def test_policy_without_problems_has_an_empty_result() -> None:
    expression = "object.spec.parallelism < 9 && has(object.metadata.labels.team) && oldObject == null"
    assert status_of(expression) == {"observedGeneration": 1, "typeChecking": {}}


def test_undefined_field_is_reported_for_each_expression() -> None:
    warnings = status_of("object.spec.replicas > 1", "object.spec.suspend == true", "object.foo == 'object.bar'")
    first, second = warnings["typeChecking"]["expressionWarnings"]
    error = "ERROR: <input>:1:12: undefined field 'replicas'\n | object.spec.replicas > 1\n | ...........^"
    expected = f"batch/v1, Kind=Job: compilation failed: {error}\n"
    assert first == {"fieldRef": "spec.validations[0].expression", "warning": expected}
    assert second["fieldRef"] == "spec.validations[2].expression"
    assert "undefined field 'foo'" in second["warning"]
    assert "bar" not in second["warning"].partition("undefined")[2].partition("\n")[0]


def test_parameters_are_checked_and_wildcards_are_not() -> None:
    params = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
    warnings = status_of("params.data.limit == 'x' && params.dato.limit == 'x'", **params)["typeChecking"]
    assert "undefined field 'dato'" in warnings["expressionWarnings"][0]["warning"]
    rules = {"resourceRules": [{**JOBS, "resources": ["*"]}]}
    assert status_of("object.foo == 1", matchConstraints=rules)["typeChecking"] == {}
