"""Where an API server is and who we are to it: a kubeconfig, or what a pod of the cluster finds.

kubernetes-asyncio reads it (certificates, tokens, token files, exec plugins, OIDC); this asks it, and again when the
server says that a credential is good no more.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from batchyard.live.access import Access, KubeconfigError, Source

#: Where kubectl looks, and where pods find their ServiceAccount.
HOME: Final = Path("~/.kube/config")
_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN: Final = "BearerToken"  # noqa: S105 - what the library calls it


async def read_access(source: Source) -> Access:
    """Read the kubeconfig, running what it says to run; KubeconfigError if that gives no access."""
    configuration = Configuration()
    try:
        namespace, impersonated = await _load(source, configuration)
        return _access(configuration, namespace)._replace(headers=tuple(impersonated))
    except (ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        place = source.kubeconfig or str(HOME)
        raise KubeconfigError(
            f"{place}: {_told(error)}; name another with --kubeconfig, or a context with --context"
        ) from error


async def _load(source: Source, configuration: Configuration) -> tuple[str, Sequence[tuple[str, str]]]:
    """Fill the configuration; the namespace, and the headers that say as whom we ask."""
    if not source.kubeconfig and not source.context and (_IN_CLUSTER / "token").exists():
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return (_IN_CLUSTER / "namespace").read_text("utf-8").strip(), ()
    files = source.kubeconfig or str(HOME.expanduser())
    if not any(Path(each).expanduser().is_file() for each in files.split(":") if each):
        raise FileNotFoundError("there is no such file")
    loader = await load_kube_config(
        files, source.context or None, client_configuration=configuration, persist_config=False
    )
    context: Mapping[str, Any] = (loader.current_context or {}).get("context") or {}
    user = _user(files, context.get("user") or "")
    return context.get("namespace") or "default", list(_impersonated(user))


def _user(files: str, name: str) -> Mapping[str, Any]:
    """A user as the first of the files has it that has one of that name."""
    for file in (path for each in files.split(":") if each and (path := Path(each).expanduser()).is_file()):
        config = yaml.safe_load(file.read_text("utf-8")) or {}
        for entry in config.get("users") or ():
            if entry["name"] == name:
                return entry.get("user") or {}
    return {}


def _impersonated(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The headers that say as whom a user asks. Source: client-go, transport/round_trippers.go."""
    if user.get("as"):
        yield "Impersonate-User", user["as"]
    if user.get("as-uid"):
        yield "Impersonate-Uid", user["as-uid"]
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", group
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", value


def _access(found: Configuration, namespace: str) -> Access:
    authorization: str = (found.api_key or {}).get(_TOKEN, "")
    url: str = found.host or ""
    if not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
        raise ValueError(f"the address of its cluster is no URL: {url!r}")
    tls = _context(found) if url.startswith("https") else True
    return Access(url, tls, authorization, found.proxy or None, found.tls_server_name or "", namespace)


def _told(error: Exception) -> str:
    """What is wrong with a kubeconfig. A user that is not in it is a TypeError of whoever reads it."""
    match error:
        case KeyError() | TypeError():
            return "it is no kubeconfig, or its context names a user who is not in it"
        case FileNotFoundError(filename=str(name)):
            return f"{name} is not on this machine"
    return str(error)


def _context(found: Configuration) -> ssl.SSLContext:
    """TLS as the kubeconfig has it: whom to trust, and the certificate to show."""
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return context
