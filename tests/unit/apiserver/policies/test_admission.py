"""Admission policies on the write path of the API server."""

from unit.apiserver.api import Api
from unit.apiserver.policies.policy_objects import CONFIG_MAPS, add_policy, api_with_validation, config_map, policy


def test_false_validation_denies_request_with_message_of_kubernetes() -> None:
    api = api_with_validation("object.data.size == 'small'")
    denied = api.ask("POST", CONFIG_MAPS, config_map(size="large"))
    text = (
        "ValidatingAdmissionPolicy 'check' with binding 'check' denied request: "
        "failed expression: object.data.size == 'small'"
    )
    assert denied.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'configmaps "a" is forbidden: {text}',
        "reason": "Invalid",
        "details": {"name": "a", "kind": "configmaps", "causes": [{"message": text}]},
        "code": 422,
    }
    assert api.ask("POST", CONFIG_MAPS, config_map(size="small")).code == 201


def test_apply_configuration_is_merged_into_object() -> None:
    api = Api()
    expression = 'Object{metadata: Object.metadata{labels: {"a": "b"}}, data: {"size": "small"}}'
    mutation = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}
    add_policy(api, policy("Mutating", "complete", mutations=[mutation], reinvocationPolicy="Never"))
    created = api.post(CONFIG_MAPS, config_map(color="red"))
    assert created["data"] == {"color": "red", "size": "small"}
    assert created["metadata"]["labels"] == {"a": "b"}


def test_json_patch_changes_object() -> None:
    api = Api()
    expression = '[JSONPatch{op: "add", path: "/data/size", value: object.data.color + "ish"}]'
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    add_policy(api, policy("Mutating", "complete", mutations=[mutation], reinvocationPolicy="Never"))
    assert api.post(CONFIG_MAPS, config_map(color="red"))["data"] == {"color": "red", "size": "redish"}
