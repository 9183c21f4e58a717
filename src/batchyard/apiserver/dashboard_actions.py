"""Actions of the dashboard: suspend, resume, cancel and reprioritize a Workload; stop and resume a queue.

Each action is one write of the API, which this server executes as the user of the page: RBAC, admission and the audit
log apply to it as to a request of kubectl. The body of an action request has the action, the object and a value.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.meta import JOB_KINDS, Key, Obj, key_of
from batchyard.api.validation import rules
from batchyard.apiserver.auth.authorization import Authorizer, RequestAttributes
from batchyard.apiserver.request import (
    JSON,
    MERGE_PATCH,
    AnyResponse,
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
    bad_request,
    has_read_only_token,
)
from batchyard.interfaces.client import ObjectReader
from batchyard.scheduling.workload.adjustments import follows_priority_label
from batchyard.scheduling.workload.lifecycle import has_quota_reservation, is_active, is_finished

#: The header of the action token, which pages of other sites can neither read nor send.
ACTION_TOKEN_HEADER: Final = "x-batchyard-action-token"  # noqa: S105 - a header's name
#: The maximum size of an action's body in bytes.
ACTION_BODY_MAX: Final = 4096
#: The maximum number of priority classes that are offered as values.
_CLASSES_MAX: Final = 200
_AUDIT_ANNOTATION: Final = "batchyard.dev/page-action"
_RESPONSE_HEADERS: Final = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))
_KINDS: Final = {"Workload": scheme.WORKLOAD, "ClusterQueue": scheme.CLUSTER_QUEUE, "LocalQueue": scheme.LOCAL_QUEUE}

SUSPEND, RESUME, CANCEL, PRIORITY, STOP = "suspend", "resume", "cancel", "priority", "stop"
_HOLD: Final = "Hold"
_STOP_POLICIES: Final = (_HOLD, "HoldAndDrain")
#: The owners that are deleted or changed in place of their Workload. Users write owner references, so an owner of
#: another kind, such as a Secret, is not changed.
_OWNER_KINDS: Final = (*JOB_KINDS, scheme.POD)


class ActionTokens(Protocol):
    """Issues and checks action tokens, which protect users against forged requests of other sites."""

    def issue_action_token(self, user: UserInfo) -> str:
        """Return an action token for a user, valid for some minutes."""

    def is_action_token(self, token: str, user: UserInfo) -> bool:
        """Return whether a token is a valid action token of a user."""


class ActionBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The body of an action request. `uid` identifies the object that the user saw; `value` depends on the action."""

    action: str
    kind: str
    name: str
    uid: str
    namespace: str = ""
    value: str = ""


_decode_body = msgspec.json.Decoder(ActionBody).decode


class PlannedWrite(NamedTuple):
    """The API write that executes a dashboard action: HTTP method, target, and body."""

    method: str
    target: Key
    body: Mapping[str, Any]

    @property
    def verb(self) -> str:
        """The verb that RBAC requires on the target."""
        return self.method.lower()

    @property
    def target_text(self) -> str:
        """The kind, namespace and name of the target."""
        return f"{scheme.kind_info(self.target.kind).kind} {self.target}"


class PlannedAction(NamedTuple):
    """An action that a dashboard user requested: its name, its API write, and its text in the audit log."""

    name: str
    write: ApiRequest
    audit_text: str

    def outcome(self, response: Response) -> Response:
        """Return the response to the action, from the response to its write."""
        annotations = {_AUDIT_ANNOTATION: self.audit_text}
        if response.code >= 400:
            return response._replace(annotations=annotations, headers=_RESPONSE_HEADERS)
        document = {"done": self.name, "warnings": list(response.warnings)}
        return Response(200, document, annotations=annotations, headers=_RESPONSE_HEADERS)


class DashboardActions:
    """The handlers that offer and execute the actions of dashboard users."""

    def __init__(self, objects: ObjectReader, authorizer: Authorizer, tokens: ActionTokens) -> None:
        self._objects = objects
        self._authorizer = authorizer
        self._tokens = tokens

    def list_allowed_actions(self, request: ApiRequest) -> Response:
        """Return the actions on an object that the user may perform now, and an action token.

        A user with a read-only token gets no actions and no action token. Raises StatusError if the object does not
        exist or the user may not get it.
        """
        query, user = request.query, request.user
        obj = self._find_object(user, query.get("kind", ""), query.get("namespace", ""), query.get("name", ""))
        is_read_only = has_read_only_token(user)
        offered_actions = [] if is_read_only else [self._offered_action(user, obj, name) for name in _actions_of(obj)]
        document = {
            "uid": obj["metadata"]["uid"],
            "readOnly": is_read_only,
            "actions": [action for action in offered_actions if action is not None],
            "token": "" if is_read_only else self._tokens.issue_action_token(user),
        }
        return Response(200, document, headers=_RESPONSE_HEADERS)

    def perform(self, request: ApiRequest, execute: Callable[[ApiRequest], AnyResponse]) -> AnyResponse:
        """Execute an action as the user of the request; return its name and the warnings of its write.

        `execute` answers the API request of the write as its user, with all checks. If the write fails or is deferred,
        return the response to the write instead. Raises StatusError as `plan`.
        """
        planned_action = self.plan(request)
        response = execute(planned_action.write)
        if not isinstance(response, Response):
            return response  # a large object is written asynchronously
        return planned_action.outcome(response)

    def plan(self, request: ApiRequest) -> PlannedAction:
        """Return the write that executes an action.

        Raises StatusError if the request is malformed or not from the page, the object is missing or was replaced, or
        the action is not possible.
        """
        check_request_origin(request)
        if not self._tokens.is_action_token(request.headers.get(ACTION_TOKEN_HEADER, ""), request.user):
            raise StatusError(403, "Forbidden", "the action token is missing or has expired: reload the page")
        body = _read_body(request)
        obj = self._find_object(request.user, body.kind, body.namespace, body.name)
        if obj["metadata"]["uid"] != body.uid:
            raise StatusError(409, "Conflict", f"{body.kind} {body.name} was replaced meanwhile: reload the page")
        if body.action not in _actions_of(obj):
            problem = f"{body.action} is not possible in the current state of {body.kind} {body.name}"
            raise StatusError(409, "Conflict", f"{problem}: reload the page")
        planned_write = self._plan_write(request.user, obj, body.action, body.value)
        value = body.value if body.action in {PRIORITY, STOP} else ""  # other actions ignore it
        audit_text = f"{body.action} {body.kind} {key_of(obj)} {value}".rstrip()
        if planned_write.target != key_of(obj):
            audit_text += f" (by {planned_write.verb} of {planned_write.target_text})"
        return PlannedAction(body.action, _write_request(planned_write, request), audit_text)

    def _find_object(self, user: UserInfo, kind: str, namespace: str, name: str) -> Obj:
        """Return the object on which a user requests an action.

        Raises StatusError (404) if the object does not exist or the user may not get it; both look the same.
        """
        constant = _KINDS.get(kind)
        obj = None if constant is None else self._visible_object(user, Key(constant, namespace, name))
        if obj is None:
            raise StatusError(404, "NotFound", f"{kind} {name} not found, or not visible to you: reload the page")
        return obj

    def _visible_object(self, user: UserInfo, key: Key) -> Obj | None:
        """Return the object with a key, or None; without the right to get it, whether it exists has no effect."""
        is_valid = not rules.dns_subdomain_errors(key.name) and len(key.namespace) <= rules.SUBDOMAIN_LENGTH_MAX
        return self._objects.get(key) if is_valid and self._is_allowed(user, "get", key) else None

    def _is_allowed(self, user: UserInfo, verb: str, target: Key) -> bool:
        kind = scheme.kind_info(target.kind)
        attributes = RequestAttributes(user, verb, kind.group, kind.plural, "", target.namespace, target.name)
        return self._authorizer.decide(attributes).allowed

    def _offered_action(self, user: UserInfo, obj: Obj, action: str) -> dict[str, Any] | None:
        values = self._action_values(user, action)
        try:
            planned_write = self._plan_write(user, obj, action, values[0] if values else "")
        except StatusError:
            return None
        if not self._is_allowed(user, planned_write.verb, planned_write.target):
            return None
        return {"name": action, "values": values, "target": planned_write.target_text}

    def _action_values(self, user: UserInfo, action: str) -> list[str]:
        if action == STOP:
            return list(_STOP_POLICIES)
        if action != PRIORITY or not self._is_allowed(user, "list", Key(scheme.WORKLOAD_PRIORITY_CLASS, "", "")):
            return []
        classes = self._objects.list(scheme.WORKLOAD_PRIORITY_CLASS)[:_CLASSES_MAX]
        return [str(each["metadata"]["name"]) for each in sorted(classes, key=lambda each: -each["value"])]

    def _plan_write(self, user: UserInfo, obj: Obj, action: str, value: str) -> PlannedWrite:
        if action == CANCEL:
            return _plan_deletion(obj)
        if action == PRIORITY:
            return self._plan_priority_change(user, obj, value)
        if action == STOP:
            if value not in _STOP_POLICIES:
                raise bad_request(f"value: must be one of {', '.join(_STOP_POLICIES)}, is {value!r}")
            return _plan_patch(obj, {"stopPolicy": value})
        if obj["kind"] == "Workload":
            return _plan_patch(obj, {"active": action == RESUME})
        return _plan_patch(obj, {"stopPolicy": "None"})

    def _plan_priority_change(self, user: UserInfo, workload: Obj, class_name: str) -> PlannedWrite:
        if not follows_priority_label(workload, has_quota_reservation(workload)):
            has_pod_class = workload["spec"].get("priorityClassRef") is not None
            pod_class_text = "it comes from the PriorityClass of its pods: cancel its job, and create it with another"
            no_class_text = "it holds quota without a WorkloadPriorityClass: stop it first"
            message = pod_class_text if has_pod_class else no_class_text
            raise StatusError(
                409, "Conflict", f"the priority of Workload {workload['metadata']['name']} cannot be changed: {message}"
            )
        owner = _owner_key(workload)
        if not class_name:  # offered without values: the user types the name
            return PlannedWrite("PATCH", owner or key_of(workload), {})
        priority_class = self._find_priority_class(user, class_name)
        if owner is not None:
            metadata = {"uid": _owner_reference(workload)["uid"], "labels": {well_known.PRIORITY_CLASS: class_name}}
            return PlannedWrite("PATCH", owner, {"metadata": metadata})
        if priority_class is None:
            raise _no_priority_class_error(class_name)
        kind, _, group = scheme.WORKLOAD_PRIORITY_CLASS.partition(".")
        reference = {"group": group, "kind": kind, "name": class_name}
        return _plan_patch(workload, {"priority": priority_class["value"], "priorityClassRef": reference})

    def _find_priority_class(self, user: UserInfo, name: str) -> Obj | None:
        """Return a WorkloadPriorityClass, or None if the user may not get it: existing and missing ones look the same.

        Raises StatusError (404) if it does not exist and the user may get it, or if the name is invalid.
        """
        key = Key(scheme.WORKLOAD_PRIORITY_CLASS, "", name)
        if rules.dns_subdomain_errors(name):
            raise _no_priority_class_error(name)
        if not self._is_allowed(user, "get", key):
            return None
        priority_class = self._objects.get(key)
        if priority_class is None:
            raise _no_priority_class_error(name)
        return priority_class


def _no_priority_class_error(name: str) -> StatusError:
    problem = f"value: WorkloadPriorityClass {name!r} not found, or not visible to you"
    return StatusError(404, "NotFound", f"{problem}: use another, or create it")


def check_request_origin(request: ApiRequest) -> None:
    """Raise StatusError if a request can come from a page of another site.

    The content type must be JSON (else 415), which forms and simple requests of other sites cannot have. The Origin
    header, if present, must name this host, and Sec-Fetch-Site, if present, must be `same-origin` (else 403).
    """
    origin, fetch_site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    is_same_origin = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_same_origin or fetch_site != "same-origin":
        raise StatusError(403, "Forbidden", "actions are accepted only from the page of this server")
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise StatusError(415, "UnsupportedMediaType", f"the content type must be {JSON}")


def _read_body(request: ApiRequest) -> ActionBody:
    if len(request.body) > ACTION_BODY_MAX:
        raise StatusError(413, "RequestEntityTooLarge", f"the body has more than {ACTION_BODY_MAX} bytes")
    try:
        return _decode_body(request.body)
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_request(f"invalid action: {error}") from error


def _actions_of(obj: Obj) -> Iterator[str]:
    if obj["kind"] != "Workload":
        stop_policy = obj["spec"].get("stopPolicy") or "None"
        yield from () if stop_policy == _STOP_POLICIES[-1] else (STOP,)
        yield from () if stop_policy == "None" else (RESUME,)
    elif not is_finished(obj):
        yield SUSPEND if is_active(obj) else RESUME
        yield PRIORITY
        yield CANCEL


def _owner_reference(workload: Obj) -> Mapping[str, str]:
    references: list[Mapping[str, str]] = workload["metadata"]["ownerReferences"]
    return references[0]


def _owner_key(workload: Obj) -> Key | None:
    metadata = workload["metadata"]
    if not metadata.get("ownerReferences"):
        return None
    owner = _owner_reference(workload)
    kind = scheme.find_kind(owner["apiVersion"], owner["kind"])
    if kind is None or kind.constant not in _OWNER_KINDS:
        problem = f"its owner is a {owner['kind']} ({owner['apiVersion']}), which the page cannot change: use kubectl"
        raise StatusError(409, "Conflict", problem)
    if messages := rules.dns_subdomain_errors(owner["name"]):
        problem = f"the name {owner['name']!r} of its owner is invalid: {messages[0]}"
        raise StatusError(409, "Conflict", f"{problem}: correct metadata.ownerReferences with kubectl")
    return Key(kind.constant, metadata["namespace"], owner["name"])


def _plan_deletion(workload: Obj) -> PlannedWrite:
    owner = _owner_key(workload)
    uid = workload["metadata"]["uid"] if owner is None else _owner_reference(workload)["uid"]
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    return PlannedWrite("DELETE", owner or key_of(workload), {**options, "preconditions": {"uid": uid}})


def _plan_patch(obj: Obj, spec: Mapping[str, Any]) -> PlannedWrite:
    return PlannedWrite("PATCH", key_of(obj), {"metadata": {"uid": obj["metadata"]["uid"]}, "spec": spec})


def _write_request(planned_write: PlannedWrite, request: ApiRequest) -> ApiRequest:
    kind, target = scheme.kind_info(planned_write.target.kind), planned_write.target
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    scope = f"/namespaces/{quote(target.namespace, safe='')}" if target.namespace else ""
    content_type = MERGE_PATCH if planned_write.method == "PATCH" else JSON
    return ApiRequest(
        planned_write.method,
        f"{root}{scope}/{kind.plural}/{quote(target.name, safe='')}",
        {"fieldManager": "batchyard-page"} if planned_write.method == "PATCH" else {},
        {"content-type": content_type, "user-agent": request.headers.get("user-agent", ""), "accept": JSON},
        msgspec.json.encode(planned_write.body),
        request.user,
        request.client_address,
    )
