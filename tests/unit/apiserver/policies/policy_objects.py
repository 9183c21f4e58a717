"""Admission policies and bindings for tests, and an API server that has them."""

from collections.abc import Mapping
from typing import Any

from unit.apiserver.api import Api

GROUP = "/apis/admissionregistration.k8s.io/v1"
API_VERSION = "admissionregistration.k8s.io/v1"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAP_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}


def policy(kind: str, name: str, rule: Mapping[str, Any] = CONFIG_MAP_RULE, **spec: Any) -> dict[str, Any]:
    """A policy of a kind (`Validating` or `Mutating`) for the resources of one rule."""
    whole_spec = {"matchConstraints": {"resourceRules": [rule]}, **spec}
    return {"apiVersion": API_VERSION, "kind": f"{kind}AdmissionPolicy", "metadata": {"name": name}, "spec": whole_spec}


def binding(kind: str, policy_name: str, **spec: Any) -> dict[str, Any]:
    """A binding of a policy, with its name."""
    actions = {"validationActions": ["Deny"]} if kind == "Validating" else {}
    return {
        "apiVersion": API_VERSION,
        "kind": f"{kind}AdmissionPolicyBinding",
        "metadata": {"name": policy_name},
        "spec": {"policyName": policy_name, **actions, **spec},
    }


def add_policy(api: Api, new_policy: Mapping[str, Any], **binding_spec: Any) -> None:
    """Create a policy and a binding of the same name."""
    kind = new_policy["kind"].removesuffix("AdmissionPolicy")
    resource = f"{GROUP}/{kind.lower()}admissionpolicies"
    api.post(resource, new_policy)
    api.post(f"{resource[:-3]}ybindings", binding(kind, new_policy["metadata"]["name"], **binding_spec))


def api_with_validation(expression: str, rule: Mapping[str, Any] = CONFIG_MAP_RULE, **validation: Any) -> Api:
    """An API server with one ValidatingAdmissionPolicy `check` of one validation."""
    api = Api()
    validations = [{"expression": expression, **validation}]
    add_policy(api, policy("Validating", "check", rule, validations=validations))
    return api


def config_map(name: str = "a", labels: Mapping[str, str] | None = None, **data: str) -> dict[str, Any]:
    """A ConfigMap with labels and data."""
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
