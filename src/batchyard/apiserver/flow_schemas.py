"""FlowSchemas: which requests match, the order of matching, the provided objects, and the condition Dangling.

Sources: k8s.io/apiserver, pkg/util/flowcontrol (rule.go, apf_controller.go); Kubernetes's pkg/registry/flowcontrol.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.times import format_time
from batchyard.api.validation.flow_control import (
    AUTO_UPDATE_ANNOTATION,
    CATCH_ALL,
    EXEMPT,
    MANDATORY_NAMES,
    provided_flow_objects,
)
from batchyard.apiserver.aggregation.aggregated_apis import aggregated_attributes
from batchyard.apiserver.auth.authorization import RequestAttributes, attributes_of
from batchyard.apiserver.request import ApiRequest, StatusError, UserInfo, service_account_of
from batchyard.apiserver.resources import Resources, parse_resource_path
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, ObjectReader, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

KINDS: Final = (scheme.FLOW_SCHEMA, scheme.PRIORITY_LEVEL)
#: Maximum number of users whose rules are cached.
_CACHED_USERS_MAX: Final = 1024
_ALL_ONLY: Final = ("*",)


class FlowSchema(NamedTuple):
    """The fields of a FlowSchema that decide how its requests are served."""

    name: str
    uid: str
    precedence: int
    level: str
    #: What distinguishes flows: ByUser, ByNamespace or nothing.
    method: str
    rules: Sequence[Mapping[str, Any]]

    def flow_hash(self, distinguisher: str) -> int:
        """Return the hash of a flow, which selects the hand of its queues."""
        digest = hashlib.sha256(f"{self.name}\0{distinguisher}".encode()).digest()
        return int.from_bytes(digest[:8], "little")


class _Candidate(NamedTuple):
    """A rule of a FlowSchema with a subject that matches the user."""

    schema: FlowSchema
    rule: Mapping[str, Any]
    matches_all: bool
    #: A matching request has a path that starts with one of these texts.
    path_starts: tuple[str, ...]


class FlowSchemaMatcher:
    """The FlowSchemas whose priority level exists, in the order of matching, and the rules of recent users."""

    def __init__(self, objects: Iterable[meta.Obj], levels: Iterable[str]) -> None:
        known_levels = frozenset(levels)
        provided = [each for each in provided_flow_objects() if each["kind"] == "FlowSchema"]
        mandatory = {o["metadata"]["name"]: o for o in provided if o["metadata"]["name"] in MANDATORY_NAMES}
        by_name = {**mandatory, **{obj["metadata"]["name"]: obj for obj in objects}}
        schemas = [schema for schema in map(_parse_schema, by_name.values()) if schema.level in known_levels]
        self._schemas = sorted(schemas, key=lambda each: (each.precedence, each.name))
        self._catch_all = _parse_schema(by_name[CATCH_ALL])
        self._candidates: dict[tuple[str, tuple[str, ...]], Sequence[_Candidate]] = {}

    def find_schema(self, user: UserInfo, path: str, read_attributes: Callable[[], RequestAttributes]) -> FlowSchema:
        """Return the first FlowSchema that matches a request; `read_attributes` is called only if they decide."""
        attributes = None
        for candidate in self._candidates_of(user):
            if candidate.matches_all:
                return candidate.schema
            if not path.startswith(candidate.path_starts):
                continue
            attributes = attributes or read_attributes()
            if _matches_rule(candidate.rule, attributes):
                return candidate.schema
        return self._catch_all

    def _candidates_of(self, user: UserInfo) -> Sequence[_Candidate]:
        key = user.name, user.groups
        candidates = self._candidates.get(key)
        if candidates is None:
            if len(self._candidates) >= _CACHED_USERS_MAX:
                self._candidates.clear()
            candidates = self._candidates[key] = list(self._find_candidates(user))
        return candidates

    def _find_candidates(self, user: UserInfo) -> Iterable[_Candidate]:
        for schema in self._schemas:
            for rule in schema.rules:
                if any(_is_subject(user, subject) for subject in rule.get("subjects") or ()):
                    matches_all = _matches_all(rule)
                    yield _Candidate(schema, rule, matches_all, _path_starts(rule))
                    if matches_all:
                        return


def _parse_schema(obj: meta.Obj) -> FlowSchema:
    spec, metadata = obj["spec"], obj["metadata"]
    method = (spec.get("distinguisherMethod") or {}).get("type") or ""
    level = spec["priorityLevelConfiguration"]["name"]
    rules = spec.get("rules") or ()
    return FlowSchema(metadata["name"], metadata.get("uid", ""), spec["matchingPrecedence"], level, method, rules)


def _is_subject(user: UserInfo, subject: Mapping[str, Any]) -> bool:
    match subject["kind"]:
        case "User":
            return subject["user"]["name"] in {"*", user.name}
        case "Group":
            return subject["group"]["name"] in ("*", *user.groups)
    account, fields = service_account_of(user.name), subject["serviceAccount"]
    return account is not None and account[0] == fields["namespace"] and fields["name"] in {"*", account[1]}


def _matches_all(rule: Mapping[str, Any]) -> bool:
    """Return whether a rule matches all requests of its subjects."""
    fields = ("verbs", "apiGroups", "resources", "namespaces")
    for each in rule.get("resourceRules") or ():
        if each.get("clusterScope") and all(tuple(each.get(field) or ()) == _ALL_ONLY for field in fields):
            return any(
                tuple(other["verbs"]) == _ALL_ONLY and tuple(other["nonResourceURLs"]) == _ALL_ONLY
                for other in rule.get("nonResourceRules") or ()
            )
    return False


def _matches_rule(rule: Mapping[str, Any], attributes: RequestAttributes) -> bool:
    if attributes.resource:
        return any(_matches_resource_rule(each, attributes) for each in rule.get("resourceRules") or ())
    return any(
        _contains(each["verbs"], attributes.verb) and _matches_urls(each["nonResourceURLs"], attributes.path)
        for each in rule.get("nonResourceRules") or ()
    )


def _path_starts(rule: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how the paths of matching requests start; an empty text stands for all paths."""
    if rule.get("resourceRules"):
        return ("",)
    urls = [url for each in rule.get("nonResourceRules") or () for url in each["nonResourceURLs"]]
    return tuple(url.removesuffix("*").removesuffix("/") for url in urls)


def _matches_resource_rule(rule: Mapping[str, Any], attributes: RequestAttributes) -> bool:
    resource = attributes.resource
    if attributes.subresource:
        resource = f"{resource}/{attributes.subresource}"
    if not (_contains(rule["verbs"], attributes.verb) and _contains(rule["resources"], resource)):
        return False
    if not _contains(rule["apiGroups"], attributes.group):
        return False
    if not attributes.namespace:
        return bool(rule.get("clusterScope"))
    return _contains(rule.get("namespaces") or (), attributes.namespace)


def _contains(values: Sequence[str], value: str) -> bool:
    return value in values or tuple(values) == _ALL_ONLY


def _matches_urls(urls: Sequence[str], path: str) -> bool:
    return any(url in {"*", path} or path.startswith(f"{url.removesuffix('*').removesuffix('/')}/") for url in urls)


def flow_attributes(
    resources: Resources, impersonate: Callable[[ApiRequest], ApiRequest], request: ApiRequest
) -> RequestAttributes:
    """Return the attributes of a request with the impersonated user, if the impersonation is allowed."""
    path = parse_resource_path(resources, request.path)
    with suppress(StatusError):
        request = impersonate(request)
    if path is None and request.path.startswith("/apis/"):
        return aggregated_attributes(request)
    return attributes_of(request, path)


def deal_hand(hash_value: int, deck_size: int, hand_size: int) -> list[int]:
    """Return `hand_size` different numbers below `deck_size` that a hash selects (shuffle sharding)."""
    hand: list[int] = []
    remainders: list[int] = []
    for index in range(hand_size):
        hash_value, remainder = divmod(hash_value, deck_size - index)
        card = remainder
        for earlier in reversed(remainders):
            if card >= earlier:
                card += 1
        remainders.append(remainder)
        hand.append(card)
    return hand


class FlowSchemaController:
    """Controller that keeps the provided objects, and sets the condition Dangling of FlowSchemas."""

    name = "priority-and-fairness"
    rank = 0
    kinds: Sequence[str] = KINDS

    def __init__(self) -> None:
        self._provided = {meta.key_of(obj): obj for obj in provided_flow_objects()}
        self._schemas: dict[meta.Key, str] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of the object, and of the FlowSchemas that refer to a changed priority level."""
        key = event.key
        if key.kind == scheme.FLOW_SCHEMA:
            if event.type is EventType.DELETED:
                self._schemas.pop(key, None)
            else:
                self._schemas[key] = event.obj["spec"]["priorityLevelConfiguration"]["name"]
            return (key,)
        if event.type is EventType.MODIFIED:
            return (key,)
        return (key, *(schema for schema, level in self._schemas.items() if level == key.name))

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create or restore a provided object, or update the status of a FlowSchema."""
        obj, provided = reader.get(key), self._provided.get(key)
        if obj is None:
            return ReconcileResult([] if provided is None else [Create(provided)])
        if "deletionTimestamp" in obj["metadata"]:
            return ReconcileResult()
        is_fixed = provided is not None and meta.annotation(obj, AUTO_UPDATE_ANNOTATION) == "true"
        if provided is not None and is_fixed and obj["spec"] != provided["spec"]:
            return ReconcileResult([Update({**obj, "spec": provided["spec"]})])
        if key.kind != scheme.FLOW_SCHEMA:
            return ReconcileResult()
        level = obj["spec"]["priorityLevelConfiguration"]["name"]
        is_dangling = reader.get(meta.Key(scheme.PRIORITY_LEVEL, "", level)) is None
        status = _dangling_status(obj, level, now, is_dangling=is_dangling)
        return ReconcileResult([] if status is None else [UpdateStatus(meta.with_status(obj, status))])


def _dangling_status(obj: meta.Obj, level: str, now: Instant, *, is_dangling: bool) -> Mapping[str, Any] | None:
    """Return the status with the condition Dangling; None if it is up to date."""
    status = obj.get("status") or {}
    object_text = f'This FlowSchema references the PriorityLevelConfiguration object named "{level}"'
    reason, text = ("NotFound", "but there is no such object") if is_dangling else ("Found", "and it exists")
    values = {"status": str(is_dangling), "reason": reason, "message": f"{object_text} {text}"}
    conditions = [each for each in status.get("conditions") or () if each["type"] != "Dangling"]
    old: Mapping[str, Any] = next((each for each in status.get("conditions") or () if each["type"] == "Dangling"), {})
    if values.items() <= old.items():
        return None
    is_changed = old.get("status") != values["status"]
    changed_at = format_time(now) if is_changed else old.get("lastTransitionTime", format_time(now))
    return {**status, "conditions": [*conditions, {"type": "Dangling", "lastTransitionTime": changed_at, **values}]}


def level_objects(reader: ObjectReader) -> dict[str, meta.Obj]:
    """Return the priority levels by name, with the mandatory ones even if they are not stored."""
    provided = [each for each in provided_flow_objects() if each["kind"] == "PriorityLevelConfiguration"]
    mandatory = {o["metadata"]["name"]: o for o in provided if o["metadata"]["name"] in MANDATORY_NAMES}
    return {**mandatory, **{obj["metadata"]["name"]: obj for obj in reader.list(scheme.PRIORITY_LEVEL)}}


def is_exempt(level: meta.Obj) -> bool:
    """Return whether a priority level has no limits."""
    return bool(level["spec"].get("type") == "Exempt") or level["metadata"]["name"] == EXEMPT
