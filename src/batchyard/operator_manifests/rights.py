"""What an operator may do: nothing but what its controllers, its Lease, its webhooks and its page need.

The rules are worked out from what the controllers of each group look at and write (batchyard.controller_groups).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.apiserver.auth.bootstrap_roles import bootstrap_roles
from batchyard.controller_groups import ALSO_UPSTREAM, CREATE, FINALIZERS, PATCH, STATUS, kinds_seen, kinds_written
from batchyard.operator_manifests.definitions import definition_names
from batchyard.operator_manifests.deployment import has_webhooks
from batchyard.operator_manifests.settings import Settings, labelled

_GROUP: Final = "rbac.authorization.k8s.io"
_SEEN: Final = ("list", "watch")
_EXTENSIONS: Final = "apiextensions.k8s.io"
_REGISTRATION: Final = "admissionregistration.k8s.io"
_HOLD: Final = ("get", "update")


def rights(settings: Settings) -> Sequence[Obj]:
    """The account, its roles, and what binds them; and the roles for people."""
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


def cluster_rules(settings: Settings) -> list[Obj]:
    """What it may do in the whole cluster."""
    return [*controller_rules(settings.controllers), *_of_webhooks(settings), *_of_page(settings)]


def controller_rules(groups: Sequence[str]) -> list[Obj]:
    """What controllers of these groups need: resources of which the same is done together."""
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


def _of_webhooks(settings: Settings) -> Iterator[Obj]:
    """To write the authority where the API server looks for it. What answers rest on the controllers may list."""
    if not has_webhooks(settings):
        return
    configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    yield _rule(_REGISTRATION, configurations, _HOLD, [settings.webhook_service])
    if names := definition_names(settings, converted=True):
        yield _rule(_EXTENSIONS, ["customresourcedefinitions"], _HOLD, names)


def _of_page(settings: Settings) -> Iterator[Obj]:
    """To ask who somebody is, and what he may list."""
    if settings.page:
        yield _rule("authentication.k8s.io", ["tokenreviews"], ["create"])
        yield _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"])


def _held(settings: Settings) -> Iterator[Obj]:
    """What it may do in its own Namespace: names cannot be asked of what is only to be made."""
    yield _rule("coordination.k8s.io", ["leases"], ["create"])
    yield _rule("coordination.k8s.io", ["leases"], _HOLD, [settings.name])
    if has_webhooks(settings):
        yield _rule("", ["secrets"], ["create"])
        yield _rule("", ["secrets"], _HOLD, [settings.certificates])


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Obj:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule | ({"resourceNames": list(names)} if names else {})


def _binding(settings: Settings, kind: str) -> dict[str, Any]:
    subject: Mapping[str, str] = {"kind": "ServiceAccount", "name": settings.name, "namespace": settings.namespace}
    role = {"apiGroup": _GROUP, "kind": kind, "name": settings.name}
    return {"apiVersion": f"{_GROUP}/v1", "kind": f"{kind}Binding", "subjects": [subject], "roleRef": role}


def _for_people() -> Iterator[Obj]:
    """Kueue's roles for administrators and users of batch, by its names."""
    for role in bootstrap_roles():
        if role["metadata"]["name"].startswith("kueue-"):
            yield {field: value for field, value in role.items() if field != "rules" or value}
