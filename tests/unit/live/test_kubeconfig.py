"""What kubeconfigs say of where a server is and who we are to it."""

import asyncio
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.live.access import Access, KubeconfigError, Source
from batchyard.live.credentials import ADMIN, Authority, kubeconfig
from batchyard.live.kubeconfig import read_access

PLUGIN = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "'$SAID'"}}'
"""


def written(folder: Path, user: dict[str, Any], **cluster: Any) -> Source:
    """A kubeconfig with a user."""
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
    return Source(str(path))


def access(source: Source) -> Access:
    return asyncio.run(read_access(source))


def test_a_token_is_shown(tmp_path: Path) -> None:
    found = access(written(tmp_path, {"token": "abc"}))
    assert (found.url, found.authorization, found.namespace) == ("http://127.0.0.1:1", "Bearer abc", "default")


def test_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    source = written(tmp_path, {"tokenFile": str(tmp_path / "token")})
    assert access(source).authorization == "Bearer abc"
    (tmp_path / "token").write_text("def")
    assert access(source).authorization == "Bearer def"


def test_a_plugin_is_run_with_its_environment(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN)
    plugin.chmod(stat.S_IRWXU)
    env = [{"name": "SAID", "value": "xyz"}]
    source = written(
        tmp_path,
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "env": env}},
    )
    assert access(source).authorization == "Bearer xyz"


def test_another_context_is_chosen(tmp_path: Path) -> None:
    source = written(tmp_path, {"token": "abc"})
    assert access(source._replace(context="two")).namespace == "team"


def test_certificates_within_the_file_are_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path, 1_767_225_600_000_000)
    text = kubeconfig(
        "https://localhost:1",
        authority.certificate_file.read_bytes(),
        ADMIN,
        authority.client(ADMIN, ["system:masters"]),
    )
    (tmp_path / "config").write_text(text)
    found = access(Source(str(tmp_path / "config")))
    assert isinstance(found.tls, ssl.SSLContext)
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert "batchyard-ca" in str(found.tls.get_ca_certs())


def test_a_server_may_be_trusted_blindly_where_that_is_said(tmp_path: Path) -> None:
    cluster = {"server": "https://localhost:1", "insecure-skip-tls-verify": True, "tls-server-name": "other"}
    found = access(written(tmp_path, {"token": "abc"}, **cluster))
    assert isinstance(found.tls, ssl.SSLContext)
    assert found.tls.verify_mode is ssl.CERT_NONE
    assert found.server_name == "other"


@pytest.mark.parametrize("content", ["", "a: [", "clusters: []", "current-context: x\ncontexts: []", "[]"])
def test_what_is_no_kubeconfig_is_said_with_a_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(KubeconfigError, match="--kubeconfig"):
        access(Source(str(tmp_path / "config")))


def test_a_file_or_a_context_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="no such file"):
        access(Source(str(tmp_path / "none")))
    with pytest.raises(KubeconfigError, match="other"):
        access(written(tmp_path, {"token": "abc"})._replace(context="other"))


def test_a_plugin_that_fails_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}})
    with pytest.raises(KubeconfigError, match="returned 1"):
        access(source)


def test_a_user_who_is_not_there_and_an_address_that_is_none_are_said(tmp_path: Path) -> None:
    source = written(tmp_path, {"token": "abc"}, server="cluster.example")
    with pytest.raises(KubeconfigError, match="no URL: 'cluster"):
        access(source)
    source = written(tmp_path, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}})
    with pytest.raises(KubeconfigError, match="no-such-plugin is not on this machine"):
        access(source)
    path = Path(source.kubeconfig)
    path.write_text(path.read_text().replace("name: u\n", "name: other\n").replace("http:", "https:"))
    with pytest.raises(KubeconfigError, match="names a user who is not in it"):
        access(source)


def test_as_whom_a_user_asks_is_said_in_headers(tmp_path: Path) -> None:
    extra = {"example.com/why": ["a", "b"]}
    found = access(written(tmp_path, {"token": "abc", "as": "one", "as-groups": ["x", "y"], "as-user-extra": extra}))
    groups = (("Impersonate-Group", "x"), ("Impersonate-Group", "y"))
    why = (("Impersonate-Extra-example.com%2Fwhy", "a"), ("Impersonate-Extra-example.com%2Fwhy", "b"))
    assert found.headers == (("Impersonate-User", "one"), *groups, *why)
