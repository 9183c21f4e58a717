"""What nobody may do: a table of requests, each with the refusal it meets."""

import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchyard.apiserver.auth.tokens import ISSUER, Tokens
from batchyard.base.instant import HOUR, Instant
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import CertificateAuthority, SigningKey
from e2e_platform.raw import Caller
from e2e_platform.running import Running

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


def bound(kind: str, to: str) -> dict[str, Any]:
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
#: The first name counts for rights, and objects must have both: so nobody sees any.
ONE_OF_TWO = "fieldSelector=metadata.name%3Ds,metadata.name%3Dopen"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REVIEWS_OF_ACCESS = "/apis/authorization.k8s.io/v1"
BINDINGS = f"{RBAC}/namespaces/team-a/rolebindings"
ADMIN = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
TO_ALL = bound("RoleBinding", "cluster-admin")
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
        "conversion": {
            "strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"}},
        },
    },
}
#: What a list of team-b goes on with.
FORGED = base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1","rv":1,"start":"team-b/a"}').decode()
BOMB = b"a: &a [x]\n" + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b"*%c," % n * 9) for n in range(97, 110))
CODE = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: !!python/object/apply:os.getcwd []}"


class Forbidden(NamedTuple):
    """Who tries what, and the refusal."""

    what: str
    who: str
    method: str
    path: str | bytes
    code: int
    reason: str
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody changes it


#: anna edits in team-a, bob administers it, carol may write ClusterRoles, the owner may do everything.
TABLE = (
    Forbidden("no credentials", "nobody", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("no credentials, a write", "nobody", "POST", f"{A}/configmaps", 401, "Unauthorized", {}),
    Forbidden("no credentials, what is served", "nobody", "GET", "/apis", 401, "Unauthorized"),
    Forbidden("no credentials, no such path", "nobody", "GET", "/metrics", 401, "Unauthorized"),
    Forbidden("a wrong token", "wrong token", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a wrong token where anybody may look", "wrong token", "GET", "/healthz", 401, "Unauthorized"),
    Forbidden("a token of another platform", "foreign token", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token without a signature", "unsigned token", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token whose time is over", "expired token", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token for others", "token for others", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token of an account that is gone", "orphan token", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a certificate whose time is over", "expired", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("pods of another team", "anna", "GET", f"{B}/pods", 403, "Forbidden"),
    Forbidden("a secret of another team", "anna", "GET", f"{B}/secrets/s", 403, "Forbidden"),
    Forbidden("a watch on another team", "anna", "GET", f"{B}/pods?watch=1", 403, "Forbidden"),
    Forbidden("jobs of all teams", "anna", "GET", "/apis/batch/v1/jobs", 403, "Forbidden"),
    Forbidden("by name in all", "anna", "GET", "/api/v1/secrets?fieldSelector=metadata.name=s", 403, "Forbidden"),
    Forbidden("a job for another team", "anna", "POST", f"{BATCH_B}/jobs", 403, "Forbidden", JOB),
    Forbidden("an object for another team", "anna", "POST", f"{A}/configmaps", 400, "BadRequest", config_map("x", "b")),
    Forbidden("for no namespace", "owner", "POST", "/api/v1/configmaps", 405, "MethodNotAllowed", config_map("x", "b")),
    Forbidden("over", "anna", "PUT", f"{A}/configmaps/kept", 400, "BadRequest", config_map("kept", "team-b")),
    Forbidden("beside", "anna", "PUT", f"{A}/configmaps/kept", 400, "BadRequest", config_map("other", "team-a")),
    Forbidden(
        *("moved", "anna", "PATCH", f"{A}/configmaps/kept", 400, "BadRequest"),
        *({"metadata": {"namespace": "team-b"}}, MERGE),
    ),
    Forbidden("a status", "anna", "PATCH", f"{BATCH_A}/jobs/j/status", 403, "Forbidden", {}, MERGE),
    Forbidden("another queue", "anna", "DELETE", f"{KUEUE}/namespaces/team-b/localqueues/q", 403, "Forbidden"),
    Forbidden("a queue of one's own", "anna", "POST", f"{KUEUE}/namespaces/team-a/localqueues", 403, "Forbidden", {}),
    Forbidden("quota", "anna", "POST", f"{KUEUE}/clusterqueues", 403, "Forbidden", {}),
    Forbidden("admission", "anna", "PUT", f"{KUEUE}/namespaces/team-a/workloads/w/status", 403, "Forbidden", {}),
    Forbidden("all of another team", "anna", "DELETE", f"{B}/configmaps", 403, "Forbidden"),
    Forbidden("a node", "anna", "PATCH", "/api/v1/nodes/n", 403, "Forbidden", {}, MERGE),
    Forbidden("a namespace", "anna", "POST", "/api/v1/namespaces", 403, "Forbidden", {}),
    Forbidden("a priority", "anna", "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", 403, "Forbidden", {}),
    Forbidden("a token of another team", "anna", "POST", f"{B}/serviceaccounts/default/token", 403, "Forbidden", {}),
    Forbidden(
        *("a binding of all rights", "bob", "POST", f"{RBAC}/namespaces/team-a/rolebindings", 403, "Forbidden"),
        bound("RoleBinding", "cluster-admin"),
    ),
    Forbidden(
        *("a role of more rights", "bob", "POST", f"{RBAC}/namespaces/team-a/roles", 403, "Forbidden"),
        role("Role", "more", rules=READS_NODES),
    ),
    Forbidden(
        *("more rights for a role", "bob", "PUT", f"{RBAC}/namespaces/team-a/roles/less", 403, "Forbidden"),
        role("Role", "less", rules=[*READS_SECRETS, *READS_NODES]),
    ),
    Forbidden(
        *("rights everywhere", "bob", "POST", f"{RBAC}/clusterrolebindings", 403, "Forbidden"),
        bound("ClusterRoleBinding", "view"),
    ),
    Forbidden(
        *("a role for everywhere", "carol", "POST", f"{RBAC}/clusterroles", 403, "Forbidden"),
        role("ClusterRole", "more", rules=READS_SECRETS),
    ),
    Forbidden(
        *("a role of whatever comes", "carol", "POST", f"{RBAC}/clusterroles", 403, "Forbidden"),
        role("ClusterRole", "more", rules=[], aggregationRule=AGGREGATE),
    ),
    Forbidden(
        *("rights into other roles", "carol", "PATCH", f"{RBAC}/clusterroles/cluster-admin", 403, "Forbidden"),
        *(LABELLED, MERGE),
    ),
    Forbidden("as another", "anna", "GET", f"{A}/pods", 403, "Forbidden", None, {"impersonate-user": "owner"}),
    Forbidden(
        *("as one who may everything", "anna", "GET", f"{A}/pods", 403, "Forbidden", None),
        {"impersonate-user": "anna", "impersonate-group": "system:masters"},
    ),
    Forbidden(
        *("as an account of another team", "anna", "GET", f"{B}/pods", 403, "Forbidden", None),
        {"impersonate-user": "system:serviceaccount:team-b:default"},
    ),
    Forbidden("a group alone", "owner", "GET", f"{A}/pods", 400, "BadRequest", None, {"impersonate-group": "g"}),
    Forbidden("a way up", "anna", "GET", f"{A}/../team-b/secrets", 404, "NotFound"),
    Forbidden("a way up in disguise", "anna", "GET", f"{A}/%2e%2e/team-b/secrets", 404, "NotFound"),
    Forbidden("slashes in disguise", "anna", "GET", "/api/v1/namespaces/a%2F..%2Fteam-b/secrets", 404, "NotFound"),
    Forbidden("a namespace in disguise", "anna", "GET", "/api/v1/namespaces/team-b%2Fsecrets", 403, "Forbidden"),
    Forbidden("two slashes", "anna", "GET", "//api/v1/namespaces/team-b/secrets", 403, "Forbidden"),
    Forbidden("slashes within", "anna", "GET", "/api//v1/namespaces/team-b/secrets", 404, "NotFound"),
    Forbidden("a byte of zero", "owner", "GET", f"{A}/pods/a%00b", 404, "NotFound"),
    Forbidden("no UTF-8", "owner", "GET", f"{A}/pods/%ff%fe", 404, "NotFound"),
    Forbidden("no ASCII", "owner", "GET", f"{A}/pods/".encode() + b"\xff", 400, "Invalid HTTP request received."),
    Forbidden("a path without end", "owner", "GET", "/" + "a" * 100_000, 431, "Request Header Fields Too Large"),
    Forbidden(
        *("headers without end", "owner", "GET", f"{A}/pods", 431, "Request Header Fields Too Large", None),
        {"x": "a" * 100_000},
    ),
    Forbidden("a large body", "owner", "POST", f"{A}/configmaps", 413, "RequestEntityTooLarge", b" " * 3_200_000),
    Forbidden("a body that is none", "owner", "POST", f"{A}/configmaps", 400, "BadRequest", b"\xff\xfe{"),
    Forbidden(
        "no known format", "owner", "POST", f"{A}/pods", 415, "UnsupportedMediaType", b"<a/>", {"content-type": "a"}
    ),
    Forbidden("no known method", "owner", "TRACE", f"{A}/pods", 405, "MethodNotAllowed"),
    Forbidden("asking for methods", "owner", "OPTIONS", f"{A}/pods", 405, "MethodNotAllowed"),
    Forbidden("a method for another path", "owner", "POST", f"{A}/pods/p", 405, "MethodNotAllowed", {}),
    Forbidden(
        "a review is not to be read",
        "owner",
        "GET",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        405,
        "MethodNotAllowed",
    ),
)

#: What somebody may try who has read the source. dora may get the Secret `open` of team-b, and nothing else; erik may
#: impersonate users, and no groups.
TRICKS = (
    Forbidden("a token of no algorithm", "token of none", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token of another algorithm", "token of HS256", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token of a pod that is gone", "token of a pod", "GET", f"{A}/pods", 401, "Unauthorized"),
    Forbidden("a token in the query", "nobody", "GET", f"{A}/pods?access_token=x", 401, "Unauthorized"),
    Forbidden("a password", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"authorization": "Basic YTpi"}),
    Forbidden(
        "a user in a header", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"x-remote-user": "owner"}
    ),
    Forbidden(
        "no TLS, as is said", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"x-forwarded-proto": "http"}
    ),
    Forbidden(
        "from here, as is said", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"x-real-ip": "127.0.0.1"}
    ),
    Forbidden(
        "as another, unknown", "nobody", "GET", f"{A}/pods", 401, "Unauthorized", None, {"impersonate-user": "owner"}
    ),
    Forbidden("as one of a group", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_MASTER),
    Forbidden("with what is known of another", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_KNOWN),
    Forbidden("with the uid of another", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_UID),
    Forbidden("as an account, by the right to users", "erik", "GET", f"{A}/pods", 403, "Forbidden", None, AS_ACCOUNT),
    Forbidden(
        "another method in a header", "anna", "POST", f"{A}/configmaps/kept", 405, "MethodNotAllowed", {}, OVERRIDE
    ),
    Forbidden("another method, not mine", "anna", "GET", f"{B}/configmaps/kept", 403, "Forbidden", None, OVERRIDE),
    Forbidden("another case", "anna", "GET", "/api/v1/namespaces/TEAM-B/secrets", 403, "Forbidden"),
    Forbidden("another case of the path", "anna", "GET", "/API/v1/namespaces/team-b/secrets", 403, "Forbidden"),
    Forbidden("another letter", "anna", "GET", "/api/v1/namespaces/team-%D0%B0/secrets", 403, "Forbidden"),
    Forbidden("a parameter of the path", "anna", "GET", "/api/v1/namespaces/team-b;a=b/secrets", 403, "Forbidden"),
    Forbidden("a dot", "anna", "GET", "/api/v1/./namespaces/team-b/secrets", 404, "NotFound"),
    Forbidden("a way up twice in disguise", "anna", "GET", f"{A}/%252e%252e/team-b/secrets", 404, "NotFound"),
    Forbidden("a back slash", "anna", "GET", f"{A}\\..\\team-b/secrets", 403, "Forbidden"),
    Forbidden("a line's end in a name", "anna", "GET", f"{B}/secrets/s%0d%0aa:b", 403, "Forbidden"),
    Forbidden(
        "an end of text in a name", "anna", "GET", "/api/v1/namespaces/team-a%00/../team-b/secrets", 404, "NotFound"
    ),
    Forbidden("a fragment", "anna", "GET", f"{B}/secrets#/namespaces/team-a", 403, "Forbidden"),
    Forbidden("an old path of watches", "anna", "GET", "/api/v1/watch/namespaces/team-b/secrets", 404, "NotFound"),
    Forbidden("an old path of proxies", "anna", "GET", "/api/v1/proxy/namespaces/team-b/pods/p", 404, "NotFound"),
    Forbidden("a node's own API", "anna", "GET", "/api/v1/nodes/n/proxy/pods", 404, "NotFound"),
    Forbidden("a list by a name that is mine", "dora", "GET", f"{B}/secrets?{ONE_OF_TWO}", 403, "Forbidden"),
    Forbidden(
        "a list of all but one", "dora", "GET", f"{B}/secrets?fieldSelector=metadata.name!=open", 403, "Forbidden"
    ),
    Forbidden("a list by a label", "dora", "GET", f"{B}/secrets?labelSelector=metadata.name%3Dopen", 403, "Forbidden"),
    Forbidden("a watch of one that is another's", "dora", "GET", f"{B}/secrets/s?watch=1", 403, "Forbidden"),
    Forbidden("a change of what may be read", "dora", "PATCH", f"{B}/secrets/open", 403, "Forbidden", {}, MERGE),
    Forbidden(
        "a change that is only tried", "dora", "PATCH", f"{B}/secrets/open?dryRun=All", 403, "Forbidden", {}, MERGE
    ),
    Forbidden("all as a table", "dora", "GET", f"{B}/secrets", 403, "Forbidden", None, AS_TABLE),
    Forbidden("all without what is in it", "dora", "GET", f"{B}/secrets", 403, "Forbidden", None, AS_METADATA),
    Forbidden("all, read by deleting", "dora", "DELETE", f"{B}/secrets?dryRun=All", 403, "Forbidden"),
    Forbidden("made by applying", "dora", "PATCH", f"{B}/secrets/new?fieldManager=d", 403, "Forbidden", {}, APPLIED),
    Forbidden("an eviction", "anna", "POST", f"{B}/pods/p/eviction", 403, "Forbidden", {}),
    Forbidden("a place for a pod", "anna", "POST", f"{B}/pods/p/binding", 403, "Forbidden", {}),
    Forbidden(
        "an admission of one's own", "anna", "POST", f"{KUEUE}/namespaces/team-a/workloads", 403, "Forbidden", {}
    ),
    Forbidden("a cohort", "bob", "POST", f"{KUEUE}/cohorts", 403, "Forbidden", {}),
    Forbidden("a check", "bob", "POST", f"{KUEUE}/admissionchecks", 403, "Forbidden", {}),
    Forbidden("a priority of queues", "bob", "POST", f"{KUEUE}/workloadpriorityclasses", 403, "Forbidden", {}),
    Forbidden("a machine", "bob", "POST", "/apis/cloud.batchyard.dev/v1alpha1/instances", 403, "Forbidden", {}),
    Forbidden("a kind", "bob", "POST", f"{CRDS}", 403, "Forbidden", {}),
    Forbidden("a kind that asks elsewhere", "owner", "POST", f"{CRDS}", 422, "Invalid", CONVERTED),
    Forbidden("another namespace gone", "bob", "DELETE", "/api/v1/namespaces/team-a", 403, "Forbidden"),
    Forbidden("who may do what", "anna", "POST", f"{REVIEWS_OF_ACCESS}/subjectaccessreviews", 403, "Forbidden", {}),
    Forbidden("whose a token is", "anna", "POST", f"{REVIEWS}/tokenreviews", 403, "Forbidden", {}),
    Forbidden(
        "a certificate", "anna", "POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", 403, "Forbidden", {}
    ),
    Forbidden("a binding that is only tried", "bob", "POST", f"{BINDINGS}?dryRun=All", 403, "Forbidden", TO_ALL),
    Forbidden(
        "a binding by applying", "bob", "PATCH", f"{BINDINGS}/more?fieldManager=b", 403, "Forbidden", TO_ALL, APPLIED
    ),
    Forbidden(
        "another role for a binding", "bob", "PATCH", f"{BINDINGS}/bob", 422, "Invalid", {"roleRef": ADMIN}, MERGE
    ),
    Forbidden("all who are known", "bob", "POST", f"{BINDINGS}", 403, "Forbidden", TO_ALL_KNOWN),
    Forbidden("a list that another began", "anna", "GET", f"{A}/configmaps?limit=1&continue={FORGED}", 410, "Expired"),
    Forbidden("a token that is none", "anna", "GET", f"{A}/configmaps?continue=../../b", 400, "BadRequest"),
    Forbidden("a revision yet to come", "anna", "GET", f"{A}/configmaps?resourceVersion=99999999", 504, "Timeout"),
    Forbidden(
        "a bomb", "anna", "POST", f"{A}/configmaps", 400, "BadRequest", BOMB, {"content-type": "application/yaml"}
    ),
    Forbidden("code", "anna", "POST", f"{A}/configmaps", 400, "BadRequest", CODE, {"content-type": "application/yaml"}),
    Forbidden(
        "two hosts", "owner", "GET", f"{A}/pods", 400, "400 Bad Request: too many Host headers", None, {"Host": "other"}
    ),
)


class _Objects:
    """ServiceAccounts as a token's maker sees them."""

    def get(self, _key: object) -> None:
        """None is needed."""

    def list(self, _kind: str, _namespace: str | None = None) -> tuple[()]:
        """None is needed."""
        return ()


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Caller]]:
    """Those who try, against one platform."""
    folder = tmp_path_factory.mktemp("platform")
    with Running(folder) as platform:
        owner = Caller(platform.kubeconfig, certificate=_certificate(folder, "owner", "system:masters"))
        account = _prepared(owner)
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
            "token of none": forged({"alg": "none"}, unsigned, b""),
            "token of HS256": forged({"alg": "HS256", "kid": ours.key_id}, unsigned, (folder / "ca.crt").read_bytes()),
            "token of a pod": _token(ours, account, now, pod={"kind": "Pod", "metadata": {"name": "p", "uid": "gone"}}),
        }
        certificates = {name: _certificate(folder, name) for name in ("anna", "bob", "carol", "dora", "erik")}
        certificates["expired"] = _certificate(folder, "anna", at=now - 2 * DAY)
        yield {
            "owner": owner,
            "nobody": Caller(platform.kubeconfig),
            "of old": Caller(platform.kubeconfig),
            "good token": Caller(platform.kubeconfig, token=_token(ours, account, now)),
            "foreign": Caller(platform.kubeconfig, certificate=_certificate(tmp_path_factory.mktemp("ca"), "anna")),
            **{name: Caller(platform.kubeconfig, token=token) for name, token in tokens.items()},
            **{name: Caller(platform.kubeconfig, certificate=path) for name, path in certificates.items()},
        }


def _prepared(owner: Caller) -> dict[str, Any]:
    """Make two teams and what their people may do; the ServiceAccount of one."""
    for team in ("team-a", "team-b"):
        _made(owner, "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
        _made(owner, f"/api/v1/namespaces/{team}/configmaps", config_map("kept", team))
    for user, given in (("anna", "edit"), ("bob", "admin")):
        binding = bound("RoleBinding", given) | {"subjects": [{"kind": "User", "name": user}]}
        binding["metadata"] = {"name": user}
        _made(owner, f"{RBAC}/namespaces/team-a/rolebindings", binding)
    _made(owner, f"{RBAC}/namespaces/team-a/roles", role("Role", "less", rules=READS_SECRETS))
    writes = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create", "patch"]}
    _made(owner, f"{RBAC}/clusterroles", role("ClusterRole", "more", rules=[writes]))
    binding = bound("ClusterRoleBinding", "more") | {"subjects": [{"kind": "User", "name": "carol"}]}
    _made(owner, f"{RBAC}/clusterrolebindings", binding)
    reads = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"], "resourceNames": ["open"]}
    _made(owner, f"{RBAC}/namespaces/team-b/roles", role("Role", "open", rules=[reads]))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "open"}
    binding = role("RoleBinding", "dora", roleRef=reference, subjects=[{"kind": "User", "name": "dora"}])
    _made(owner, f"{RBAC}/namespaces/team-b/rolebindings", binding)
    acts = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    _made(owner, f"{RBAC}/clusterroles", role("ClusterRole", "acts", rules=[acts]))
    binding = bound("ClusterRoleBinding", "acts") | {"subjects": [{"kind": "User", "name": "erik"}]}
    _made(owner, f"{RBAC}/clusterrolebindings", {**binding, "metadata": {"name": "acts"}})
    for name in ("open", "s"):
        _made(owner, f"{B}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}
    return _made(owner, f"{A}/serviceaccounts", account)


def _made(owner: Caller, path: str, obj: dict[str, Any]) -> dict[str, Any]:
    answer = owner.ask("POST", path, obj)
    assert answer.code == 201, answer
    made: dict[str, Any] = answer.body
    return made


def _certificate(folder: Path, user: str, *groups: str, at: Instant | None = None) -> Path:
    """A certificate of the authority in a folder, good for a day from an instant on."""
    signed = CertificateAuthority(folder, at or wall_clock()).client(user, groups, DAY)
    path = folder / f"{user}{at or ''}.pem"
    path.write_bytes(signed.certificate + signed.key)
    return path


def _token(
    key: SigningKey, account: dict[str, Any], at: Instant, audience: str = ISSUER, *, pod: dict[str, Any] | None = None
) -> str:
    """A token made at an instant, good for an hour."""
    return Tokens(_Objects(), key, lambda: at).issue(account, pod, [audience], at + HOUR)


def forged(header: dict[str, str], token: str, key: bytes) -> str:
    """What a token says, under another header, signed with what everybody knows, or not at all."""
    begin = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    message = f"{begin}.{token.split('.')[1]}"
    signature = hmac.digest(key, message.encode(), hashlib.sha256) if key else b""
    return f"{message}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize("row", [*TABLE, *TRICKS], ids=lambda row: row.what)
def test_it_is_refused(callers: dict[str, Caller], row: Forbidden) -> None:
    answer = callers[row.who].ask(row.method, row.path, row.body, **row.headers)
    assert (answer.code, answer.reason) == (row.code, row.reason), answer
    assert "Traceback" not in str(answer.body)


def test_a_certificate_of_another_authority_gets_no_connection(callers: dict[str, Caller]) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        callers["foreign"].ask("GET", "/healthz")


def test_what_is_theirs_they_may(callers: dict[str, Caller]) -> None:
    assert callers["anna"].ask("GET", f"{A}/secrets").code == 200
    assert callers["good token"].ask("GET", "/apis").code == 200
    assert callers["nobody"].ask("GET", "/healthz").code == 200
    assert (
        callers["bob"].ask("POST", f"{RBAC}/namespaces/team-a/rolebindings", bound("RoleBinding", "view")).code == 201
    )


def test_nothing_of_what_was_tried_was_done(callers: dict[str, Caller]) -> None:
    found = callers["owner"].ask("GET", f"{B}/configmaps").body["items"]
    left = [(obj["metadata"]["name"], obj.get("data")) for obj in found]
    assert [each for each in left if each[0] != "kube-root-ca.crt"] == [("kept", None)]
    assert callers["owner"].ask("GET", f"{A}/configmaps/x").code == 404


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_older_versions_of_tls_get_no_connection(callers: dict[str, Caller], version: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        callers["of old"].with_tls(version).ask("GET", "/healthz")


def test_names_of_fields_end_no_header(callers: dict[str, Caller]) -> None:
    sent = config_map("warned", "team-a") | {"a\r\nset-cookie: b": 1}
    answer = callers["anna"].ask("POST", f"{A}/configmaps?dryRun=All", sent)
    assert answer.code == 201
    assert all(name.lower() != "set-cookie" for name in answer.headers)
    assert "unknown field" in answer.headers["warning"]
