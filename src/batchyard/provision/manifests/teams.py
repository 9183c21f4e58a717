"""Objects of a team: namespace, ServiceAccount, RBAC, limits and NetworkPolicy.

Members submit, view and delete jobs in their namespace. Admins also manage its Secrets, and change Workloads. No team
may change queues, quotas, RBAC or network policies: these are the platform's.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.provision.manifests.rendered import RenderedObject, obj_of
from batchyard.provision.model import Google, Isolation, People, PlatformEngine, PlatformModel, PlatformTeam

#: The namespace that exists in every cluster.
_DEFAULT_NAMESPACE: Final = "default"
#: GKE's annotation of the Google service account that a ServiceAccount impersonates.
_GOOGLE_ACCOUNT: Final = "iam.gke.io/gcp-service-account"
TEAM: Final = "platform.batchyard.dev/team"
_GROUP: Final = "rbac.authorization.k8s.io"
_READ: Final = ("get", "list", "watch")
_WORK: Final = (*_READ, "create", "update", "patch", "delete")

#: Rows of API group, resources and verbs.
_Row = tuple[str, Sequence[str], Sequence[str]]
_MEMBERS: Final[Sequence[_Row]] = (
    ("batch", ("jobs",), _WORK),
    ("jobset.x-k8s.io", ("jobsets",), _WORK),
    ("", ("pods",), (*_READ, "delete")),
    ("", ("pods/log",), ("get",)),
    ("", ("pods/exec", "pods/attach", "pods/portforward"), ("get", "create")),
    ("", ("configmaps", "persistentvolumeclaims"), _WORK),
    ("", ("events", "resourcequotas", "limitranges", "services", "serviceaccounts"), _READ),
    ("events.k8s.io", ("events",), _READ),
    ("kueue.x-k8s.io", ("localqueues", "workloads"), _READ),
    ("visibility.kueue.x-k8s.io", ("localqueues/pendingworkloads",), ("get", "list")),
    ("autoscaling.x-k8s.io", ("provisioningrequests",), _READ),
)
#: Resources of our engine: costs, decisions, and the reason and forecast of pending jobs.
_ENGINE_READ: Final[Sequence[_Row]] = (
    ("cost.batchyard.dev", ("budgets", "costrecords"), _READ),
    ("batchyard.dev", ("decisions",), _READ),
    ("kueue.x-k8s.io", ("workloads/why", "workloads/eta"), ("get",)),
    ("batch", ("jobs/why", "jobs/eta"), ("get",)),
    ("jobset.x-k8s.io", ("jobsets/why", "jobsets/eta"), ("get",)),
)
_ADMINS: Final[Sequence[_Row]] = (
    ("", ("secrets",), _WORK),
    ("", ("pods",), ("deletecollection",)),
    ("batch", ("jobs",), ("deletecollection",)),
    ("jobset.x-k8s.io", ("jobsets",), ("deletecollection",)),
    ("kueue.x-k8s.io", ("workloads",), ("update", "patch")),
)
#: What all teams may read of the platform: queues, flavors and priorities.
_SHARED_READ: Final[Sequence[_Row]] = (
    ("kueue.x-k8s.io", ("clusterqueues", "cohorts", "resourceflavors", "topologies", "workloadpriorityclasses"), _READ),
    ("scheduling.k8s.io", ("priorityclasses",), _READ),
)


def shared_rights(platform: PlatformModel) -> Sequence[RenderedObject]:
    """Return the RBAC objects for all teams' members; empty if no team has members."""
    subjects = [subject for team in platform.teams for subject in _subjects(team.members, team.admins)]
    if not subjects:
        return []
    name = f"{platform.name}-readers"
    role = obj_of(scheme.CLUSTER_ROLE, platform.name, name, rules=_rules(_SHARED_READ))
    binding = obj_of(
        scheme.CLUSTER_ROLE_BINDING,
        platform.name,
        name,
        roleRef={"apiGroup": _GROUP, "kind": "ClusterRole", "name": name},
        subjects=_once(subjects),
    )
    return [RenderedObject(role, "spec.teams"), RenderedObject(binding, "spec.teams")]


def team_objects(team: PlatformTeam, platform: PlatformModel) -> Sequence[RenderedObject]:
    """Return all objects of a team except its queues."""
    return [RenderedObject(_labelled(obj, team), team.path) for obj in _objects(team, platform)]


def _objects(team: PlatformTeam, platform: PlatformModel) -> Iterator[Obj]:
    if team.namespace != _DEFAULT_NAMESPACE:
        yield obj_of(scheme.NAMESPACE, platform.name, team.namespace)
    yield _account(team, platform)
    yield from _rights(team, platform)
    yield from _limits(team, platform)
    if team.isolation is Isolation.ISOLATED:
        yield _wall(team, platform)


def _account(team: PlatformTeam, platform: PlatformModel) -> Obj:
    """Return the ServiceAccount; on GKE with its Google service account."""
    account = obj_of(scheme.SERVICE_ACCOUNT, platform.name, team.identity.name, team.namespace)
    if platform.google is None:
        return account
    annotations = {_GOOGLE_ACCOUNT: google_account(team, platform.google)}
    return {**account, "metadata": {**account["metadata"], "annotations": annotations}}


def google_account(team: PlatformTeam, google: Google) -> str:
    """Return the email address of a team's Google service account."""
    return f"{team.identity.google_name}@{google.project}.iam.gserviceaccount.com"


def _rights(team: PlatformTeam, platform: PlatformModel) -> Iterator[Obj]:
    members = [*_MEMBERS, *(_ENGINE_READ if platform.engine is PlatformEngine.BATCHYARD else ())]
    for name, people, rows in (
        ("members", team.members, members),
        ("admins", team.admins, [*members, *_ADMINS]),
    ):
        subjects = _subjects(people)
        if subjects:
            full = f"{team.name}-{name}"
            yield obj_of(scheme.ROLE, platform.name, full, team.namespace, rules=_rules(rows))
            ref = {"apiGroup": _GROUP, "kind": "Role", "name": full}
            yield obj_of(scheme.ROLE_BINDING, platform.name, full, team.namespace, roleRef=ref, subjects=subjects)


def _limits(team: PlatformTeam, platform: PlatformModel) -> Iterator[Obj]:
    rows = (
        (scheme.RESOURCE_QUOTA, team.resource_quota),
        (scheme.LIMIT_RANGE, team.limit_range),
        (scheme.BUDGET, team.budget),
    )
    for kind, spec in rows:
        if spec is not None:
            yield obj_of(kind, platform.name, team.name, team.namespace, spec=dict(spec))


def _wall(team: PlatformTeam, platform: PlatformModel) -> Obj:
    """Return a NetworkPolicy that allows ingress only from the namespace; pods of a JobSet need that."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}
    return obj_of(scheme.NETWORK_POLICY, platform.name, "from-own-namespace", team.namespace, spec=spec)


def _subjects(*people: People) -> list[Mapping[str, str]]:
    found = [
        {"apiGroup": _GROUP, "kind": kind, "name": name}
        for each in people
        for kind, names in (("Group", each.groups), ("User", each.users))
        for name in names
    ]
    return _once(found)


def _once(subjects: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return list({(each["kind"], each["name"]): each for each in subjects}.values())


def _rules(rows: Sequence[_Row]) -> list[Mapping[str, Any]]:
    return [{"apiGroups": [group], "resources": list(names), "verbs": list(verbs)} for group, names, verbs in rows]


def _labelled(obj: Obj, team: PlatformTeam) -> Obj:
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "labels": {**metadata["labels"], TEAM: team.name}}}
