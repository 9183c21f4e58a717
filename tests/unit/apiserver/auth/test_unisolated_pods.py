"""On a machine that cannot isolate pods only the owner starts pods."""

import pytest

from batchyard.api import scheme
from batchyard.apiserver.auth.authorization import AuthorizationDecision, RequestAttributes
from batchyard.apiserver.auth.security import OwnerPodsAuthorizer
from batchyard.apiserver.request import MASTERS_GROUP, UserInfo

LACKS = "this machine cannot isolate pods"
#: The kinds with templates of pods, of which no controller creates pods.
IDLE_TEMPLATES = {scheme.POD_TEMPLATE, scheme.WORKLOAD}
OWNER, ANNA = UserInfo("admin", (MASTERS_GROUP,)), UserInfo("anna", ("team-a",))


class AllowAllAuthorizer:
    """Allows everything."""

    def decide(self, attributes: RequestAttributes) -> AuthorizationDecision:
        return AuthorizationDecision(True)


def decided(
    user: UserInfo, verb: str, group: str, resource: str, part: str = "", denial: str = LACKS
) -> AuthorizationDecision:
    return OwnerPodsAuthorizer(AllowAllAuthorizer(), lambda: denial).decide(
        RequestAttributes(user, verb, group, resource, part, "team-a")
    )


@pytest.mark.parametrize(
    ("verb", "group", "resource", "part"),
    [
        ("create", "", "pods", ""),
        ("patch", "", "pods", ""),
        ("create", "batch", "jobs", ""),
        ("update", "batch", "cronjobs", ""),
        ("create", "apps", "deployments", ""),
        ("patch", "apps", "controllerrevisions", ""),
        ("create", "jobset.x-k8s.io", "jobsets", ""),
        ("create", "kubeflow.org", "pytorchjobs", ""),
        ("patch", "ray.io", "rayclusters", ""),
        ("create", "", "replicationcontrollers", ""),
        ("patch", "", "replicationcontrollers", "scale"),
        ("update", "apps", "deployments", "scale"),
        ("create", "", "pods", "exec"),
        ("get", "", "pods", "exec"),
        ("create", "", "pods", "attach"),
        ("patch", "", "pods", "ephemeralcontainers"),
        ("get", "", "pods", "portforward"),
        ("create", "", "pods", "portforward"),
        ("get", "", "pods", "proxy"),
        ("delete", "", "services", "proxy"),
        ("get", "", "nodes", "proxy"),
    ],
)
def test_owner_pods_denies_users_pods_without_isolation(verb: str, group: str, resource: str, part: str) -> None:
    assert decided(ANNA, verb, group, resource, part) == AuthorizationDecision(False, LACKS)
    assert decided(OWNER, verb, group, resource, part) == AuthorizationDecision(True)
    assert decided(ANNA, verb, group, resource, part, denial="") == AuthorizationDecision(True)


@pytest.mark.parametrize(
    ("verb", "group", "resource", "part"),
    [
        ("get", "", "pods", ""),
        ("delete", "batch", "jobs", ""),
        ("get", "", "pods", "log"),
        ("create", "", "secrets", ""),
        ("get", "apps", "deployments", "scale"),
        ("create", "", "services", ""),
        ("get", "metrics.example.com", "pods", "proxy"),
    ],
)
def test_owner_pods_allows_users_other_requests_without_isolation(
    verb: str, group: str, resource: str, part: str
) -> None:
    assert decided(ANNA, verb, group, resource, part) == AuthorizationDecision(True)


def contains_pods(scope: scheme.TypeScope, name: str, seen: set[tuple[str, str]]) -> bool:
    """Whether objects of a type have the spec of a pod anywhere."""
    scope, name = scope.scope_of(name)
    if name == "PodSpec" or (scope.name, name) in seen:
        return name == "PodSpec"
    seen.add((scope.name, name))
    fields = scope.fields(name).values()
    return any(contains_pods(scope, field.object_type, seen) for field in fields if field.object_type)


def runs_pods(kind: scheme.ServedKind) -> bool:
    """Whether controllers create pods of the templates in objects of a kind, in any version."""
    scopes = [scheme.load_scope_for_kind(kind, version) for version in kind.versions]
    has_template = any(contains_pods(scope, kind.kind, set()) for scope in scopes)
    return (has_template and kind.constant not in IDLE_TEMPLATES) or kind.constant == scheme.CONTROLLER_REVISION


@pytest.mark.parametrize("kind", [kind for kind in scheme.KINDS if kind.constant not in scheme.FILE_KINDS])
def test_owner_pods_denies_users_exactly_the_kinds_with_templates(kind: scheme.ServedKind) -> None:
    denied = [
        verb for verb in ("create", "update", "patch") if not decided(ANNA, verb, kind.group, kind.plural).allowed
    ]
    assert denied == (["create", "update", "patch"] if runs_pods(kind) else [])
