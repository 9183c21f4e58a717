"""The operator's RBAC: only what its controllers, its Lease, its webhooks and its dashboard need.

The rules are derived from the kinds that each controller group reads and writes (batchyard.controller_groups).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.apiserver.openapi_definitions import Conversion, definition_of
from batchyard.controller_groups import ALSO_UPSTREAM, CREATE, FINALIZERS, PATCH, STATUS, kinds_seen, kinds_written
from batchyard.operator_manifests.deployment import InstallSettings, has_webhooks, labelled
from batchyard.webhooks.hooks import CONVERT

# --- definitions ---
#
# The CustomResourceDefinitions that the operator installs.


#: API groups of Kubernetes itself have no dot, or this suffix.
_NATIVE: Final = ".k8s.io"
#: The API group of ProvisioningRequests, which the cluster autoscaler installs.
_OF_OTHERS: Final = "autoscaling.x-k8s.io"


def definitions(settings: InstallSettings) -> Sequence[Obj]:
    """The CRDs; with webhooks in all versions, else in the stored version only."""
    if not settings.definitions:
        return []
    conversion = Conversion(settings.webhook_service, settings.namespace, CONVERT) if settings.webhooks else None
    return [definition_of(info, conversion if is_converted(info) else None) for info in _installed(settings)]


def definition_names(settings: InstallSettings, *, converted: bool) -> list[str]:
    """The names of the CRDs; with `converted` only of those with a conversion webhook."""
    return [f"{info.plural}.{info.group}" for info in _installed(settings) if is_converted(info) or not converted]


def is_converted(info: ServedKind) -> bool:
    """Whether its versions differ in more than their name."""
    return len(info.versions) > 1 and info.group != _OF_OTHERS


def _installed(settings: InstallSettings) -> Iterator[ServedKind]:
    for kind in kinds_seen(settings.controllers):
        info = kind_info(kind)
        if "." in info.group and not info.group.endswith(_NATIVE) and info.group != _OF_OTHERS:
            yield info


_GROUP: Final = "rbac.authorization.k8s.io"
_SEEN: Final = ("list", "watch")
_EXTENSIONS: Final = "apiextensions.k8s.io"
_REGISTRATION: Final = "admissionregistration.k8s.io"
_HOLD: Final = ("get", "update")


def rights(settings: InstallSettings) -> Sequence[Obj]:
    """The ServiceAccount, its roles and bindings, and the roles for users."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    role = {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "rules": list(_held(settings))}
    cluster_role = {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole", "rules": cluster_rules(settings)}
    namespace = settings.namespace
    objects = [
        labelled(account, settings, namespace=namespace),
        labelled(cluster_role, settings),
        labelled(_binding(settings, "ClusterRole"), settings),
        labelled(role, settings, namespace=namespace),
        labelled(_binding(settings, "Role"), settings, namespace=namespace),
    ]
    return [*objects, *(_for_people() if settings.user_roles else ())]


def cluster_rules(settings: InstallSettings) -> list[Obj]:
    """The rules of the ClusterRole."""
    return [*controller_rules(settings.controllers), *_of_webhooks(settings), *_of_page(settings)]


def controller_rules(groups: Sequence[str]) -> list[Obj]:
    """The rules that controllers of these groups need; resources with the same verbs share a rule."""
    verbs: dict[tuple[str, str], dict[str, None]] = {("", "events"): {CREATE: None, PATCH: None}}
    for kind in kinds_seen(groups):
        info = kind_info(kind)
        verbs.setdefault((info.group, info.plural), {}).update(dict.fromkeys(_SEEN))
    for kind, done in kinds_written(groups).items():
        info = kind_info(kind)
        of_object = [verb for verb in done if verb != FINALIZERS and (verb != STATUS or not info.has_status)]
        verbs.setdefault((info.group, info.plural), {}).update(dict.fromkeys(of_object))
        if STATUS in done and info.has_status:
            verbs[info.group, f"{info.plural}/status"] = {PATCH: None}
        if FINALIZERS in done:
            verbs[info.group, f"{info.plural}/finalizers"] = {"update": None}
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), wanted in verbs.items():
        together.setdefault((group, tuple(sorted(wanted))), []).append(resource)
    rules = [_rule(group, sorted(resources), wanted) for (group, wanted), resources in sorted(together.items())]
    looks = any(group in ALSO_UPSTREAM for group in groups)
    looked_for = [_rule(_REGISTRATION, ["validatingwebhookconfigurations"], ["list"])] if looks else []
    return [*rules, *looked_for]


def _of_webhooks(settings: InstallSettings) -> Iterator[Obj]:
    """Write the certificate authority to the webhook configurations and CRDs. Answers use lists of the controllers."""
    if not has_webhooks(settings):
        return
    configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    yield _rule(_REGISTRATION, configurations, _HOLD, [settings.webhook_service])
    if names := definition_names(settings, converted=True):
        yield _rule(_EXTENSIONS, ["customresourcedefinitions"], _HOLD, names)


def _of_page(settings: InstallSettings) -> Iterator[Obj]:
    """Authenticate a user's token, and check which objects the user may list."""
    if settings.page:
        yield _rule("authentication.k8s.io", ["tokenreviews"], ["create"])
        yield _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"])


def _held(settings: InstallSettings) -> Iterator[Obj]:
    """The rules in its own Namespace; RBAC cannot restrict `create` by name."""
    yield _rule("coordination.k8s.io", ["leases"], ["create"])
    yield _rule("coordination.k8s.io", ["leases"], _HOLD, [settings.name])
    if has_webhooks(settings):
        yield _rule("", ["secrets"], ["create"])
        yield _rule("", ["secrets"], _HOLD, [settings.certificates])


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Obj:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule | ({"resourceNames": list(names)} if names else {})


def _binding(settings: InstallSettings, kind: str) -> dict[str, Any]:
    subject: Mapping[str, str] = {"kind": "ServiceAccount", "name": settings.name, "namespace": settings.namespace}
    role = {"apiGroup": _GROUP, "kind": kind, "name": settings.name}
    return {"apiVersion": f"{_GROUP}/v1", "kind": f"{kind}Binding", "subjects": [subject], "roleRef": role}


def _for_people() -> Iterator[Obj]:
    """Kueue's roles for batch administrators and users."""
    for role in bootstrap_roles():
        if role["metadata"]["name"].startswith("kueue-"):
            yield {field: value for field, value in role.items() if field != "rules" or value}
