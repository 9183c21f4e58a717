"""FlowSchemas and PriorityLevelConfigurations: the objects that the API server provides, and validation.

Sources: k8s.io/apiserver, pkg/apis/flowcontrol/bootstrap/default.go; Kubernetes's pkg/apis/flowcontrol/validation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import rules

EXEMPT: Final = "exempt"
CATCH_ALL: Final = "catch-all"
#: Objects with this annotation set to "true" keep the specification of this release.
AUTO_UPDATE_ANNOTATION: Final = "apf.kubernetes.io/autoupdate-spec"
MANDATORY_NAMES: Final = (EXEMPT, CATCH_ALL)

# The provided objects.


_API_VERSION: Final = "flowcontrol.apiserver.k8s.io/v1"
_BY_USER: Final = "ByUser"
_BY_NAMESPACE: Final = "ByNamespace"
_ALL_VERBS: Final = {"verbs": ["*"]}
_EVERYWHERE: Final = {"namespaces": ["*"], "clusterScope": True}
_ALL_RESOURCES: Final = {**_ALL_VERBS, "apiGroups": ["*"], "resources": ["*"], **_EVERYWHERE}
_EVERYTHING: Final = {"resourceRules": [_ALL_RESOURCES], "nonResourceRules": [{**_ALL_VERBS, "nonResourceURLs": ["*"]}]}
_PROBE_RULES: Final = {"nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]}
_LEASES: Final = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]}
_ELECTION_RULES: Final = {"resourceRules": [{"verbs": ["get", "create", "update"], **_LEASES}]}
_NODE_RULES: Final = {
    "resourceRules": [
        {**_ALL_RESOURCES, "apiGroups": [""], "resources": ["nodes", "nodes/status"]},
        {**_ALL_VERBS, **_LEASES},
    ]
}
#: The limited levels: name, shares, lendable percent, and the number of queues and the hand size (0: Reject).
_LEVELS: Final = (
    *((CATCH_ALL, 5, 0, 0, 0), ("system", 30, 33, 64, 6), ("node-high", 40, 25, 64, 6)),
    *(("leader-election", 10, 0, 16, 4), ("workload-high", 40, 50, 128, 6), ("workload-low", 100, 90, 128, 6)),
    ("global-default", 20, 50, 128, 6),
)
_QUEUE_LENGTH_LIMIT: Final = 50


def provided_flow_objects() -> list[dict[str, Any]]:
    """Return the mandatory and the suggested FlowSchemas and PriorityLevelConfigurations."""
    exempt = {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}
    levels = [_provided("PriorityLevelConfiguration", EXEMPT, exempt), *(_limited_level(*level) for level in _LEVELS)]
    return [*levels, *_provided_schemas()]


def _provided(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "annotations": {AUTO_UPDATE_ANNOTATION: "true"}}
    return {"apiVersion": _API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _limited_level(name: str, shares: int, lendable: int, queues: int, hand_size: int) -> dict[str, Any]:
    queuing = {"queues": queues, "handSize": hand_size, "queueLengthLimit": _QUEUE_LENGTH_LIMIT}
    response = {"type": "Queue", "queuing": queuing} if queues else {"type": "Reject"}
    limits = {"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response}
    return _provided("PriorityLevelConfiguration", name, {"type": "Limited", "limited": limits})


def _provided_schemas() -> Iterator[dict[str, Any]]:
    masters, nodes = _groups("system:masters"), _groups("system:nodes")
    everyone = _groups("system:unauthenticated", "system:authenticated")
    accounts = _groups("system:serviceaccounts")
    system_account = {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}}
    manager, scheduler = _user("system:kube-controller-manager"), _user("system:kube-scheduler")
    electors = [manager, scheduler, system_account]
    yield _schema(EXEMPT, EXEMPT, 1, "", masters, _EVERYTHING)
    yield _schema("probes", EXEMPT, 2, "", everyone, _PROBE_RULES)
    yield _schema("system-leader-election", "leader-election", 100, _BY_USER, electors, _ELECTION_RULES)
    yield _schema("system-node-high", "node-high", 400, _BY_USER, nodes, _NODE_RULES)
    yield _schema("system-nodes", "system", 500, _BY_USER, nodes, _EVERYTHING)
    yield _schema("kube-controller-manager", "workload-high", 800, _BY_NAMESPACE, [manager], _EVERYTHING)
    yield _schema("kube-scheduler", "workload-high", 800, _BY_NAMESPACE, [scheduler], _EVERYTHING)
    yield _schema("kube-system-service-accounts", "workload-high", 900, _BY_NAMESPACE, [system_account], _EVERYTHING)
    yield _schema("service-accounts", "workload-low", 9000, _BY_USER, accounts, _EVERYTHING)
    yield _schema("global-default", "global-default", 9900, _BY_USER, everyone, _EVERYTHING)
    yield _schema(CATCH_ALL, CATCH_ALL, 10000, _BY_USER, everyone, _EVERYTHING)


def _groups(*names: str) -> list[dict[str, Any]]:
    return [{"kind": "Group", "group": {"name": name}} for name in names]


def _user(name: str) -> dict[str, Any]:
    return {"kind": "User", "user": {"name": name}}


def _schema(
    name: str, level: str, precedence: int, method: str, subjects: Sequence[Obj], policy_rules: Obj
) -> dict[str, Any]:
    spec: dict[str, Any] = {"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence}
    if method:
        spec["distinguisherMethod"] = {"type": method}
    return _provided("FlowSchema", name, {**spec, "rules": [{"subjects": subjects, **policy_rules}]})


# Validation.


_PRECEDENCE_MAX: Final = 10000
_QUEUES_MAX: Final = 10_000_000
_HASH_BITS_MAX: Final = 60
_VERBS: Final = (*("create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"),)
_SUBJECT_FIELDS: Final = {"Group": "group", "ServiceAccount": "serviceAccount", "User": "user"}
_CHOOSE_VALUE: Final = "choose an allowed value"


def flow_object_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a FlowSchema or a PriorityLevelConfiguration; no field of them is immutable."""
    return flow_schema_errors(obj) if obj["kind"] == "FlowSchema" else priority_level_errors(obj)


def flow_schema_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a FlowSchema: its precedence, its priority level, and its rules."""
    yield from rules.metadata_errors(obj)
    spec, name = obj.get("spec") or {}, (obj.get("metadata") or {}).get("name")
    precedence, path = spec.get("matchingPrecedence", 0), "spec.matchingPrecedence"
    if precedence <= 0:
        yield rules.invalid(path, precedence, "must be a positive value", _CHOOSE_VALUE)
    if precedence > _PRECEDENCE_MAX:
        yield rules.invalid(path, precedence, f"must not be greater than {_PRECEDENCE_MAX}", _CHOOSE_VALUE)
    if precedence == 1 and name != EXEMPT:
        message = "only the schema named 'exempt' may have matchingPrecedence 1"
        yield rules.invalid(path, precedence, message, _CHOOSE_VALUE)
    method = spec.get("distinguisherMethod")
    if method is not None and method.get("type") not in {_BY_NAMESPACE, _BY_USER}:
        yield rules.unsupported("spec.distinguisherMethod.type", method, (_BY_NAMESPACE, _BY_USER))
    yield from _level_reference_errors((spec.get("priorityLevelConfiguration") or {}).get("name") or "")
    for index, policy_rule in enumerate(spec.get("rules") or ()):
        yield from _policy_rule_errors(policy_rule, f"spec.rules[{index}]")
    yield from _mandatory_errors("FlowSchema", name, spec)


def _level_reference_errors(level: str) -> Iterator[FieldError]:
    path = "spec.priorityLevelConfiguration.name"
    if not level:
        yield rules.required(path, "must reference a priority level", "name a PriorityLevelConfiguration")
    for message in rules.dns_subdomain_errors(level) if level else ():
        yield rules.invalid(path, level, message, "use the name of a PriorityLevelConfiguration")


def _mandatory_errors(kind: str, name: Any, spec: Mapping[str, Any]) -> Iterator[FieldError]:
    if name not in MANDATORY_NAMES:
        return
    fixed = next(o["spec"] for o in provided_flow_objects() if (o["kind"], o["metadata"]["name"]) == (kind, name))
    is_level, text = kind == "PriorityLevelConfiguration", f"spec of '{name}' must equal the fixed value"
    if is_level and name == EXEMPT:
        fixed, spec = {**fixed, "exempt": None}, {**spec, "exempt": None}
        text = f"spec of '{name}' except the 'spec.exempt' field must equal the fixed value"
    if spec != fixed:
        yield rules.invalid("spec", spec, text, "create an object with another name")


def _policy_rule_errors(policy_rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    subjects = policy_rule.get("subjects") or ()
    if not subjects:
        yield rules.required(f"{path}.subjects", "subjects must contain at least one value", "add a subject")
    for index, subject in enumerate(subjects):
        yield from _subject_errors(subject, f"{path}.subjects[{index}]")
    resource_rules, other_rules = policy_rule.get("resourceRules") or (), policy_rule.get("nonResourceRules") or ()
    if not resource_rules and not other_rules:
        message = "at least one of resourceRules and nonResourceRules has to be non-empty"
        yield rules.required(path, message, "add a rule")
    for index, rule in enumerate(resource_rules):
        yield from _resource_rule_errors(rule, f"{path}.resourceRules[{index}]")
    for index, rule in enumerate(other_rules):
        yield from _non_resource_rule_errors(rule, f"{path}.nonResourceRules[{index}]")


def _subject_errors(subject: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind = subject.get("kind")
    own_field = _SUBJECT_FIELDS.get(str(kind))
    if own_field is None:
        yield rules.unsupported(f"{path}.kind", kind, tuple(_SUBJECT_FIELDS))
        return
    value = subject.get(own_field)
    if value is None:
        yield rules.required(f"{path}.{own_field}", f"{own_field} is required when subject kind is '{kind}'", "set it")
    elif not value.get("name"):
        yield rules.required(f"{path}.{own_field}.name", "", "set the name")
    if value is not None and own_field == "serviceAccount" and not value.get("namespace"):
        message = "must specify namespace for service account"
        yield rules.required(f"{path}.serviceAccount.namespace", message, "set the namespace")
    for other_kind, field in _SUBJECT_FIELDS.items():
        if field != own_field and subject.get(field) is not None:
            message = f"{field} is forbidden when subject kind is not '{other_kind}'"
            yield rules.forbidden(f"{path}.{field}", message, "remove the field")


def _resource_rule_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _verb_errors(rule, path)
    for field, name in (("apiGroups", "api group"), ("resources", "resource")):
        message = f"resource rules must supply at least one {name}"
        yield from _wildcard_errors(rule.get(field) or (), f"{path}.{field}", message, f"{name}s")
    namespaces = rule.get("namespaces") or ()
    if namespaces or not rule.get("clusterScope"):
        message = "resource rules that are not cluster scoped must supply at least one namespace"
        yield from _wildcard_errors(namespaces, f"{path}.namespaces", message, "namespaces")
    for index, namespace in enumerate(namespaces if "*" not in namespaces else ()):
        for problem in rules.dns_label_errors(namespace):
            text = f"each member of this list must be '*' or a DNS-1123 label; {problem}"
            yield rules.invalid(f"{path}.namespaces[{index}]", namespace, text, _CHOOSE_VALUE)


def _non_resource_rule_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _verb_errors(rule, path)
    urls, url_path = rule.get("nonResourceURLs") or (), f"{path}.nonResourceURLs"
    yield from _wildcard_errors(urls, url_path, "nonResourceURLs must contain at least one value", "non-resource URLs")
    for index, url in enumerate(urls if "*" not in urls else ()):
        if problem := _url_problem(url):
            yield rules.invalid(f"{url_path}[{index}]", url, problem, _CHOOSE_VALUE)


def _verb_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    verbs, verbs_path = rule.get("verbs") or (), f"{path}.verbs"
    yield from _wildcard_errors(verbs, verbs_path, "verbs must contain at least one value", "verbs")
    if "*" not in verbs and not set(verbs) <= set(_VERBS):
        yield rules.unsupported(verbs_path, verbs, _VERBS)


def _wildcard_errors(values: Sequence[str], path: str, message: str, noun: str) -> Iterator[FieldError]:
    """Yield an error for an empty list, and for one with `*` and other values."""
    if not values:
        yield rules.required(path, message, "add a value, or `*`")
    elif "*" in values and len(values) > 1:
        text = f"if '*' is present, must not specify other {noun}"
        yield rules.invalid(path, list(values), text, "keep only `*`")


def _url_problem(url: str) -> str:
    if not url:
        return "must not be empty"
    if url == "/":
        return ""
    if not url.startswith("/"):
        return "must start with slash"
    if " " in url:
        return "must not contain white-space"
    if "//" in url:
        return "must not contain double slash"
    is_glob = url.count("*") <= 1 and ("*" not in url or url.endswith("/*"))
    return "" if is_glob else "wildcard can only do suffix matching"


def priority_level_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PriorityLevelConfiguration: its type, its shares and its queues."""
    yield from rules.metadata_errors(obj)
    spec, name = obj.get("spec") or {}, (obj.get("metadata") or {}).get("name")
    level_type, limited, exempt = (spec.get(field) for field in ("type", "limited", "exempt"))
    if (name == EXEMPT) != (level_type == "Exempt"):
        message = "must be 'Exempt' if and only if `name` is 'exempt'"
        yield rules.invalid("spec.type", level_type or "", message, _CHOOSE_VALUE)
    if level_type == "Exempt":
        if limited is not None:
            yield rules.forbidden("spec.limited", "must be nil if the type is not Limited", "remove the field")
        yield from _share_errors(exempt or {}, "spec.exempt")
    elif level_type == "Limited":
        if exempt is not None:
            yield rules.forbidden("spec.exempt", "must be nil if the type is Limited", "remove the field")
        if limited is None:
            yield rules.required("spec.limited", "must not be empty when type is Limited", "set the limits")
        else:
            yield from _limited_errors(limited)
    else:
        yield rules.unsupported("spec.type", level_type or "", ("Exempt", "Limited"))
    yield from _mandatory_errors("PriorityLevelConfiguration", name, spec)


def _share_errors(limits: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    shares, lendable = limits.get("nominalConcurrencyShares") or 0, limits.get("lendablePercent") or 0
    if shares < 0:
        yield rules.invalid(f"{path}.nominalConcurrencyShares", shares, "must be a non-negative integer", _CHOOSE_VALUE)
    if not 0 <= lendable <= 100:
        yield rules.invalid(f"{path}.lendablePercent", lendable, "must be between 0 and 100, inclusive", _CHOOSE_VALUE)


def _limited_errors(limited: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from _share_errors(limited, "spec.limited")
    borrowing = limited.get("borrowingLimitPercent")
    if borrowing is not None and borrowing < 0:
        message = "if specified, must be a non-negative integer"
        yield rules.invalid("spec.limited.borrowingLimitPercent", borrowing, message, _CHOOSE_VALUE)
    response, path = limited.get("limitResponse") or {}, "spec.limited.limitResponse"
    queuing, queuing_path = response.get("queuing"), f"{path}.queuing"
    if response.get("type") == "Reject":
        if queuing is not None:
            message = "must be nil if limited.limitResponse.type is not Limited"
            yield rules.forbidden(queuing_path, message, "remove the field")
    elif response.get("type") != "Queue":
        yield rules.unsupported(f"{path}.type", response.get("type") or "", ("Queue", "Reject"))
    elif queuing is None:
        message = "must not be empty if limited.limitResponse.type is Limited"
        yield rules.required(queuing_path, message, "set the queues")
    else:
        yield from _queuing_errors(queuing, queuing_path)


def _queuing_errors(queuing: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    length, queues, hand_size = (queuing.get(name, 0) for name in ("queueLengthLimit", "queues", "handSize"))
    if length <= 0:
        yield rules.invalid(f"{path}.queueLengthLimit", length, "must be positive", _CHOOSE_VALUE)
    if queues <= 0:
        yield rules.invalid(f"{path}.queues", queues, "must be positive", _CHOOSE_VALUE)
    elif queues > _QUEUES_MAX:
        yield rules.invalid(f"{path}.queues", queues, f"must not be greater than {_QUEUES_MAX}", _CHOOSE_VALUE)
    hand_path = f"{path}.handSize"
    if hand_size <= 0:
        yield rules.invalid(hand_path, hand_size, "must be positive", _CHOOSE_VALUE)
    elif hand_size > queues:
        yield rules.invalid(hand_path, hand_size, f"should not be greater than queues ({queues})", _CHOOSE_VALUE)
    elif math.ceil(math.log2(queues) * hand_size) > _HASH_BITS_MAX:
        message = f"required entropy bits of deckSize {queues} and handSize {hand_size} should not be greater than"
        yield rules.invalid(hand_path, hand_size, f"{message} {_HASH_BITS_MAX}", _CHOOSE_VALUE)
