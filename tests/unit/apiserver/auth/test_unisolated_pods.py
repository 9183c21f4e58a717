"""On a machine that cannot isolate pods only the owner starts pods."""

import pytest

from batchyard.apiserver.auth.authorization import AuthorizationDecision, RequestAttributes
from batchyard.apiserver.auth.security import OwnerPodsAuthorizer
from batchyard.apiserver.request import MASTERS_GROUP, UserInfo

LACKS = "this machine cannot isolate pods"
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
        ("create", "", "pods", "exec"),
        ("get", "", "pods", "exec"),
        ("create", "", "pods", "attach"),
        ("patch", "", "pods", "ephemeralcontainers"),
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
    ],
)
def test_owner_pods_allows_users_other_requests_without_isolation(
    verb: str, group: str, resource: str, part: str
) -> None:
    assert decided(ANNA, verb, group, resource, part) == AuthorizationDecision(True)
