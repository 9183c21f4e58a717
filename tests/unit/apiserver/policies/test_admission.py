"""Admission policies on the write path of the API server."""

from collections.abc import Callable, Mapping
from typing import Any

from batchyard.api.meta import key_of
from batchyard.apiserver.handlers.prepared_writes import INLINE_BODY_MAX
from batchyard.apiserver.request import DeferredResponse, StatusError, UserInfo
from unit.apiserver import roles
from unit.apiserver.api import Api
from unit.apiserver.policies.policy_objects import (
    API_VERSION,
    CONFIG_MAPS,
    GROUP,
    add_policy,
    api_with_validation,
    binding,
    config_map,
    policy,
)


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


def test_warning_and_audit_annotation_allow_request() -> None:
    api = Api()
    validations = [{"expression": "false", "messageExpression": "'bad ' + object.metadata.name"}]
    annotations = [{"key": "size", "valueExpression": "string(object.data.size)"}]
    new_policy = policy("Validating", "check", validations=validations, auditAnnotations=annotations)
    add_policy(api, new_policy, validationActions=["Warn", "Audit"])
    response = api.ask("POST", CONFIG_MAPS, config_map(size="small"))
    assert response.code == 201
    assert response.warnings == ("Validation failed for ValidatingAdmissionPolicy 'check' with binding 'check': bad a",)
    failure = (
        '[{"message":"bad a","policy":"check","binding":"check","expressionIndex":0,'
        '"validationActions":["Warn","Audit"]}]'
    )
    assert response.annotations == {
        "validation.policy.admission.k8s.io/validation_failure": failure,
        "check/size": "small",
    }


def test_reason_determines_code() -> None:
    api = api_with_validation("false", message="no", reason="Forbidden")
    denied = api.ask("POST", CONFIG_MAPS, config_map())
    assert (denied.code, denied.body["reason"]) == (403, "Forbidden")
    assert denied.body["message"].endswith("denied request: no")


def test_update_and_deletion_are_validated_with_old_object() -> None:
    api = Api()
    api.post(CONFIG_MAPS, config_map(size="small"))
    validations = [{"expression": "object != null && object.data.size == oldObject.data.size", "message": "fixed"}]
    add_policy(api, policy("Validating", "check", validations=validations))
    merge = {"content-type": "application/merge-patch+json"}
    denied = api.ask("PATCH", f"{CONFIG_MAPS}/a", {"data": {"size": "large"}}, headers=merge)
    assert denied.code == 422
    assert api.ask("PATCH", f"{CONFIG_MAPS}/a", {"data": {"color": "red"}}, headers=merge).code == 200
    assert api.ask("DELETE", f"{CONFIG_MAPS}/a").code == 422
    assert api.ask("DELETE", CONFIG_MAPS).code == 422


def test_ignore_policy_ignores_evaluation_errors() -> None:
    api = Api()
    validations = [{"expression": "object.data.none == 'x'"}]
    add_policy(api, policy("Validating", "check", validations=validations, failurePolicy="Ignore"))
    api.post(CONFIG_MAPS, config_map())


def test_policy_applies_only_if_match_conditions_are_true() -> None:
    api = Api()
    conditions = [{"name": "large", "expression": "object.data.size == 'large'"}]
    new_policy = policy("Validating", "check", validations=[{"expression": "false"}], matchConditions=conditions)
    add_policy(api, new_policy)
    assert api.ask("POST", CONFIG_MAPS, config_map("a", size="large")).code == 422
    api.post(CONFIG_MAPS, config_map("b", size="small"))
    denied = api.ask("POST", CONFIG_MAPS, config_map("c", color="red"))
    text = "expression 'object.data.size == 'large'' resulted in error: no such key: size"
    assert denied.body["message"].endswith(f"denied request: {text}")


def test_policy_without_binding_and_policies_themselves_are_exempt() -> None:
    api = Api()
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}
    new_policy = policy("Validating", "check", rule, validations=[{"expression": "false"}])
    api.post(f"{GROUP}/validatingadmissionpolicies", new_policy)
    api.post(CONFIG_MAPS, config_map())
    api.post(f"{GROUP}/validatingadmissionpolicybindings", binding("Validating", "check"))
    assert api.ask("POST", CONFIG_MAPS, config_map("b")).code == 422
    assert api.ask("DELETE", f"{GROUP}/validatingadmissionpolicies/check").code == 200


PARAM_KIND = {"apiVersion": "v1", "kind": "ConfigMap"}


def api_with_params(action: str, **reference: Any) -> Api:
    """An API server with a policy that limits `data.size` of Secrets by the ConfigMaps that its binding selects."""
    api = Api()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"]}
    validations = [{"expression": "object.type == params.data.type", "messageExpression": "'not ' + params.data.type"}]
    new_policy = policy("Validating", "check", rule, paramKind=PARAM_KIND, validations=validations)
    add_policy(api, new_policy, paramRef={"parameterNotFoundAction": action, **reference})
    return api


def test_params_come_from_namespace_of_request_or_of_reference() -> None:
    api = api_with_params("Allow", name="limits")
    assert secret_error(api) == ""
    api.post(CONFIG_MAPS, config_map("limits", type="a"))
    assert secret_error(api).endswith("denied request: not a")
    api = api_with_params("Deny", name="limits", namespace="team")
    text = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    assert secret_error(api).endswith(f"denied request: {text}")


def test_all_selected_params_are_checked() -> None:
    api = api_with_params("Deny", selector={"matchLabels": {"a": "b"}})
    api.post(CONFIG_MAPS, config_map("x", {"a": "b"}, type="Opaque"))
    assert secret_error(api) == ""
    api.post(CONFIG_MAPS, config_map("y", {"a": "b"}, type="z"))
    assert secret_error(api).endswith("denied request: not z")


def secret_error(api: Api) -> str:
    """The error of creating a Secret without storing it, or ''."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "s-"}}
    response = api.ask("POST", "/api/v1/namespaces/default/secrets?dryRun=All", secret)
    return "" if response.code == 201 else str(response.body["message"])


def mutating_api(*expressions: str, **spec: Any) -> Api:
    """An API server with a MutatingAdmissionPolicy `complete` of apply configurations."""
    api = Api()
    mutations = [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": each}} for each in expressions
    ]
    add_policy(api, policy("Mutating", "complete", **{"mutations": mutations, "reinvocationPolicy": "Never", **spec}))
    return api


def test_mutation_of_undeclared_field_is_denied() -> None:
    denied = mutating_api("Object{spec: Object.spec{a: 1}}").ask("POST", CONFIG_MAPS, config_map())
    assert (denied.code, denied.body["reason"]) == (403, "Invalid")
    problem = "failed to convert patch object to typed object: .spec: field not declared in schema"
    text = f"policy 'complete' with binding 'complete' denied request: error applying patch: {problem}"
    assert denied.body["message"] == text


def test_type_name_of_literal_must_match_its_field() -> None:
    denied = mutating_api("Object{metadata: Object.spec{}}").ask("POST", CONFIG_MAPS, config_map())
    expected = 'expected "Object.metadata", which matches field name path from root Object type'
    assert denied.body["message"].endswith(f'type mismatch: unexpected type name "Object.spec", {expected}')


def test_mutations_run_in_order_and_see_variables_and_earlier_changes() -> None:
    first = 'Object{data: {"count": string(variables.count)}}'
    second = 'Object{data: {"copy": object.data.count}}'
    variables = [{"name": "count", "expression": "size(object.data)"}]
    api = mutating_api(first, second, variables=variables)
    assert api.post(CONFIG_MAPS, config_map(a="b"))["data"] == {"a": "b", "count": "1", "copy": "1"}


def test_policy_is_reinvoked_after_change_of_later_policy() -> None:
    for reinvocation, count in (("Never", "1"), ("IfNeeded", "2")):
        expression = 'Object{data: {"count": string(size(object.data.filter(k, k != "count")))}}'
        api = mutating_api(expression, reinvocationPolicy=reinvocation)
        patch = {"patchType": "JSONPatch", "jsonPatch": {"expression": LATER_PATCH}}
        add_policy(api, policy("Mutating", "later", mutations=[patch], reinvocationPolicy="Never"))
        assert api.post(CONFIG_MAPS, config_map(a="b"))["data"] == {"a": "b", "count": count, "later": "x"}


LATER_PATCH = '[JSONPatch{op: "add", path: "/data/" + jsonpatch.escapeKey("later"), value: "x"}]'


def test_failed_test_operation_leaves_object_unchanged() -> None:
    api = Api()
    expression = '[JSONPatch{op: "test", path: "/data/a", value: "z"}, JSONPatch{op: "remove", path: "/data/a"}]'
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    add_policy(api, policy("Mutating", "complete", mutations=[mutation], reinvocationPolicy="Never"))
    assert api.post(CONFIG_MAPS, config_map(a="b"))["data"] == {"a": "b"}


def test_mutated_fields_have_no_owner() -> None:
    api = mutating_api('Object{data: {"size": "small"}}')
    (entry,) = api.post(CONFIG_MAPS, config_map(a="b"))["metadata"]["managedFields"]
    assert entry["fieldsV1"]["f:data"] == {".": {}, "f:a": {}}


def test_update_is_mutated() -> None:
    api = Api()
    api.post(CONFIG_MAPS, config_map(a="b"))
    expression = '[JSONPatch{op: "replace", path: "/data/a", value: oldObject.data.a + object.data.a}]'
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    conditions = [{"name": "update", "expression": "request.operation == 'UPDATE'"}]
    spec: dict[str, Any] = {"mutations": [mutation], "reinvocationPolicy": "Never", "matchConditions": conditions}
    add_policy(api, policy("Mutating", "complete", **spec))
    updated = api.ask("PUT", f"{CONFIG_MAPS}/a", config_map(a="c"))
    assert (updated.code, updated.body["data"]) == (200, {"a": "bc"})


def test_large_create_is_validated_outside_and_denied() -> None:
    api = api_with_validation("object == null || object.data.size != 'large'")
    waiting = WaitingExecutor()
    api.server.set_write_executor(waiting)
    api.admit_by_policies(waiting)
    api.post(CONFIG_MAPS, config_map("a", size="small"))
    answer = api.answer("POST", CONFIG_MAPS, config_map("a", size="large", text="x" * INLINE_BODY_MAX))
    assert isinstance(answer, DeferredResponse)
    responses: list[Any] = []
    answer.then(responses.append)
    waiting.prepare()
    api.ask("DELETE", f"{CONFIG_MAPS}/a")
    waiting.finish()
    waiting.prepare()
    waiting.finish()
    assert responses[0].code == 422
    assert api.ask("GET", f"{CONFIG_MAPS}/a").code == 404


class WaitingExecutor:
    """An executor that prepares a write, and reports the result, when the test says so."""

    def submit(self, user: UserInfo, work: Callable[[], bytes], done: Callable[[bytes | StatusError], None]) -> None:
        del user
        self._work, self._done = work, done

    def prepare(self) -> None:
        self._result = self._work()

    def finish(self) -> None:
        self._done(self._result)


def author_of_policies(api: Api) -> UserInfo:
    """A user who may create ValidatingAdmissionPolicies and their bindings."""
    kinds = "validatingadmissionpolicies validatingadmissionpolicybindings"
    grant(api, "author", roles.rule("create", kinds, API_VERSION.partition("/")[0]))
    return UserInfo("ann", ())


def grant(api: Api, name: str, rule: Mapping[str, Any]) -> None:
    """Grant the user `ann` a rule."""
    for obj in (roles.role(name, dict(rule)), roles.binding(name, f"ClusterRole/{name}", roles.user("ann"))):
        api.stored.store.put(key_of(obj), obj)


def test_author_of_policy_must_be_allowed_to_read_all_params() -> None:
    api, path = Api(), f"{GROUP}/validatingadmissionpolicies"
    ann = author_of_policies(api)
    new_policy = policy("Validating", "check", paramKind=PARAM_KIND, validations=[{"expression": "true"}])
    denied = api.ask("POST", path, new_policy, user=ann)
    text = 'user ann must have "get" permission on all objects of the referenced paramKind'
    assert denied.code == 403
    assert denied.body["message"].endswith(f"forbidden: {text} (kind=ConfigMap, apiVersion=v1)")
    grant(api, "reader", roles.rule("get", "configmaps"))
    assert api.ask("POST", path, new_policy, user=ann).code == 201


def test_author_of_binding_must_be_allowed_to_read_its_params() -> None:
    api, path = Api(), f"{GROUP}/validatingadmissionpolicybindings"
    ann = author_of_policies(api)
    new_policy = policy("Validating", "check", paramKind=PARAM_KIND, validations=[{"expression": "true"}])
    api.post(f"{GROUP}/validatingadmissionpolicies", new_policy)
    reference = {"name": "a", "namespace": "default", "parameterNotFoundAction": "Deny"}
    new_binding = binding("Validating", "check", paramRef=reference)
    denied = api.ask("POST", path, new_binding, user=ann)
    assert denied.code == 403
    assert denied.body["message"].endswith('does not have "get" permission on the object referenced by paramRef')
    grant(api, "reader", roles.rule("get", "configmaps", names="a"))
    assert api.ask("POST", path, new_binding, user=ann).code == 201
