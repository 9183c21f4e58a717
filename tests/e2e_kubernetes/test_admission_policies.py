"""Expressions of admission policies have the same results and messages on Kubernetes' API server as on ours."""

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol

import pytest

from e2e_kubernetes.conftest import skip_without
from e2e_kubernetes.kubernetes import NEEDED, Kubernetes
from unit.apiserver.api import Api
from unit.apiserver.policies.policy_objects import CONFIG_MAPS, GROUP, binding, policy

VARIABLES: Final = [
    {"name": "n", "expression": "size(object.data)"},
    {"name": "bad", "expression": "object.data.nothing"},
    {"name": "twice", "expression": "variables.n * 2"},
]
VALIDATIONS: Final = (
    "object.data.size == 'small'",
    "object.data.size == 'large'",
    "object.data.missing == 'a'",
    "has(object.data.missing)",
    "object.data.size > 5",
    "object.data.?missing.orValue('x') == 'y'",
    "object.data.size + 1 == 3",
    "1/0 == 1",
    "[1,2][5] == 1",
    "object.data.size.foo == 3",
    "object.data.size",
    "'abc'",
    "1 + 'a' == 3",
    "object.foo(",
    "foo.bar == 3",
    "variables.n == 3",
    "variables.twice == 5",
    "variables.bad == 'x'",
    "variables.none == 3",
    "variables.n == 'a'",
    "variables.n.foo == 3",
    "has(variables.n) == false",
    "request.foo == 'x'",
    "request.userInfo.foo == 'x'",
    "request.dryRun == false",
    "oldObject.x == 3",
    "namespaceObject.metadata.managedFields == null",
    "params == null",
    "authorizer.requestResource.check('create').allowed() == false",
    "authorizer.serviceAccount('default', 'default').group('').resource('pods').check('create').allowed()",
    "authorizer.serviceAccount('Default', 'd').group('').resource('pods').check('get').allowed()",
    "authorizer.group('').resource('').check('create').allowed()",
    "authorizer.path('').check('get').allowed()",
    "object.data.all(k, k.size() > 3)",
    "quantity('1Gi').isGreaterThan(quantity('2Gi'))",
    "quantity('x') == quantity('1')",
    "semver('1.2.3').isLessThan(semver('1.2.3-rc.1'))",
    "[1,2,3].slice(2,1) == [1]",
    "[1,1].distinct() == [2]",
    "ip('x').family() == 4",
    "url('x') == url('y')",
    "object.",
    "'unterminated",
    "undefined(3)",
    "(object.data.size == 'x' ||\n request.nothing == 'y')",
)
MUTATIONS: Final = (
    'Object{data: {"x": "y"}}',
    "Object{spec: Object.spec{a: 1}}",
    "Object{metadata: Object.spec{}}",
    '{"a": 1}',
    "object",
    'true ? Object{data: {"x": "y"}} : Object{}',
    "Object{metadata: Object.metadata{labels: object.metadata.nothing}}",
    "Object{metadata: Object.metadata{?name: optional.none()}}",
    'Object{data: {?"x": optional.none(), ?"z": optional.of("q")}}',
    'Object{metadata: Object.metadata{name: "other"}}',
    'Object{metadata: Object.metadata{ownerReferences: [Object.metadata.ownerReferences{name: "x"}]}}',
    'Object{metadata: Object.metadata{finalizers: ["a/b"]}}',
)
PATCHES: Final = (
    "[]",
    '[JSONPatch{op: "add", path: "/data/x", value: "y"}]',
    '[JSONPatch{op: "add", path: "/nothing/x", value: "y"}]',
    '[JSONPatch{op: "remove", path: "/data/zz"}]',
    '[JSONPatch{op: "test", path: "/data/size", value: "zz"}, JSONPatch{op: "remove", path: "/data/size"}]',
    '[JSONPatch{op: "copy", from: "/data/size", path: "/data/cp"}, JSONPatch{op: "remove", path: "/data/n"}]',
    '[JSONPatch{op: "add", path: "/data/x", value: 1}]',
    '[JSONPatch{op: "bad", path: "/data/x", value: "1"}]',
    '[JSONPatch{op: "replace", path: "/metadata", value: Object.metadata{name: "z"}}]',
    '[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("k8s.io/x"), value: "v"}]',
    '[{"op": "add"}]',
    'JSONPatch{op: "add", path: "/foo", value: "y"}',
    '[JSONPatch{op: "add", path: "/foo", value: "y"}]',
)


class PolicyCase(NamedTuple):
    """One expression in a policy of its own, which applies only to the ConfigMap of its name."""

    kind: str
    name: str
    expression: str

    def policy(self) -> dict[str, Any]:
        """The policy."""
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        selected = {**rule, "resourceNames": [self.name]}
        if self.kind == "Validating":
            validations = [{"expression": self.expression}]
            return policy(self.kind, self.name, selected, variables=VARIABLES, validations=validations)
        is_patch = self.expression in PATCHES
        field, patch_type = ("jsonPatch", "JSONPatch") if is_patch else ("applyConfiguration", "ApplyConfiguration")
        mutations = [{"patchType": patch_type, field: {"expression": self.expression}}]
        return policy(self.kind, self.name, selected, mutations=mutations, reinvocationPolicy="Never")


CASES: Final = [
    *(PolicyCase("Validating", f"v-{index}", each) for index, each in enumerate(VALIDATIONS)),
    *(PolicyCase("Mutating", f"m-{index}", each) for index, each in enumerate((*MUTATIONS, *PATCHES))),
]


class AskedServer(Protocol):
    """An API server that answers requests of the owner."""

    def post(self, path: str, obj: Mapping[str, Any]) -> tuple[int, Any]:
        """The code and the body of the answer to a POST."""


class KubernetesServer:
    """The API server of Kubernetes."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        context = ssl.create_default_context(cafile=str(kubernetes.authority.certificate_file))
        folder = kubernetes.kubeconfig.parent
        context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        self.connection = http.client.HTTPSConnection(kubernetes.url.removeprefix("https://"), context=context)

    def post(self, path: str, obj: Mapping[str, Any]) -> tuple[int, Any]:
        """The code and the body of the answer to a POST."""
        self.connection.request("POST", path, json.dumps(obj), {"content-type": "application/json"})
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())


class OwnServer:
    """Our API server."""

    def __init__(self) -> None:
        self._api = Api()

    def post(self, path: str, obj: Mapping[str, Any]) -> tuple[int, Any]:
        """The code and the body of the answer to a POST."""
        response = self._api.ask("POST", path, obj)
        return response.code, response.body


def outcomes(server: AskedServer) -> dict[str, Any]:
    """For each case, the error of its policy, or the answer to a dry run that creates its ConfigMap."""
    reported: dict[str, Any] = {}
    for case in CASES:
        plural = f"{GROUP}/{case.kind.lower()}admissionpolic"
        code, body = server.post(f"{plural}ies", case.policy())
        if code == 201:
            assert server.post(f"{plural}ybindings", binding(case.kind, case.name))[0] == 201
        else:
            reported[case.name] = (code, body["message"])
    _wait_for_last_policy(server, next(case for case in reversed(CASES) if case.name not in reported))
    for case in CASES:
        if case.name not in reported:
            reported[case.name] = _answer(server, case.name)
    return reported


def _wait_for_last_policy(server: AskedServer, case: PolicyCase) -> None:
    """Ask until a policy that denies a request is effective; Kubernetes' API server notices policies later."""
    for _ in range(600):
        if _answer(server, case.name)[0] != 201:
            return
        threading.Event().wait(0.2)
    raise AssertionError(case)


def _answer(server: AskedServer, name: str) -> tuple[Any, ...]:
    metadata = {"name": name, "labels": {"a": "b"}}
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"size": "small", "n": "3"}}
    code, body = server.post(f"{CONFIG_MAPS}?dryRun=All", obj)
    if code == 201:
        kept = {field: body["metadata"].get(field) for field in ("name", "labels", "finalizers", "ownerReferences")}
        return code, kept, body.get("data")
    return code, body["reason"], body["message"], body.get("details")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The outcomes on Kubernetes' API server."""
    skip_without(NEEDED)
    with Kubernetes(tmp_path_factory.mktemp("policies")) as kubernetes:
        server = KubernetesServer(kubernetes)
        with closing(server.connection):
            yield outcomes(server)


@pytest.fixture(scope="module")
def reported() -> dict[str, Any]:
    """The outcomes on our API server."""
    return outcomes(OwnServer())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_expression_has_outcome_of_kubernetes(
    expected: dict[str, Any], reported: dict[str, Any], case: PolicyCase
) -> None:
    assert reported[case.name] == expected[case.name], case.expression
