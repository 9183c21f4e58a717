"""Validation of webhook configurations."""

from collections.abc import Mapping
from typing import Any

import pytest

from unit.apiserver.admission.hooked_api import HookedApi, configuration, hook, message
from unit.apiserver.admission.test_gate import rules

URL = "webhooks[0].clientConfig"
PATH = "webhooks[0].clientConfig.service.path"
RULE = "webhooks[0].rules[0]"
ONLY_HTTPS = "'https' is the only allowed URL scheme; desired format: https://host[/path]"


def service(path: str) -> Mapping[str, Any]:
    """A client configuration with a Service and a path."""
    return {"service": {"namespace": "team", "name": "hooks", "path": path}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "short.com"}, 'name: Invalid value: "short.com": should be a domain with at least three segments'),
        ({"name": ""}, "name: Required value"),
        ({"clientConfig": {}}, "clientConfig: Required value: exactly one of url or service is required"),
        ({"clientConfig": {"url": "http://x"}}, f'clientConfig.url: Invalid value: "http": {ONLY_HTTPS}'),
        ({"clientConfig": {"url": "https://"}}, 'clientConfig.url: Invalid value: "": host must be specified'),
        ({"clientConfig": {"url": "https://a@x"}}, 'clientConfig.url: Invalid value: "a": user information is not'),
        ({"clientConfig": {"url": "https://x?a"}}, 'clientConfig.url: Invalid value: "a": query parameters are not'),
        ({"clientConfig": {"url": "https://x#a"}}, 'clientConfig.url: Invalid value: "a": fragments are not'),
        ({"clientConfig": service("x")}, "clientConfig.service.path: Invalid value: \"x\": must start with a '/'"),
        (
            {"clientConfig": service("/a//b")},
            'clientConfig.service.path: Invalid value: "/a//b": segment[1] may not be',
        ),
        ({"admissionReviewVersions": []}, "admissionReviewVersions: Required value: must specify one of v1, v1beta1"),
        ({"admissionReviewVersions": ["v2"]}, 'admissionReviewVersions: Invalid value: ["v2"]: must include at least'),
        ({"sideEffects": "Some"}, 'sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"'),
        ({"timeoutSeconds": 31}, "timeoutSeconds: Invalid value: 31: "),
        ({"failurePolicy": "Never"}, 'failurePolicy: Unsupported value: "Never": supported values: '),
        ({"rules": rules("GET", "pods")}, 'rules[0].operations[0]: Unsupported value: "GET": supported values: "*", '),
        ({"rules": [{"operations": ["*"]}]}, "rules[0].apiGroups: Required value"),
        ({"rules": rules("*", "*", "pods")}, 'rules[0].resources: Invalid value: ["*","pods"]: if \'*\' is present'),
        ({"rules": rules("*", "a/*", "a/b")}, "rules[0].resources[1]: Invalid value: \"a/b\": if 'a/*' is present"),
        ({"matchConditions": [{"name": "a", "expression": " "}]}, "matchConditions[0].expression: Required value"),
        (
            {"matchConditions": [{"name": "a", "expression": "x"}]},
            'matchConditions[0].expression: Invalid value: "x": compilation failed: ERROR: ',
        ),
        (
            {"matchConditions": [{"name": "a", "expression": "'a'"}]},
            "matchConditions[0].expression: Invalid value: \"'a'\": must evaluate to bool",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
def test_wrong_webhook_is_rejected(kind: str, fields: Mapping[str, Any], problem: str) -> None:
    path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
    response = HookedApi().ask("POST", path, configuration("a", hook("a", **fields), kind=kind))
    assert response.code == 422, response.body
    assert f"webhooks[0].{problem}" in message(response), message(response)


def test_names_of_webhooks_are_unique() -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    response = HookedApi().ask("POST", path, configuration("a", hook("a"), hook("a"), kind="Validating"))
    assert 'webhooks[1].name: Duplicate value: "a.example.com"' in message(response)


def test_defaults_are_those_of_kubernetes() -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    [stored] = HookedApi().post(path, configuration("a", hook("a")))["webhooks"]
    expected = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10}
    expected |= {"namespaceSelector": {}, "objectSelector": {}, "reinvocationPolicy": "Never"}
    assert {field: stored[field] for field in expected} == expected
    assert stored["rules"][0]["scope"] == "*"
