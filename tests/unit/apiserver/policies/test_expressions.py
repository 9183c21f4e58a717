"""CEL expressions of admission policies: their variables, their types and their messages."""

import pytest

from unit.apiserver.api import Api
from unit.apiserver.policies.policy_objects import CONFIG_MAPS, GROUP, add_policy, config_map, policy

VARIABLES = [
    {"name": "size", "expression": "object.data.size"},
    {"name": "missing", "expression": "object.data.missing"},
    {"name": "count", "expression": "size(object.data)"},
    {"name": "twice", "expression": "variables.count * 2"},
]


def message_of(expression: str) -> str:
    """The message of a denied ConfigMap, without the names of the policy; '' if it is allowed."""
    api = Api()
    validations = [{"expression": expression}]
    add_policy(api, policy("Validating", "check", variables=VARIABLES, validations=validations))
    denied = api.ask("POST", CONFIG_MAPS, config_map(labels={"a/b": "c"}, size="small"))
    return "" if denied.code == 201 else str(denied.body["message"]).partition("denied request: ")[2]


def compilation_error(expression: str) -> str:
    """The error that the API server reports for a validation, without its path and value."""
    validations = [{"expression": expression}]
    new_policy = policy("Validating", "check", variables=VARIABLES, validations=validations)
    (cause,) = Api().ask("POST", f"{GROUP}/validatingadmissionpolicies", new_policy).body["details"]["causes"]
    assert cause["field"] == "spec.validations[0].expression"
    return str(cause["message"]).partition(f'Invalid value: "{expression}": ')[2]


@pytest.mark.parametrize(
    "expression",
    [
        "variables.twice == 2 && variables.count == 1",
        "true || variables.missing == 'x'",
        "has(variables.missing) && object.metadata.labels['a/b'] == 'c'",
        "request.operation == 'CREATE' && request.kind.kind == 'ConfigMap' && request.name == 'a' && !request.dryRun",
        "oldObject == null && namespaceObject.metadata.name == 'default'",
        "request.userInfo.username == 'owner' && 'system:masters' in request.userInfo.groups",
        "authorizer.requestResource.check('create').allowed() && authorizer.path('/healthz').check('get').allowed()",
        "authorizer.group('apps').resource('deployments').subresource('status').check('get').allowed()",
        "!authorizer.serviceAccount('team', 'x').group('').resource('pods').namespace('y').check('list').allowed()",
    ],
)
def test_expression_reads_variables_of_request(expression: str) -> None:
    assert message_of(expression) == ""


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("object.data.none == 'x'", "no such key: none"),
        ("oldObject.data == 'x'", "no such key: data"),
        ("object.data.size + 1 == 2", "no such overload"),
        ("1 / 0 == 1", "division by zero"),
        ("[1][5] == 1", "index out of bounds: 5"),
        ("variables.missing == 'x'", 'composited variable "missing" fails to evaluate: no such key: missing'),
        ("authorizer.path('').check('get').allowed()", "path must not be empty"),
    ],
)
def test_evaluation_error_has_message_of_kubernetes(expression: str, error: str) -> None:
    assert message_of(expression) == f"expression '{expression}' resulted in error: {error}"


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("object.data", "must evaluate to bool but got dyn"),
        ("[1].map(x, 'a')", "must evaluate to bool but got list(string)"),
        ("other.x == 1", "undeclared reference to 'other' (in container '')\n | other.x == 1\n | ^"),
        ("variables.x == 1", "undefined field 'x'\n | variables.x == 1\n | .........^"),
        ("request.kind.x == 1", "undefined field 'x'\n | request.kind.x == 1\n | ............^"),
        ("variables.count == 'a'", "applied to '(int, string)'\n | variables.count == 'a'\n | ................^"),
        ("params == null", "undeclared reference to 'params' (in container '')\n | params == null\n | ^"),
    ],
)
def test_compilation_error_has_message_of_kubernetes(expression: str, error: str) -> None:
    assert compilation_error(expression).endswith(error)


def test_iterations_over_limit_fail() -> None:
    numbers = "lists.range(100)"
    expression = f"{numbers}.all(x, {numbers}.all(y, {numbers}.all(z, x + y + z >= 0)))"
    assert message_of(expression).endswith("resulted in error: operation cancelled: actual cost limit exceeded")
