"""Forbidden requests: a table with the expected error of each."""

import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchyard.apiserver.auth.tokens import ISSUER, TokenIssuer
from batchyard.base.instant import HOUR, Instant
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import CertificateAuthority, SigningKey
from e2e_platform.platform_process import UpProcess
from e2e_platform.raw_requests import RawRequestClient

A, B = "/api/v1/namespaces/team-a", "/api/v1/namespaces/team-b"
BATCH_A, BATCH_B = "/apis/batch/v1/namespaces/team-a", "/apis/batch/v1/namespaces/team-b"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authentication.k8s.io/v1"
DAY = 24 * HOUR


def config_map(name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


def role(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, **fields}


def role_binding(kind: str, to: str) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": to}
    return role(kind, "more", roleRef=reference, subjects=[{"kind": "User", "name": "bob"}])


READS_SECRETS = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
READS_NODES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "intruder"}, "spec": {"template": {"spec": {}}}}
AGGREGATE = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
LABELLED = {"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}
XML = {"content_type": "text/xml"}
MERGE = {"content_type": "application/merge-patch+json"}

AS_MASTER = {"impersonate-user": "erik", "impersonate-group": "system:masters"}
AS_KNOWN = {"impersonate-user": "a", "impersonate-extra-scopes": "all"}
AS_UID = {"impersonate-user": "a", "impersonate-uid": "1"}
AS_ACCOUNT = {"impersonate-user": "system:serviceaccount:kube-system:default"}
OVERRIDE = {"x-http-method-override": "DELETE"}
AS_TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
AS_METADATA = {"accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
APPLIED = {"content-type": "application/apply-patch+yaml"}
#: Authorization uses the first name, but an object must match both: so the list is always empty.
ONE_OF_TWO = "fieldSelector=metadata.name%3Ds,metadata.name%3Dopen"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REVIEWS_OF_ACCESS = "/apis/authorization.k8s.io/v1"
BINDINGS = f"{RBAC}/namespaces/team-a/rolebindings"
ADMIN = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
TO_ALL = role_binding("RoleBinding", "cluster-admin")
TO_ALL_KNOWN = TO_ALL | {"subjects": [{"kind": "Group", "name": "system:authenticated"}]}
CONVERTED = {
    "metadata": {"name": "as.b.c"},
    "spec": {
        "group": "b.c",
        "scope": "Namespaced",
        "names": {"plural": "as", "kind": "A"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
        "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {}}},
    },
}
#: A continue token for a list of team-b.
FORGED = base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":1,"start":"team-b/a"}').decode()
BOMB = b"a: &a [x]\n" + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b"*%c," % n * 9) for n in range(97, 110))
CODE = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: !!python/object/apply:os.getcwd []}"


class DeniedRequest(NamedTuple):
    """A caller, a request and the expected error."""

    name: str
    caller: str
    method: str
    path: str | bytes
    code: int
    reason: str
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


#: anna edits in team-a, bob administers it, carol may write ClusterRoles, the owner has all permissions.
TABLE = (
    DeniedRequest("no credentials", "nobody", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("write without credentials", "nobody", "POST", f"{A}/configmaps", 401, "Unauthorized", {}),
    DeniedRequest("discovery without credentials", "nobody", "GET", "/apis", 401, "Unauthorized"),
    DeniedRequest("metrics without credentials", "nobody", "GET", "/metrics", 401, "Unauthorized"),
    DeniedRequest("invalid token", "wrong token", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("invalid token at public path", "wrong token", "GET", "/healthz", 401, "Unauthorized"),
    DeniedRequest("token of another platform", "foreign token", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("token without signature", "unsigned token", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("expired token", "expired token", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("token for another audience", "token for others", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("token of deleted account", "orphan token", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("expired certificate", "expired", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("pods of another team", "anna", "GET", f"{B}/pods", 403, "Forbidden"),
    DeniedRequest("secret of another team", "anna", "GET", f"{B}/secrets/s", 403, "Forbidden"),
    DeniedRequest("watch on another team", "anna", "GET", f"{B}/pods?watch=1", 403, "Forbidden"),
    DeniedRequest("jobs of all teams", "anna", "GET", "/apis/batch/v1/jobs", 403, "Forbidden"),
    DeniedRequest(
        "list of all namespaces by name",
        "anna",
        "GET",
        "/api/v1/secrets?fieldSelector=metadata.name=s",
        403,
        "Forbidden",
    ),
    DeniedRequest("job for another team", "anna", "POST", f"{BATCH_B}/jobs", 403, "Forbidden", JOB),
    DeniedRequest(
        "object with another namespace", "anna", "POST", f"{A}/configmaps", 400, "BadRequest", config_map("x", "b")
    ),
    DeniedRequest(
        "object without namespace", "owner", "POST", "/api/v1/configmaps", 405, "MethodNotAllowed", config_map("x", "b")
    ),
    DeniedRequest(
        "replace with another namespace",
        "anna",
        "PUT",
        f"{A}/configmaps/kept",
        400,
        "BadRequest",
        config_map("kept", "team-b"),
    ),
    DeniedRequest(
        "replace with another name",
        "anna",
        "PUT",
        f"{A}/configmaps/kept",
        400,
        "BadRequest",
        config_map("other", "team-a"),
    ),
    DeniedRequest(
        *("patch of namespace", "anna", "PATCH", f"{A}/configmaps/kept", 400, "BadRequest"),
        *({"metadata": {"namespace": "team-b"}}, MERGE),
    ),
    DeniedRequest("patch of status", "anna", "PATCH", f"{BATCH_A}/jobs/j/status", 403, "Forbidden", {}, MERGE),
    DeniedRequest(
        "delete of queue of another team",
        "anna",
        "DELETE",
        f"{KUEUE}/namespaces/team-b/localqueues/q",
        403,
        "Forbidden",
    ),
    DeniedRequest("create of queue", "anna", "POST", f"{KUEUE}/namespaces/team-a/localqueues", 403, "Forbidden", {}),
    DeniedRequest("create of cluster queue", "anna", "POST", f"{KUEUE}/clusterqueues", 403, "Forbidden", {}),
    DeniedRequest(
        "update of workload status",
        "anna",
        "PUT",
        f"{KUEUE}/namespaces/team-a/workloads/w/status",
        403,
        "Forbidden",
        {},
    ),
    DeniedRequest("delete of collection of another team", "anna", "DELETE", f"{B}/configmaps", 403, "Forbidden"),
    DeniedRequest("patch of node", "anna", "PATCH", "/api/v1/nodes/n", 403, "Forbidden", {}, MERGE),
    DeniedRequest("create of namespace", "anna", "POST", "/api/v1/namespaces", 403, "Forbidden", {}),
    DeniedRequest(
        "create of priority class", "anna", "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", 403, "Forbidden", {}
    ),
    DeniedRequest(
        "token request for another team", "anna", "POST", f"{B}/serviceaccounts/default/token", 403, "Forbidden", {}
    ),
    DeniedRequest(
        *("binding of cluster-admin", "bob", "POST", f"{RBAC}/namespaces/team-a/rolebindings", 403, "Forbidden"),
        role_binding("RoleBinding", "cluster-admin"),
    ),
    DeniedRequest(
        *("role with more permissions", "bob", "POST", f"{RBAC}/namespaces/team-a/roles", 403, "Forbidden"),
        role("Role", "more", rules=READS_NODES),
    ),
    DeniedRequest(
        *("more permissions for existing role", "bob", "PUT", f"{RBAC}/namespaces/team-a/roles/less", 403, "Forbidden"),
        role("Role", "less", rules=[*READS_SECRETS, *READS_NODES]),
    ),
    DeniedRequest(
        *("cluster role binding", "bob", "POST", f"{RBAC}/clusterrolebindings", 403, "Forbidden"),
        role_binding("ClusterRoleBinding", "view"),
    ),
    DeniedRequest(
        *("cluster role with more permissions", "carol", "POST", f"{RBAC}/clusterroles", 403, "Forbidden"),
        role("ClusterRole", "more", rules=READS_SECRETS),
    ),
    DeniedRequest(
        *("aggregated cluster role", "carol", "POST", f"{RBAC}/clusterroles", 403, "Forbidden"),
        role("ClusterRole", "more", rules=[], aggregationRule=AGGREGATE),
    ),
    DeniedRequest(
        *(
            "aggregation label on cluster role",
            "carol",
            "PATCH",
            f"{RBAC}/clusterroles/cluster-admin",
            403,
            "Forbidden",
        ),
        *(LABELLED, MERGE),
    ),
    DeniedRequest(
        "impersonation of user", "anna", "GET", f"{A}/pods", 403, "Forbidden", None, {"impersonate-user": "owner"}
    ),
    DeniedRequest(
        *("impersonation of system:masters", "anna", "GET", f"{A}/pods", 403, "Forbidden", None),
        {"impersonate-user": "anna", "impersonate-group": "system:masters"},
    ),
    DeniedRequest(
        *("impersonation of account of another team", "anna", "GET", f"{B}/pods", 403, "Forbidden", None),
        {"impersonate-user": "system:serviceaccount:team-b:default"},
    ),
    DeniedRequest(
        "impersonation of group without user",
        "owner",
        "GET",
        f"{A}/pods",
        400,
        "BadRequest",
        None,
        {"impersonate-group": "g"},
    ),
    DeniedRequest("parent path", "anna", "GET", f"{A}/../team-b/secrets", 404, "NotFound"),
    DeniedRequest("encoded parent path", "anna", "GET", f"{A}/%2e%2e/team-b/secrets", 404, "NotFound"),
    DeniedRequest("encoded slashes", "anna", "GET", "/api/v1/namespaces/a%2F..%2Fteam-b/secrets", 404, "NotFound"),
    DeniedRequest("encoded slash in namespace", "anna", "GET", "/api/v1/namespaces/team-b%2Fsecrets", 403, "Forbidden"),
    DeniedRequest("leading double slash", "anna", "GET", "//api/v1/namespaces/team-b/secrets", 403, "Forbidden"),
    DeniedRequest("double slash in path", "anna", "GET", "/api//v1/namespaces/team-b/secrets", 404, "NotFound"),
    DeniedRequest("null byte", "owner", "GET", f"{A}/pods/a%00b", 404, "NotFound"),
    DeniedRequest("invalid UTF-8", "owner", "GET", f"{A}/pods/%ff%fe", 404, "NotFound"),
    DeniedRequest(
        "non-ASCII request line", "owner", "GET", f"{A}/pods/".encode() + b"\xff", 400, "Invalid HTTP request received."
    ),
    DeniedRequest("oversized path", "owner", "GET", "/" + "a" * 100_000, 431, "Request Header Fields Too Large"),
    DeniedRequest(
        *("oversized headers", "owner", "GET", f"{A}/pods", 431, "Request Header Fields Too Large", None),
        {"x": "a" * 100_000},
    ),
    DeniedRequest("oversized body", "owner", "POST", f"{A}/configmaps", 413, "RequestEntityTooLarge", b" " * 3_200_000),
    DeniedRequest("invalid body", "owner", "POST", f"{A}/configmaps", 400, "BadRequest", b"\xff\xfe{"),
    DeniedRequest(
        "unknown content type",
        "owner",
        "POST",
        f"{A}/pods",
        415,
        "UnsupportedMediaType",
        b"<a/>",
        {"content-type": "a"},
    ),
    DeniedRequest("unknown method", "owner", "TRACE", f"{A}/pods", 405, "MethodNotAllowed"),
    DeniedRequest("OPTIONS method", "owner", "OPTIONS", f"{A}/pods", 405, "MethodNotAllowed"),
    DeniedRequest("unsupported method for path", "owner", "POST", f"{A}/pods/p", 405, "MethodNotAllowed", {}),
    DeniedRequest(
        "read of token review", "owner", "GET", "/apis/authentication.k8s.io/v1/tokenreviews", 405, "MethodNotAllowed"
    ),
)

#: Attacks by a reader of the source. dora may read only the Secret `open` of team-b; erik may impersonate users, but no
#: groups.
TRICKS = (
    DeniedRequest("token with algorithm none", "token of none", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("token with another algorithm", "token of HS256", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("token of deleted pod", "token of a pod", "GET", f"{A}/pods", 401, "Unauthorized"),
    DeniedRequest("token in query", "nobody", "GET", f"{A}/pods?access_token=x", 401, "Unauthorized"),
    DeniedRequest(
        "basic authentication", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"authorization": "Basic YTpi"}
    ),
    DeniedRequest(
        "user in header", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"x-remote-user": "owner"}
    ),
    DeniedRequest(
        "forwarded protocol header",
        "nobody",
        "GET",
        f"{A}/pods",
        401,
        "Unauthorized",
        None,
        {"x-forwarded-proto": "http"},
    ),
    DeniedRequest(
        "loopback address in header",
        "nobody",
        "GET",
        f"{A}/pods",
        401,
        "Unauthorized",
        None,
        {"x-real-ip": "127.0.0.1"},
    ),
    DeniedRequest(
        "impersonation without credentials",
        "nobody",
        "GET",
        f"{A}/pods",
        401,
        "Unauthorized",
        None,
        {"impersonate-user": "owner"},
    ),
    DeniedRequest(
        "impersonation of group without permission", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_MASTER
    ),
    DeniedRequest(
        "impersonation of extra without permission", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_KNOWN
    ),
    DeniedRequest(
        "impersonation of uid without permission", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_UID
    ),
    DeniedRequest(
        "impersonation of account with permission for users",
        "erik",
        "GET",
        f"{A}/pods",
        403,
        "Forbidden",
        None,
        AS_ACCOUNT,
    ),
    DeniedRequest(
        "method override header", "anna", "POST", f"{A}/configmaps/kept", 405, "MethodNotAllowed", {}, OVERRIDE
    ),
    DeniedRequest(
        "method override header for another team",
        "anna",
        "GET",
        f"{B}/configmaps/kept",
        403,
        "Forbidden",
        None,
        OVERRIDE,
    ),
    DeniedRequest("namespace in upper case", "anna", "GET", "/api/v1/namespaces/TEAM-B/secrets", 403, "Forbidden"),
    DeniedRequest("path in upper case", "anna", "GET", "/API/v1/namespaces/team-b/secrets", 403, "Forbidden"),
    DeniedRequest(
        "look-alike letter in namespace", "anna", "GET", "/api/v1/namespaces/team-%D0%B0/secrets", 403, "Forbidden"
    ),
    DeniedRequest("path parameter", "anna", "GET", "/api/v1/namespaces/team-b;a=b/secrets", 403, "Forbidden"),
    DeniedRequest("current folder in path", "anna", "GET", "/api/v1/./namespaces/team-b/secrets", 404, "NotFound"),
    DeniedRequest("doubly encoded parent path", "anna", "GET", f"{A}/%252e%252e/team-b/secrets", 404, "NotFound"),
    DeniedRequest("backslashes", "anna", "GET", f"{A}\\..\\team-b/secrets", 403, "Forbidden"),
    DeniedRequest("line break in name", "anna", "GET", f"{B}/secrets/s%0d%0aa:b", 403, "Forbidden"),
    DeniedRequest(
        "null byte in namespace", "anna", "GET", "/api/v1/namespaces/team-a%00/../team-b/secrets", 404, "NotFound"
    ),
    DeniedRequest("fragment", "anna", "GET", f"{B}/secrets#/namespaces/team-a", 403, "Forbidden"),
    DeniedRequest("legacy watch path", "anna", "GET", "/api/v1/watch/namespaces/team-b/secrets", 404, "NotFound"),
    DeniedRequest("legacy proxy path", "anna", "GET", "/api/v1/proxy/namespaces/team-b/pods/p", 404, "NotFound"),
    DeniedRequest("node proxy", "anna", "GET", "/api/v1/nodes/n/proxy/pods", 404, "NotFound"),
    DeniedRequest("list by two names", "dora", "GET", f"{B}/secrets?{ONE_OF_TWO}", 403, "Forbidden"),
    DeniedRequest(
        "list by excluded name", "dora", "GET", f"{B}/secrets?fieldSelector=metadata.name!=open", 403, "Forbidden"
    ),
    DeniedRequest("list by label", "dora", "GET", f"{B}/secrets?labelSelector=metadata.name%3Dopen", 403, "Forbidden"),
    DeniedRequest("watch on secret without permission", "dora", "GET", f"{B}/secrets/s?watch=1", 403, "Forbidden"),
    DeniedRequest("patch of readable secret", "dora", "PATCH", f"{B}/secrets/open", 403, "Forbidden", {}, MERGE),
    DeniedRequest(
        "dry-run patch of readable secret", "dora", "PATCH", f"{B}/secrets/open?dryRun=All", 403, "Forbidden", {}, MERGE
    ),
    DeniedRequest("list as table", "dora", "GET", f"{B}/secrets", 403, "Forbidden", None, AS_TABLE),
    DeniedRequest("list as metadata", "dora", "GET", f"{B}/secrets", 403, "Forbidden", None, AS_METADATA),
    DeniedRequest("dry-run delete of collection", "dora", "DELETE", f"{B}/secrets?dryRun=All", 403, "Forbidden"),
    DeniedRequest("create by apply", "dora", "PATCH", f"{B}/secrets/new?fieldManager=d", 403, "Forbidden", {}, APPLIED),
    DeniedRequest("eviction", "anna", "POST", f"{B}/pods/p/eviction", 403, "Forbidden", {}),
    DeniedRequest("pod binding", "anna", "POST", f"{B}/pods/p/binding", 403, "Forbidden", {}),
    DeniedRequest("create of workload", "anna", "POST", f"{KUEUE}/namespaces/team-a/workloads", 403, "Forbidden", {}),
    DeniedRequest("create of cohort", "bob", "POST", f"{KUEUE}/cohorts", 403, "Forbidden", {}),
    DeniedRequest("create of admission check", "bob", "POST", f"{KUEUE}/admissionchecks", 403, "Forbidden", {}),
    DeniedRequest(
        "create of workload priority class", "bob", "POST", f"{KUEUE}/workloadpriorityclasses", 403, "Forbidden", {}
    ),
    DeniedRequest(
        "create of instance", "bob", "POST", "/apis/cloud.batchyard.dev/v1alpha1/instances", 403, "Forbidden", {}
    ),
    DeniedRequest("create of CRD", "bob", "POST", f"{CRDS}", 403, "Forbidden", {}),
    DeniedRequest("CRD with conversion webhook without address", "owner", "POST", f"{CRDS}", 422, "Invalid", CONVERTED),
    DeniedRequest("delete of namespace", "bob", "DELETE", "/api/v1/namespaces/team-a", 403, "Forbidden"),
    DeniedRequest(
        "subject access review", "anna", "POST", f"{REVIEWS_OF_ACCESS}/subjectaccessreviews", 403, "Forbidden", {}
    ),
    DeniedRequest("token review", "anna", "POST", f"{REVIEWS}/tokenreviews", 403, "Forbidden", {}),
    DeniedRequest(
        "certificate signing request",
        "anna",
        "POST",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        403,
        "Forbidden",
        {},
    ),
    DeniedRequest("dry-run binding", "bob", "POST", f"{BINDINGS}?dryRun=All", 403, "Forbidden", TO_ALL),
    DeniedRequest(
        "binding by apply", "bob", "PATCH", f"{BINDINGS}/more?fieldManager=b", 403, "Forbidden", TO_ALL, APPLIED
    ),
    DeniedRequest(
        "patch of role of binding", "bob", "PATCH", f"{BINDINGS}/bob", 422, "Invalid", {"roleRef": ADMIN}, MERGE
    ),
    DeniedRequest("binding for all authenticated users", "bob", "POST", f"{BINDINGS}", 403, "Forbidden", TO_ALL_KNOWN),
    DeniedRequest("foreign continue token", "anna", "GET", f"{A}/configmaps?limit=1&continue={FORGED}", 410, "Expired"),
    DeniedRequest("invalid continue token", "anna", "GET", f"{A}/configmaps?continue=../../b", 400, "BadRequest"),
    DeniedRequest("future resource version", "anna", "GET", f"{A}/configmaps?resourceVersion=99999999", 504, "Timeout"),
    DeniedRequest(
        "YAML bomb", "anna", "POST", f"{A}/configmaps", 400, "BadRequest", BOMB, {"content-type": "application/yaml"}
    ),
    DeniedRequest(
        "YAML with code",
        "anna",
        "POST",
        f"{A}/configmaps",
        400,
        "BadRequest",
        CODE,
        {"content-type": "application/yaml"},
    ),
    DeniedRequest(
        "two Host headers",
        "owner",
        "GET",
        f"{A}/pods",
        400,
        "400 Bad Request: too many Host headers",
        None,
        {"Host": "other"},
    ),
)


class _Objects:
    """An empty object store for the issuer of tokens."""

    def get(self, _key: object) -> None:
        """Return nothing."""

    def list(self, _kind: str, _namespace: str | None = None) -> tuple[()]:
        """Return no objects."""
        return ()


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RawRequestClient]]:
    """The callers of one platform."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder) as platform:
        owner = RawRequestClient(platform.kubeconfig, certificate=_certificate(folder, "owner", "system:masters"))
        account = _create_teams(owner)
        now, ours = wall_clock(), SigningKey(folder)
        foreign = SigningKey(tmp_path_factory.mktemp("foreign"))
        gone = {**account, "metadata": {**account["metadata"], "uid": "of-one-before"}}
        unsigned = _token(ours, account, now).rpartition(".")[0] + "."
        tokens = {
            "wrong token": "secret",
            "foreign token": _token(foreign, account, now),
            "unsigned token": unsigned,
            "expired token": _token(ours, account, now - DAY),
            "token for others": _token(ours, account, now, "https://elsewhere"),
            "orphan token": _token(ours, gone, now),
            "token of none": forge_token({"alg": "none"}, unsigned, b""),
            "token of HS256": forge_token(
                {"alg": "HS256", "kid": ours.key_id}, unsigned, (folder / "ca.crt").read_bytes()
            ),
            "token of a pod": _token(ours, account, now, pod={"kind": "Pod", "metadata": {"name": "p", "uid": "gone"}}),
        }
        certificates = {name: _certificate(folder, name) for name in ("anna", "bob", "carol", "dora", "erik")}
        certificates["expired"] = _certificate(folder, "anna", at=now - 2 * DAY)
        yield {
            "owner": owner,
            "nobody": RawRequestClient(platform.kubeconfig),
            "of old": RawRequestClient(platform.kubeconfig),
            "good token": RawRequestClient(platform.kubeconfig, token=_token(ours, account, now)),
            "foreign": RawRequestClient(
                platform.kubeconfig, certificate=_certificate(tmp_path_factory.mktemp("ca"), "anna")
            ),
            **{name: RawRequestClient(platform.kubeconfig, token=token) for name, token in tokens.items()},
            **{name: RawRequestClient(platform.kubeconfig, certificate=path) for name, path in certificates.items()},
        }


def _create_teams(owner: RawRequestClient) -> dict[str, Any]:
    """Create two teams and the permissions of their members; return a ServiceAccount of team-a."""
    for team in ("team-a", "team-b"):
        _create_object(
            owner, "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}
        )
        _create_object(owner, f"/api/v1/namespaces/{team}/configmaps", config_map("kept", team))
    for user, given in (("anna", "edit"), ("bob", "admin")):
        binding = role_binding("RoleBinding", given) | {"subjects": [{"kind": "User", "name": user}]}
        binding["metadata"] = {"name": user}
        _create_object(owner, f"{RBAC}/namespaces/team-a/rolebindings", binding)
    _create_object(owner, f"{RBAC}/namespaces/team-a/roles", role("Role", "less", rules=READS_SECRETS))
    writes = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create", "patch"]}
    _create_object(owner, f"{RBAC}/clusterroles", role("ClusterRole", "more", rules=[writes]))
    binding = role_binding("ClusterRoleBinding", "more") | {"subjects": [{"kind": "User", "name": "carol"}]}
    _create_object(owner, f"{RBAC}/clusterrolebindings", binding)
    reads = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"], "resourceNames": ["open"]}
    _create_object(owner, f"{RBAC}/namespaces/team-b/roles", role("Role", "open", rules=[reads]))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "open"}
    binding = role("RoleBinding", "dora", roleRef=reference, subjects=[{"kind": "User", "name": "dora"}])
    _create_object(owner, f"{RBAC}/namespaces/team-b/rolebindings", binding)
    acts = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    _create_object(owner, f"{RBAC}/clusterroles", role("ClusterRole", "acts", rules=[acts]))
    binding = role_binding("ClusterRoleBinding", "acts") | {"subjects": [{"kind": "User", "name": "erik"}]}
    _create_object(owner, f"{RBAC}/clusterrolebindings", {**binding, "metadata": {"name": "acts"}})
    for name in ("open", "s"):
        _create_object(owner, f"{B}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}
    return _create_object(owner, f"{A}/serviceaccounts", account)


def _create_object(owner: RawRequestClient, path: str, obj: dict[str, Any]) -> dict[str, Any]:
    answer = owner.ask("POST", path, obj)
    assert answer.code == 201, answer
    created: dict[str, Any] = answer.body
    return created


def _certificate(folder: Path, user: str, *groups: str, at: Instant | None = None) -> Path:
    """A client certificate of the authority in a folder, valid for a day from an instant."""
    signed = CertificateAuthority(folder, at or wall_clock()).issue_client_certificate(user, groups, DAY)
    path = folder / f"{user}{at or ''}.pem"
    path.write_bytes(signed.certificate + signed.key)
    return path


def _token(
    key: SigningKey, account: dict[str, Any], at: Instant, audience: str = ISSUER, *, pod: dict[str, Any] | None = None
) -> str:
    """A token issued at an instant, valid for an hour."""
    return TokenIssuer(_Objects(), key, lambda: at).issue_account_token(account, pod, [audience], at + HOUR)


def forge_token(header: dict[str, str], token: str, key: bytes) -> str:
    """The payload of a token with another header, signed with a public key or not at all."""
    begin = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    message = f"{begin}.{token.split('.')[1]}"
    signature = hmac.digest(key, message.encode(), hashlib.sha256) if key else b""
    return f"{message}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize("row", [*TABLE, *TRICKS], ids=lambda row: row.name)
def test_forbidden_request_is_rejected(callers: dict[str, RawRequestClient], row: DeniedRequest) -> None:
    answer = callers[row.caller].ask(row.method, row.path, row.body, **row.headers)
    assert (answer.code, answer.reason) == (row.code, row.reason), answer
    assert "Traceback" not in str(answer.body)


def test_certificate_of_another_authority_is_rejected(callers: dict[str, RawRequestClient]) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        callers["foreign"].ask("GET", "/healthz")


def test_permitted_requests_succeed(callers: dict[str, RawRequestClient]) -> None:
    assert callers["anna"].ask("GET", f"{A}/secrets").code == 200
    assert callers["good token"].ask("GET", "/apis").code == 200
    assert callers["nobody"].ask("GET", "/healthz").code == 200
    assert (
        callers["bob"].ask("POST", f"{RBAC}/namespaces/team-a/rolebindings", role_binding("RoleBinding", "view")).code
        == 201
    )


def test_rejected_requests_change_nothing(callers: dict[str, RawRequestClient]) -> None:
    result = callers["owner"].ask("GET", f"{B}/configmaps").body["items"]
    left = [(obj["metadata"]["name"], obj.get("data")) for obj in result]
    assert [each for each in left if each[0] != "kube-root-ca.crt"] == [("kept", None)]
    assert callers["owner"].ask("GET", f"{A}/configmaps/x").code == 404


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_version_is_rejected(callers: dict[str, RawRequestClient], version: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        callers["of old"].with_tls(version).ask("GET", "/healthz")


def test_line_break_in_field_name_adds_no_response_header(callers: dict[str, RawRequestClient]) -> None:
    sent = config_map("warned", "team-a") | {"a\r\nset-cookie: b": 1}
    answer = callers["anna"].ask("POST", f"{A}/configmaps?dryRun=All", sent)
    assert answer.code == 201
    assert all(name.lower() != "set-cookie" for name in answer.headers)
    assert "unknown field" in answer.headers["warning"]
