"""Manifests of the operator's CustomResourceDefinitions, and of its minimal RBAC roles.

The role rules are derived from the kinds that each controller group reads and writes (batchyard.controller_groups).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from batchyard import controller_groups
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.apiserver.openapi_definitions import ConversionService, definition_of
from batchyard.operator_manifests.deployment import InstallSettings, described_kinds, has_webhooks, with_labels
from batchyard.webhooks.hooks import CONVERT_PATH

#: The suffix of API groups of Kubernetes itself; the other such groups contain no dot.
_KUBERNETES_GROUP_SUFFIX: Final = ".k8s.io"
#: The API group of ProvisioningRequests, which the cluster autoscaler installs.
_AUTOSCALER_GROUP: Final = "autoscaling.x-k8s.io"


def crd_objects(settings: InstallSettings) -> Sequence[Obj]:
    """Return the CRDs, with all versions of the kinds that webhooks convert, and the stored version of other kinds.

    Return [] if the settings exclude the CRDs.
    """
    if not settings.definitions:
        return []
    conversion_service = ConversionService(settings.webhook_service, settings.namespace, CONVERT_PATH)
    conversion = conversion_service if has_webhooks(settings) else None
    return [definition_of(info, conversion if needs_conversion(info) else None) for info in _installed_kinds(settings)]


def crd_names(settings: InstallSettings, *, only_converted: bool) -> list[str]:
    """Return the names of the CRDs that the selected controllers need.

    With `only_converted`, return only CRDs with versions that a webhook must convert.
    """
    installed_kinds = [info for info in _installed_kinds(settings) if needs_conversion(info) or not only_converted]
    return [f"{info.plural}.{info.group}" for info in installed_kinds]


def needs_conversion(served_kind: ServedKind) -> bool:
    """Return whether the versions of a kind differ in their fields, so that a webhook must convert its objects."""
    return len(served_kind.versions) > 1 and served_kind.group != _AUTOSCALER_GROUP


def _installed_kinds(settings: InstallSettings) -> Iterator[ServedKind]:
    for kind in controller_groups.kinds_read(settings.controllers):
        info = kind_info(kind)
        if "." in info.group and not info.group.endswith(_KUBERNETES_GROUP_SUFFIX) and info.group != _AUTOSCALER_GROUP:
            yield info


_RBAC_GROUP: Final = "rbac.authorization.k8s.io"
_LOOKUP_VERB: Final = "list"
_READ_VERBS: Final = (_LOOKUP_VERB, "watch")
_EXTENSIONS_GROUP: Final = "apiextensions.k8s.io"
_REGISTRATION_GROUP: Final = "admissionregistration.k8s.io"
_UPDATE_VERBS: Final = ("get", "update")
#: The RBAC verb of writes to a subresource, by the name of the subresource.
_SUBRESOURCE_VERBS: Final = {controller_groups.FINALIZERS: "update", controller_groups.BINDING: "create"}


def rbac_objects(settings: InstallSettings) -> Sequence[Obj]:
    """Return the operator's ServiceAccount with its roles and bindings, and Kueue's user roles if enabled."""
    service_account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    namespace_role = {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": "Role", "rules": list(_namespace_rules(settings))}
    cluster_role = {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": "ClusterRole", "rules": cluster_rules(settings)}
    namespace = settings.namespace
    operator_objects = [
        with_labels(service_account, settings, namespace=namespace),
        with_labels(cluster_role, settings),
        with_labels(_role_binding(settings, "ClusterRole"), settings),
        with_labels(namespace_role, settings, namespace=namespace),
        with_labels(_role_binding(settings, "Role"), settings, namespace=namespace),
    ]
    return [*operator_objects, *(_user_roles() if settings.user_roles else ())]


def cluster_rules(settings: InstallSettings) -> list[Obj]:
    """Return the RBAC rules of the operator's ClusterRole."""
    known_kinds = scheme.DESCRIBED_KINDS.values()
    custom_rules = described_job_rules([info for info in described_kinds(settings) if info not in known_kinds])
    webhook_rules = [*_webhook_rules(settings), *_dashboard_rules(settings)]
    return [*controller_rules(settings.controllers), *custom_rules, *webhook_rules]


def described_job_rules(kinds: Sequence[ServedKind]) -> Iterator[Obj]:
    """Yield the RBAC rules for custom kinds of jobs: those of other kinds of jobs."""
    for group in dict.fromkeys(info.group for info in kinds):
        plurals = sorted(info.plural for info in kinds if info.group == group)
        if all(info.constant in scheme.SERVING_KINDS for info in kinds if info.group == group):
            yield _rule(group, plurals, _READ_VERBS)
            continue
        yield _rule(group, plurals, sorted([*_READ_VERBS, controller_groups.PATCH, controller_groups.DELETE]))
        yield _rule(group, [f"{plural}/{controller_groups.FINALIZERS}" for plural in plurals], ["update"])


def _referenced_rules() -> Iterator[Obj]:
    """Yield the RBAC rules for reading the objects to which jobs of described kinds refer."""
    kinds = scheme.REFERENCED_KINDS.values()
    for group in dict.fromkeys(info.group for info in kinds):
        yield _rule(group, sorted(info.plural for info in kinds if info.group == group), sorted(_READ_VERBS))


def controller_rules(groups: Sequence[str]) -> list[Obj]:
    """Return the RBAC rules for the named controller groups; equal verbs in one API group share a rule."""
    verbs_by_resource: dict[tuple[str, str], dict[str, None]] = {
        ("", "events"): {controller_groups.CREATE: None, controller_groups.PATCH: None}
    }
    for kind in controller_groups.kinds_read(groups):
        info = kind_info(kind)
        verbs_by_resource.setdefault((info.group, info.plural), {}).update(dict.fromkeys(_READ_VERBS))
    for kind, written_verbs in controller_groups.verbs_by_written_kind(groups).items():
        info = kind_info(kind)
        object_verbs = [
            verb
            for verb in written_verbs
            if verb not in _SUBRESOURCE_VERBS and (verb != controller_groups.STATUS or not info.has_status)
        ]
        verbs_by_resource.setdefault((info.group, info.plural), {}).update(dict.fromkeys(object_verbs))
        if controller_groups.STATUS in written_verbs and info.has_status:
            verbs_by_resource[info.group, f"{info.plural}/status"] = {controller_groups.PATCH: None}
        for subresource, verb in _SUBRESOURCE_VERBS.items():
            if subresource in written_verbs:
                verbs_by_resource[info.group, f"{info.plural}/{subresource}"] = {verb: None}
    resources_by_verbs: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), needed_verbs in verbs_by_resource.items():
        resources_by_verbs.setdefault((group, tuple(sorted(needed_verbs))), []).append(resource)
    grouped_resources = sorted(resources_by_verbs.items())
    rules = [_rule(group, sorted(resources), needed_verbs) for (group, needed_verbs), resources in grouped_resources]
    if controller_groups.ADMISSION in groups:
        rules += described_job_rules([*scheme.DESCRIBED_KINDS.values()])
        rules += _referenced_rules()
    if any(group in controller_groups.UPSTREAM_GROUPS for group in groups):
        rules.append(_rule(_REGISTRATION_GROUP, ["validatingwebhookconfigurations"], ["list"]))
    return rules


def _webhook_rules(settings: InstallSettings) -> Iterator[Obj]:
    """Yield the RBAC rules for owners, and for the certificate authority in webhook configurations and CRDs."""
    if not has_webhooks(settings):
        return
    owners = map(kind_info, controller_groups.kinds_looked_up(settings.controllers))
    for group, infos in groupby(owners, attrgetter("group")):
        yield _rule(group, [info.plural for info in infos], [_LOOKUP_VERB])
    configuration_resources = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    yield _rule(_REGISTRATION_GROUP, configuration_resources, _UPDATE_VERBS, [settings.webhook_service])
    if names := crd_names(settings, only_converted=True):
        yield _rule(_EXTENSIONS_GROUP, ["customresourcedefinitions"], _UPDATE_VERBS, names)


def _dashboard_rules(settings: InstallSettings) -> Iterator[Obj]:
    if settings.page:
        yield _rule("authentication.k8s.io", ["tokenreviews"], ["create"])
        yield _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"])


def _namespace_rules(settings: InstallSettings) -> Iterator[Obj]:
    """Yield the rules in the operator's own namespace. RBAC cannot restrict `create` by name."""
    yield _rule("coordination.k8s.io", ["leases"], ["create"])
    yield _rule("coordination.k8s.io", ["leases"], _UPDATE_VERBS, [settings.name])
    if has_webhooks(settings):
        yield _rule("", ["secrets"], ["create"])
        yield _rule("", ["secrets"], _UPDATE_VERBS, [settings.certificate_secret_name])


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], resource_names: Sequence[str] = ()) -> Obj:
    policy_rule: dict[str, Any] = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return policy_rule | ({"resourceNames": list(resource_names)} if resource_names else {})


def _role_binding(settings: InstallSettings, role_kind: str) -> dict[str, Any]:
    subject: Mapping[str, str] = {"kind": "ServiceAccount", "name": settings.name, "namespace": settings.namespace}
    role = {"apiGroup": _RBAC_GROUP, "kind": role_kind, "name": settings.name}
    return {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": f"{role_kind}Binding", "subjects": [subject], "roleRef": role}


def _user_roles() -> Iterator[Obj]:
    for role in bootstrap_roles():
        if role["metadata"]["name"].startswith("kueue-"):
            yield {field: value for field, value in role.items() if field != "rules" or value}
