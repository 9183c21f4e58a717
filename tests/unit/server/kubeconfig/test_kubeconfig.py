"""Server addresses and credentials from kubeconfigs."""

import asyncio
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.server.kubeconfig.access import ApiServerAccess, KubeconfigError, KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.platform.credentials import ADMIN_USER, CertificateAuthority, kubeconfig_text

PLUGIN = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "'$SAID'"}}'
"""


def write_kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> KubeconfigSource:
    """Write a kubeconfig with a user."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        ],
        "current-context": "one",
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return KubeconfigSource(str(path))


def access(source: KubeconfigSource) -> ApiServerAccess:
    return asyncio.run(read_access(source))


def test_token_becomes_bearer_authorization(tmp_path: Path) -> None:
    result = access(write_kubeconfig(tmp_path, {"token": "abc"}))
    assert (result.url, result.authorization, result.namespace) == ("http://127.0.0.1:1", "Bearer abc", "default")


def test_token_file_is_read_on_each_access(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    source = write_kubeconfig(tmp_path, {"tokenFile": str(tmp_path / "token")})
    assert access(source).authorization == "Bearer abc"
    (tmp_path / "token").write_text("def")
    assert access(source).authorization == "Bearer def"


def test_exec_plugin_runs_with_configured_environment(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN)
    plugin.chmod(stat.S_IRWXU)
    env = [{"name": "SAID", "value": "xyz"}]
    source = write_kubeconfig(
        tmp_path, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "env": env}}
    )
    assert access(source).authorization == "Bearer xyz"


def test_named_context_is_selected(tmp_path: Path) -> None:
    source = write_kubeconfig(tmp_path, {"token": "abc"})
    assert access(source._replace(context="two")).namespace == "team"


def test_embedded_certificates_are_loaded(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, 1_767_225_600_000_000)
    text = kubeconfig_text(
        "https://localhost:1",
        authority.certificate_file.read_bytes(),
        ADMIN_USER,
        authority.issue_client_certificate(ADMIN_USER, ["system:masters"]),
    )
    (tmp_path / "config").write_text(text)
    result = access(KubeconfigSource(str(tmp_path / "config")))
    assert isinstance(result.tls, ssl.SSLContext)
    assert result.tls.verify_mode is ssl.CERT_REQUIRED
    assert "batchyard-ca" in str(result.tls.get_ca_certs())


def test_insecure_skip_tls_verify_disables_certificate_verification(tmp_path: Path) -> None:
    cluster = {"server": "https://localhost:1", "insecure-skip-tls-verify": True, "tls-server-name": "other"}
    result = access(write_kubeconfig(tmp_path, {"token": "abc"}, **cluster))
    assert isinstance(result.tls, ssl.SSLContext)
    assert result.tls.verify_mode is ssl.CERT_NONE
    assert result.server_name == "other"


@pytest.mark.parametrize("content", ["", "a: [", "clusters: []", "current-context: x\ncontexts: []", "[]"])
def test_invalid_kubeconfig_is_reported_with_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(KubeconfigError, match="--kubeconfig"):
        access(KubeconfigSource(str(tmp_path / "config")))


def test_missing_file_or_context_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="no such file"):
        access(KubeconfigSource(str(tmp_path / "none")))
    with pytest.raises(KubeconfigError, match="other"):
        access(write_kubeconfig(tmp_path, {"token": "abc"})._replace(context="other"))


def test_failing_exec_plugin_is_reported(tmp_path: Path) -> None:
    source = write_kubeconfig(
        tmp_path, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    )
    with pytest.raises(KubeconfigError, match="failed with exit code 1"):
        access(source)


def test_missing_user_and_invalid_server_url_are_reported(tmp_path: Path) -> None:
    source = write_kubeconfig(tmp_path, {"token": "abc"}, server="cluster.example")
    with pytest.raises(KubeconfigError, match="not an http or https URL: 'cluster"):
        access(source)
    source = write_kubeconfig(
        tmp_path, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}
    )
    with pytest.raises(KubeconfigError, match="no-such-plugin was not found on this machine"):
        access(source)
    path = Path(source.kubeconfig)
    path.write_text(path.read_text().replace("name: u\n", "name: other\n").replace("http:", "https:"))
    with pytest.raises(KubeconfigError, match="refers to a user that it does not define"):
        access(source)


def test_impersonation_is_sent_as_headers(tmp_path: Path) -> None:
    extra = {"example.com/why": ["a", "b"]}
    result = access(
        write_kubeconfig(tmp_path, {"token": "abc", "as": "one", "as-groups": ["x", "y"], "as-user-extra": extra})
    )
    groups = (("Impersonate-Group", "x"), ("Impersonate-Group", "y"))
    why = (("Impersonate-Extra-example.com%2Fwhy", "a"), ("Impersonate-Extra-example.com%2Fwhy", "b"))
    assert result.headers == (("Impersonate-User", "one"), *groups, *why)


def test_first_kubeconfig_wins_and_empty_files_are_ignored(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_kubeconfig(tmp_path / name, {"token": name}, server=f"http://{name}")
    (tmp_path / "empty").touch()
    other = (tmp_path / "b/config").read_text().replace("current-context: one", "current-context: two")
    (tmp_path / "b/config").write_text(other)
    files = [str(tmp_path / name) for name in ("none", "empty", "a/config", "b/config", "empty")]
    result = access(KubeconfigSource(":".join(files)))
    assert (result.url, result.authorization, result.namespace) == ("http://a", "Bearer a", "default")


def test_relative_paths_resolve_against_their_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/plugin").write_text(PLUGIN.replace("$SAID", "near"))
    (tmp_path / "bin/plugin").chmod(stat.S_IRWXU)
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./bin/plugin"}
    assert access(write_kubeconfig(tmp_path, {"exec": exec_})).authorization == "Bearer near"
    authority = CertificateAuthority(tmp_path, 1_767_225_600_000_000)
    signed = authority.issue_client_certificate(ADMIN_USER, ["system:masters"])
    (tmp_path / "users").mkdir()
    (tmp_path / "users/cert.pem").write_bytes(signed.certificate)
    (tmp_path / "users/key.pem").write_bytes(signed.key)
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    write_kubeconfig(tmp_path / "users", user)
    cluster = write_kubeconfig(tmp_path, {}, server="https://localhost:1").kubeconfig
    without = yaml.safe_load(Path(cluster).read_text()) | {"users": None}
    Path(cluster).write_text(yaml.safe_dump(without))
    assert access(KubeconfigSource(f"{cluster}:{tmp_path}/users/config")).url == "https://localhost:1"


def test_whitespace_around_token_is_stripped(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    user = {"token": "old", "tokenFile": "token"}
    assert access(write_kubeconfig(tmp_path, user)).authorization == "Bearer abc"
    assert access(write_kubeconfig(tmp_path, {"token": "abc\n"})).authorization == "Bearer abc"
    with pytest.raises(KubeconfigError, match="invalid in an HTTP header"):
        access(write_kubeconfig(tmp_path, {"token": "a\nb"}))


def test_https_access_without_credentials_is_allowed(tmp_path: Path) -> None:
    result = access(
        write_kubeconfig(tmp_path, {}, **{"server": "HTTPS://localhost:1/k8s/c", "certificate-authority-data": ""})
    )
    assert (result.url, result.authorization) == ("https://localhost:1/k8s/c", "")


def test_unsupported_proxy_url_is_rejected(tmp_path: Path) -> None:
    assert access(write_kubeconfig(tmp_path, {}, **{"proxy-url": "http://p:1"})).proxy == "http://p:1"
    for proxy in ("socks5://p:1", "p:1"):
        with pytest.raises(KubeconfigError, match="not an http or https URL"):
            access(write_kubeconfig(tmp_path, {}, **{"proxy-url": proxy}))


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"current-context": ""}, "does not set current-context"),
        ({"contexts": [{"name": "one", "context": "x"}]}, "must have a name and a context"),
        ({"contexts": [{"name": "one", "context": None}]}, "a cluster that it does not define: ''"),
        ({"clusters": {"c": 1}}, "its field clusters must be a list"),
        ({"clusters": [{"name": "c", "cluster": {"server": 5}}]}, "not an http or https URL: '5'"),
    ],
)
def test_malformed_kubeconfig_field_is_reported(tmp_path: Path, changed: dict[str, Any], reported: str) -> None:
    source = write_kubeconfig(tmp_path, {"token": "abc"})
    config = yaml.safe_load(Path(source.kubeconfig).read_text()) | changed
    Path(source.kubeconfig).write_text(yaml.safe_dump(config))
    with pytest.raises(KubeconfigError, match=reported):
        access(source)
