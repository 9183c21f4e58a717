"""CertificateSigningRequests over the API: who asks, who decides, and what each subresource may change."""

import base64
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from batchyard.apiserver.admission.gate import CONTROLLER_USER
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.apiserver.certificates.validation import PemBlock, pem_blocks
from batchyard.apiserver.request import UserInfo
from batchyard.cli.commands.monitoring import PROMETHEUS_USER
from batchyard.server.platform.data_dir import STANDBY_USER
from unit.apiserver import roles
from unit.apiserver.api import OWNER, Api

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT = "kubernetes.io/kube-apiserver-client"
ANNA = UserInfo("anna", ("team-a",), "u1", (("scope", ("a", "b")),))
APPROVED = {"type": "Approved", "status": "True", "reason": "r", "message": "m"}


def request_bytes(name: str = "ada", *groups: str, names: Sequence[x509.GeneralName] = ()) -> str:
    """A certificate request, PEM in base64."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return base64.b64encode(signed.public_bytes(serialization.Encoding.PEM)).decode()


REQUEST = request_bytes()


def csr(**spec: Any) -> dict[str, Any]:
    """A CertificateSigningRequest named `ada`."""
    whole_spec = {"request": REQUEST, "signerName": CLIENT, "usages": ["client auth"], **spec}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return {**kind, "metadata": {"name": "ada"}, "spec": whole_spec}


def approved(api: Api, user: UserInfo = OWNER) -> Any:
    """The answer to an approval of `ada`."""
    obj = {**api.get(f"{PATH}/ada"), "status": {"conditions": [APPROVED], "certificate": REQUEST}}
    return api.ask("PUT", f"{PATH}/ada/approval", obj, user=user)


def grant(api: Api, *rules: dict[str, Any]) -> None:
    """Grant rules to Anna."""
    group_path = f"/apis/{roles.GROUP}/v1"
    api.post(f"{group_path}/clusterroles", roles.role("r", *rules))
    api.post(f"{group_path}/clusterrolebindings", roles.binding("b", "ClusterRole/r", roles.user("anna")))


WRITES = roles.rule(
    "create get update", "certificatesigningrequests certificatesigningrequests/approval", "certificates.k8s.io"
)


def test_spec_names_the_user_that_creates_a_request_and_is_immutable() -> None:
    api = Api()
    grant(api, WRITES)
    sent = csr(username="root", groups=["system:masters"], extra={"x": ["y"]})
    created = api.ask("POST", PATH, sent, user=ANNA).body
    assert created["spec"]["username"] == "anna"
    assert (created["spec"]["groups"], created["spec"]["uid"]) == (["team-a"], "u1")
    assert created["spec"]["extra"] == {"scope": ["a", "b"]}
    changed = api.ask("PUT", f"{PATH}/ada", {**created, "spec": csr(usages=["any"])["spec"]}).body
    assert changed["spec"] == created["spec"]


def test_status_of_a_new_request_is_discarded() -> None:
    created = Api().post(PATH, {**csr(), "status": {"conditions": [APPROVED]}})
    assert "conditions" not in created["status"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"request": base64.b64encode(b"x").decode()}, "PEM block type must be CERTIFICATE REQUEST"),
        ({"usages": []}, "spec.usages: Required value"),
        ({"usages": ["fly"]}, 'spec.usages[0]: Unsupported value: "fly": supported values: "any", "cert sign"'),
        ({"usages": ["any", "any"]}, 'spec.usages[1]: Duplicate value: "any"'),
        ({"signerName": "kubernetes.io/legacy-unknown"}, "the legacy signerName is not allowed via this API version"),
        ({"signerName": "x"}, "must be a fully qualified domain and path of the form 'example.com/signer-name'"),
        ({"signerName": "x/y"}, "should be a domain with at least two segments separated by dots"),
        ({"signerName": "a.b/-"}, 'Invalid value: "-": validating label "-": a lowercase RFC 1123 subdomain'),
        ({"expirationSeconds": 599}, "may not specify a duration less than 600 seconds (10 minutes)"),
    ],
)
def test_invalid_request_is_rejected(spec: dict[str, Any], problem: str) -> None:
    response = Api().ask("POST", PATH, csr(**spec))
    assert response.code == 422
    assert problem in response.body["message"]


def test_tampered_request_is_rejected() -> None:
    pem = base64.b64decode(REQUEST).split(b"\n")
    other = base64.b64decode(request_bytes("eve")).split(b"\n")
    forged = base64.b64encode(b"\n".join([other[0], other[1], *pem[2:]])).decode()
    assert Api().ask("POST", PATH, csr(request=forged)).code == 422


def test_request_with_malformed_subject_is_rejected() -> None:
    content = x509.load_pem_x509_csr(base64.b64decode(REQUEST)).public_bytes(serialization.Encoding.DER)
    body = base64.encodebytes(content.replace(b"ada", b"\xff\xff\xff"))
    pem = b"-----BEGIN CERTIFICATE REQUEST-----\n" + body + b"-----END CERTIFICATE REQUEST-----\n"
    response = Api().ask("POST", PATH, csr(request=base64.b64encode(pem).decode()))
    assert response.code == 422
    assert "x509: malformed certificate request" in response.body["message"]


def test_client_certificate_for_masters_is_forbidden() -> None:
    response = Api().ask("POST", PATH, csr(request=request_bytes("eve", "a", "system:masters")))
    reason = f"use of {CLIENT} signer with system:masters group is not allowed"
    assert response.code == 403
    assert response.body["message"] == f'certificatesigningrequests.certificates.k8s.io "ada" is forbidden: {reason}'


@pytest.mark.parametrize("name", [STANDBY_USER, PROMETHEUS_USER, CONTROLLER_USER.name])
def test_client_certificate_for_users_of_batchyard_is_forbidden(name: str) -> None:
    response = Api().ask("POST", PATH, csr(request=request_bytes(name)))
    reason = f"use of {CLIENT} signer with {name} user is not allowed"
    assert response.code == 403
    assert response.body["message"] == f'certificatesigningrequests.certificates.k8s.io "ada" is forbidden: {reason}'
    assert Api().ask("POST", PATH, csr(request=request_bytes("system:batchyard"))).code == 201


def test_pem_blocks_end_at_the_next_marker_of_their_type() -> None:
    lone, whole = b"-----BEGIN C-----\n", b"-----BEGIN A-----\r\nx-----END B-----\ny-----END A-----"
    blocks = list(pem_blocks(b"-----END A-----" + lone + whole + b"BEGIN A-----\n" + whole))
    assert blocks == [PemBlock(b"A", b"x-----END B-----\ny", whole)] * 2


def test_pem_blocks_without_end_are_skipped_in_linear_time() -> None:
    text = b"-----BEGIN A-----\n" * 200_000  # a quadratic search takes more than an hour
    assert not list(pem_blocks(text + b"-----END B-----"))


def test_approval_requires_the_right_to_approve_for_the_signer() -> None:
    api = Api()
    grant(api, WRITES)
    api.post(PATH, csr())
    response = approved(api, ANNA)
    assert response.code == 403
    assert f'user not permitted to approve requests with signerName "{CLIENT}"' in response.body["message"]


@pytest.mark.parametrize("name", [CLIENT, "kubernetes.io/*"])
def test_right_to_approve_may_name_the_signer_or_its_domain(name: str) -> None:
    api = Api()
    grant(api, WRITES, roles.rule("approve", "signers", "certificates.k8s.io", name))
    api.post(PATH, csr())
    assert approved(api, ANNA).code == 200


def test_approval_sets_conditions_with_times_but_no_certificate() -> None:
    api = Api()
    api.post(PATH, csr())
    status = approved(api).body["status"]
    times = {"lastUpdateTime": "1970-01-01T00:00:00Z", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    assert status == {"conditions": [{**APPROVED, **times}]}


def test_decision_cannot_be_changed_or_removed() -> None:
    api = Api()
    api.post(PATH, csr())
    stored = approved(api).body
    denied = {**APPROVED, "type": "Denied"}
    for conditions in ([denied], [*stored["status"]["conditions"], denied], []):
        response = api.ask("PUT", f"{PATH}/ada/approval", {**stored, "status": {"conditions": conditions}})
        assert response.code == 422, conditions


def test_status_sets_only_a_valid_certificate_once_and_never_a_decision() -> None:
    api = Api()
    stored = api.post(PATH, csr())
    for status in ({"certificate": REQUEST}, {"conditions": [APPROVED]}):
        assert api.ask("PUT", f"{PATH}/ada/status", {**stored, "status": status}).code == 422


def test_status_requires_the_right_to_sign_only_for_changes() -> None:
    api = Api()
    grant(api, roles.rule("update", "certificatesigningrequests/status", "certificates.k8s.io"))
    stored = api.post(PATH, csr())
    assert api.ask("PUT", f"{PATH}/ada/status", stored, user=ANNA).code == 200
    failed = {**stored, "status": {"conditions": [{**APPROVED, "type": "Failed"}]}}
    response = api.ask("PUT", f"{PATH}/ada/status", failed, user=ANNA)
    assert f'user not permitted to sign requests with signerName "{CLIENT}"' in response.body["message"]


def test_table_shows_the_state_of_a_request() -> None:
    api = Api()
    api.post(PATH, csr(expirationSeconds=86400))
    approved(api)
    table = api.get(PATH, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert table["rows"][0]["cells"] == ["ada", "0s", CLIENT, "owner", "24h", "Approved"]


def test_requests_can_be_selected_by_signer() -> None:
    api = Api()
    api.post(PATH, csr())
    assert len(api.get(f"{PATH}?fieldSelector=spec.signerName={CLIENT}")["items"]) == 1
    assert not api.get(f"{PATH}?fieldSelector=spec.signerName=a.b/c")["items"]


def test_discovery_lists_each_subresource_once() -> None:
    names = [each["name"] for each in Api().get("/apis/certificates.k8s.io/v1")["resources"]]
    plural = "certificatesigningrequests"
    assert sorted(names) == [plural, f"{plural}/approval", f"{plural}/status"]


def test_bootstrap_roles_approve_one_signer_each() -> None:
    names = {role["metadata"]["name"]: role for role in bootstrap_roles()}
    rule = names["system:certificates.k8s.io:kubelet-serving-approver"]["rules"][0]
    assert (rule["verbs"], rule["resourceNames"]) == (["approve"], ["kubernetes.io/kubelet-serving"])
