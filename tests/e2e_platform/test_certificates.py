"""CertificateSigningRequests with kubectl: a user gets a certificate and logs in with it."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from e2e_platform.platform_process import UpProcess, kubectl

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def certificate_request(key: ec.EllipticCurvePrivateKey) -> dict[str, object]:
    """The manifest of a request for the user ada of the group team-a."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "team-a")]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, "ada")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {"request": pem, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return {**kind, "metadata": {"name": "ada"}, "spec": spec}


def test_approved_certificate_logs_in(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with UpProcess(tmp_path / "data") as platform:
        platform.kubectl("create", "-f", "-", sent=json.dumps(certificate_request(key)))
        assert "Pending" in platform.kubectl("get", "csr", "ada")
        platform.kubectl("certificate", "approve", "ada")
        platform.kubectl("wait", "csr/ada", "--for=jsonpath={.status.certificate}", "--timeout=30s")
        certificate = platform.kubectl("get", "csr", "ada", "-o", "jsonpath={.status.certificate}")
        (tmp_path / "key").write_bytes(key.private_bytes(*encodings))
        (tmp_path / "certificate").write_bytes(base64.b64decode(certificate))
        kubeconfig = Path(shutil.copy(platform.kubeconfig, tmp_path / "kubeconfig"))
        files = (f"--client-key={tmp_path / 'key'}", f"--client-certificate={tmp_path / 'certificate'}")
        kubectl(kubeconfig, "config", "set-credentials", "ada", *files)
        user = kubectl(kubeconfig, "--user=ada", "auth", "whoami")
        assert "ada" in user
        assert "[team-a system:authenticated]" in user
        assert "already Approved" in platform.kubectl("certificate", "deny", "ada", fails=True)
