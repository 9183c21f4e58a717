"""Where an API server is and who we are to it: a kubeconfig, or what a pod of the cluster finds.

kubernetes-asyncio reads it (certificates, tokens, token files, exec plugins, OIDC); this asks it, and again when the
server says that a credential is good no more.
"""

import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

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
        namespace = await _load(source, configuration)
        return _access(configuration, namespace)
    except (ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        place = source.kubeconfig or str(HOME)
        raise KubeconfigError(
            f"{place}: {_told(error)}; name another with --kubeconfig, or a context with --context"
        ) from error


async def _load(source: Source, configuration: Configuration) -> str:
    if not source.kubeconfig and not source.context and (_IN_CLUSTER / "token").exists():
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return (_IN_CLUSTER / "namespace").read_text("utf-8").strip()
    files = source.kubeconfig or str(HOME.expanduser())
    if not any(Path(each).expanduser().is_file() for each in files.split(":") if each):
        raise FileNotFoundError("there is no such file")
    loader = await load_kube_config(
        files, source.context or None, client_configuration=configuration, persist_config=False
    )
    context = loader.current_context or {}
    namespace: str = (context.get("context") or {}).get("namespace") or "default"
    return namespace


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
