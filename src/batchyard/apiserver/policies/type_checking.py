"""The status of ValidatingAdmissionPolicies: warnings about fields that the matched kinds do not have.

Sources: k8s.io/apiserver, pkg/admission/plugin/policy/validating/typechecking.go; Kubernetes's
pkg/controller/validatingadmissionpolicystatus/controller.go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_status
from batchyard.apiserver.patch import MergeSchema
from batchyard.apiserver.resources import Resource, Resources
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

#: The maximum number of kinds of one policy that are checked.
_TYPES_MAX: Final = 10
_OBJECT_VARIABLES: Final = ("object", "oldObject")


class PolicyStatusController:
    """Checks the expressions of each ValidatingAdmissionPolicy, and writes the result to its status."""

    name = "validatingadmissionpolicy-status"
    rank = 0
    kinds = (scheme.VALIDATING_POLICY,)

    def __init__(self, resources: Callable[[], Resources]) -> None:
        self._resources = resources

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a new or changed policy."""
        return () if event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Check a policy whose generation is newer than that of its status."""
        policy = reader.get(key)
        if policy is None:
            return ReconcileResult()
        status, generation = policy.get("status") or {}, policy["metadata"].get("generation", 0)
        if generation <= (status.get("observedGeneration") or 0):
            return ReconcileResult()
        warnings = list(expression_warnings(policy, self._resources().all()))
        type_checking = {"expressionWarnings": warnings} if warnings else {}
        new_status = {**status, "observedGeneration": generation, "typeChecking": type_checking}
        return ReconcileResult([UpdateStatus(with_status(policy, new_status))])


def expression_warnings(policy: Obj, resources: Sequence[Resource]) -> Iterator[Mapping[str, str]]:
    """Yield the warnings about the validations of a policy, with the paths of their expressions."""
    spec = policy["spec"]
    kinds = list(_matched_kinds(spec.get("matchConstraints") or {}, resources))
    param_kind = spec.get("paramKind") or {}
    params_schema = _schema_of(param_kind.get("apiVersion") or "", param_kind.get("kind") or "", resources)
    for index, validation in enumerate(spec.get("validations") or ()):
        for field in ("expression", "messageExpression"):
            problems = [
                f"{title}: compilation failed: {error}\n"
                for title, schema in kinds
                if (error := _type_error(validation.get(field) or "", schema, params_schema))
            ]
            if problems:
                yield {"fieldRef": f"spec.validations[{index}].{field}", "warning": "\n".join(problems)}


def _matched_kinds(constraints: Mapping[str, Any], resources: Sequence[Resource]) -> Iterator[tuple[str, MergeSchema]]:
    """Yield the kinds that the rules of a policy name, and their schemas, sorted; rules with wildcards name none."""
    kinds: dict[tuple[str, str, str], MergeSchema] = {}
    for rule in constraints.get("resourceRules") or ():
        groups, versions, plurals = (rule.get(field) or () for field in ("apiGroups", "apiVersions", "resources"))
        if any("*" in value for value in (*groups, *versions, *plurals)):
            continue
        for resource in resources:
            served_kind = resource.served_kind
            if served_kind.group not in groups or served_kind.plural not in plurals:
                continue
            for version in served_kind.versions:
                if version in versions and len(kinds) < _TYPES_MAX:
                    kinds[served_kind.group, version, served_kind.kind] = resource.merge_schema(version)
    for (group, version, kind), schema in sorted(kinds.items(), key=lambda item: item[0]):
        yield f"{group}/{version}, Kind={kind}", schema


def _schema_of(api_version: str, kind: str, resources: Sequence[Resource]) -> MergeSchema | None:
    for resource in resources:
        if resource.served_kind.kind == kind and (version := resource.served_kind.version_of(api_version)):
            return resource.merge_schema(version)
    return None


def _type_error(expression: str, schema: MergeSchema, params_schema: MergeSchema | None) -> str:
    """Return the errors of fields that the schema of a variable does not have, as cel-go formats them; '' if none."""
    from batchyard.apiserver.policies.expressions import member_chains, position_error  # noqa: PLC0415 - loads CEL

    errors = []
    for chain in member_chains(expression):
        root = chain.names[0] if chain.names else ""
        current = schema if root in _OBJECT_VARIABLES else params_schema if root == "params" else None
        for name, dot in zip(chain.names[1:], chain.dots, strict=True):
            if current is None or not current.members.fields:
                break
            if not current.allows_field(name):
                errors.append(position_error(expression, dot, f"undefined field '{name}'"))
                break
            current = current.field_schema(name)
    return "\n".join(errors)
