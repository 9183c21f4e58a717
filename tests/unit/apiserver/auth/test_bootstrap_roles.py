"""The bootstrap roles."""

import pytest

from batchyard.api.manifests import decode
from batchyard.apiserver.auth.authorization import RbacAuthorizer, RequestAttributes, bootstrap_roles
from batchyard.apiserver.request import AUTHENTICATED_GROUP, UserInfo
from batchyard.housekeeping.controllers import ClusterRoleAggregation
from stage import Stage
from unit.apiserver.roles import binding, group

READS = ("get", "list", "watch")


def platform() -> RbacAuthorizer:
    """An authorizer with each bootstrap role bound to the group of the same name in the namespace `team`."""
    stage = Stage(ClusterRoleAggregation())
    stage.put(*bootstrap_roles())
    for name in ("admin", "edit", "view", "kueue-batch-user-role", "kueue-batch-admin-role"):
        stage.put(binding(name, f"ClusterRole/{name}", group(name), "team"))
    return RbacAuthorizer(stage.client)


def may(rbac: RbacAuthorizer, role: str, verb: str, resource: str, namespace: str = "team") -> bool:
    plural, _, of_group = resource.partition(".")
    plural, _, part = plural.partition("/")
    who = UserInfo("anna", (role, AUTHENTICATED_GROUP))
    return rbac.decide(RequestAttributes(who, verb, of_group, plural, part, namespace)).allowed


def test_bootstrap_roles_decode_without_faults() -> None:
    assert [fault for role in bootstrap_roles() for fault in decode(role).faults] == []


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("view", "get", "pods", True),
        ("view", "get", "secrets", False),
        ("view", "list", "workloads.kueue.x-k8s.io", True),
        ("view", "create", "jobs.batch", False),
        ("view", "get", "replicationcontrollers/scale", True),
        ("view", "patch", "replicationcontrollers/scale", False),
        ("edit", "patch", "replicationcontrollers/scale", True),
        ("edit", "get", "pods/log", True),
        ("edit", "create", "jobs.batch", True),
        ("edit", "create", "jobsets.jobset.x-k8s.io", False),
        ("edit", "get", "secrets", True),
        ("edit", "create", "localqueues.kueue.x-k8s.io", False),
        ("edit", "create", "rolebindings.rbac.authorization.k8s.io", False),
        ("admin", "create", "rolebindings.rbac.authorization.k8s.io", True),
        ("admin", "delete", "pods", True),
        ("admin", "update", "workloads.kueue.x-k8s.io/status", False),
        ("kueue-batch-user-role", "create", "jobsets.jobset.x-k8s.io", True),
        ("kueue-batch-user-role", "create", "workloads.kueue.x-k8s.io", False),
        ("kueue-batch-admin-role", "create", "localqueues.kueue.x-k8s.io", True),
    ],
)
def test_bootstrap_role_allows_its_verbs_in_its_namespace_only(
    role: str, verb: str, resource: str, allowed: bool
) -> None:
    rbac = platform()
    assert may(rbac, role, verb, resource) is allowed
    assert not may(rbac, role, verb, resource, "other")


def test_authenticated_users_read_discovery_and_anonymous_users_health_only() -> None:
    rbac = platform()
    known, unknown = UserInfo("anna", (AUTHENTICATED_GROUP,)), UserInfo("system:anonymous", ("system:unauthenticated",))
    assert rbac.decide(RequestAttributes(known, "get", path="/openapi/v3")).allowed
    assert rbac.decide(RequestAttributes(unknown, "get", path="/healthz")).allowed
    assert not rbac.decide(RequestAttributes(unknown, "get", path="/apis")).allowed


def test_bootstrap_roles_allow_reading_pending_workloads_metrics_and_why() -> None:
    rbac, visibility = platform(), "visibility.kueue.x-k8s.io"
    assert may(rbac, "kueue-batch-user-role", "get", f"localqueues/pendingworkloads.{visibility}")
    assert not may(rbac, "kueue-batch-user-role", "get", f"clusterqueues/pendingworkloads.{visibility}")
    assert may(rbac, "kueue-batch-admin-role", "get", f"clusterqueues/pendingworkloads.{visibility}")
    assert may(rbac, "view", "list", "pods.metrics.k8s.io")
    assert may(rbac, "view", "get", "pods/log")
    assert all(may(rbac, "view", "get", f"{each}") for each in ("pods/why", "jobs/why.batch"))
    assert may(rbac, "kueue-batch-user-role", "get", "workloads/why.kueue.x-k8s.io")
    assert not may(rbac, "kueue-batch-user-role", "get", "clusterqueues/why.kueue.x-k8s.io")
    assert not may(rbac, "view", "create", "pods/exec")
