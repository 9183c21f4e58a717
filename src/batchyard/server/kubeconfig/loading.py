"""Where an API server is and who we are to it: a kubeconfig, or what a pod of the cluster finds.

What its files say together is found out here, and what its plugins and token files hold; kubernetes-asyncio makes
access of that (certificates, OIDC). It is asked again when the server says that a credential is good no more.
"""

import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config_from_dict

from batchyard.server.kubeconfig.access import Access, KubeconfigError, Source
from batchyard.server.kubeconfig.exec_plugin import credentials_from

# --- kubeconfig files ---
#
# What kubeconfigs say, one or several of them, and what they name for a context.
#
# Of several files the first that names something counts; what is missing or empty says nothing. A path is relative to
# the
# folder of the file it stands in. Source: client-go, tools/clientcmd/loader.go.


#: By list, what each entry of it holds.
_HOLDS: Final = {"clusters": "cluster", "users": "user", "contexts": "context"}
_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class FaultError(ValueError):
    """What is wrong with a kubeconfig."""


class Chosen(NamedTuple):
    """What there is for a context."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    namespace: str


def chosen(files: str, context: str) -> Chosen:
    """What files, as KUBECONFIG names them, have for a context, '' for the present one; FaultError if they lack it."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _HOLDS}
    present = ""
    for path in _existing(files):
        config = _read(path)
        present = present or config.get("current-context") or ""
        for kind, held in _HOLDS.items():
            for name, value in _entries(config, kind, held):
                found[kind].setdefault(name, _absolute(value, path))
    name = context or present
    if not name:
        raise FaultError("it says no current-context")
    named = found["contexts"].get(name)
    if named is None:
        known = ", ".join(map(repr, found["contexts"])) or "none"
        raise FaultError(f"it has no context {name!r}; it has {known}")
    cluster, user = named.get("cluster") or "", named.get("user") or ""
    if cluster not in found["clusters"]:
        raise FaultError(f"its context {name!r} names a cluster that is not in it: {cluster!r}")
    if user and user not in found["users"]:
        raise FaultError(f"its context {name!r} names a user who is not in it: {user!r}")
    namespace: str = named.get("namespace") or "default"
    return Chosen(found["clusters"][cluster], found["users"].get(user) or {}, namespace)


def _existing(files: str) -> list[Path]:
    paths = [Path(each).expanduser() for each in files.split(os.pathsep) if each]
    existing = [path for path in paths if path.is_file()]
    if not existing:
        raise FileNotFoundError("there is no such file")
    return existing


def _read(path: Path) -> Mapping[str, Any]:
    config = yaml.safe_load(path.read_text("utf-8"))
    if config is None:
        return {}
    if not isinstance(config, dict) or not isinstance(config.get("current-context") or "", str):
        raise FaultError(f"{path} is no kubeconfig")
    return config


def _entries(config: Mapping[str, Any], kind: str, held: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = config.get(kind) or []
    if not isinstance(entries, list):
        raise FaultError(f"its {kind} are no list")
    for entry in entries:
        value = (entry.get(held) or {}) if isinstance(entry, dict) else None
        if not isinstance(value, dict) or "name" not in entry:
            raise FaultError(f"its {kind} are to have a name and a {held} each")
        yield str(entry["name"]), value


def _absolute(value: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """An entry of a file, with whatever it names relative to that file; a command only if it names more than itself."""
    folder = path.absolute().parent
    named = {field: str(folder / value[field]) for field in _PATHS if value.get(field)}
    plugin = value.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        return {**value, **named, "exec": {**plugin, "command": str(folder / plugin["command"])}}
    return {**value, **named}


#: Where kubectl looks, and where pods find their ServiceAccount.
HOME: Final = Path("~/.kube/config")
_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: What servers and proxies are asked in.
_SPOKEN: Final = ("http", "https")
_TOKEN: Final = "BearerToken"  # noqa: S105 - what the library calls it


async def read_access(source: Source) -> Access:
    """Read the kubeconfig, running what it says to run; KubeconfigError if that gives no access."""
    configuration = Configuration()
    try:
        namespace, impersonated = await _load(source, configuration)
        return _access(configuration, namespace)._replace(headers=tuple(impersonated))
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        place = source.kubeconfig or str(HOME)
        raise KubeconfigError(
            f"{place}: {_told(error)}; name another with --kubeconfig, or a context with --context"
        ) from error


async def _load(source: Source, configuration: Configuration) -> tuple[str, Sequence[tuple[str, str]]]:
    """Fill the configuration; the namespace, and the headers that say as whom we ask."""
    if not source.kubeconfig and not source.context and (_IN_CLUSTER / "token").exists():
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return (_IN_CLUSTER / "namespace").read_text("utf-8").strip(), ()
    cluster, user, namespace = chosen(source.kubeconfig or str(HOME), source.context)
    known = {**_filled(cluster), **_server(cluster)}
    config = {
        "current-context": "chosen",
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "clusters": [{"name": "chosen", "cluster": known}],
        "users": [{"name": "chosen", "user": await _with_credentials(_filled(user), known)}],
    }
    await load_kube_config_from_dict(config, client_configuration=configuration)
    return namespace, list(_impersonated(user))


def _filled(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry without what is empty, which is as if it were not there."""
    return {field: value for field, value in entry.items() if value not in ("", None)}


def _server(cluster: Mapping[str, Any]) -> Mapping[str, str]:
    """The address of a cluster, and of the proxy before it; ValueError where these cannot be asked."""
    url, proxy = str(cluster.get("server") or ""), str(cluster.get("proxy-url") or "")
    if urlsplit(url).scheme not in _SPOKEN or not urlsplit(url).hostname:
        raise ValueError(f"the address of its cluster is no URL: {url!r}")
    if proxy and (urlsplit(proxy).scheme not in _SPOKEN or not urlsplit(proxy).hostname):
        raise ValueError(f"its proxy-url is none of http or https: {proxy!r}")
    scheme, _, place = url.partition("://")
    return {"server": f"{scheme.lower()}://{place}"}


async def _with_credentials(user: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """A user with what his plugin, or his file of a token, gives at present; the file counts more than a token."""
    if "exec" in user:
        given = await credentials_from(user["exec"], cluster)
        return {**{field: value for field, value in user.items() if field != "exec"}, **given}
    if "tokenFile" in user:
        return {**user, "token": Path(user["tokenFile"]).read_text("utf-8").strip()}
    return user


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
    authorization: str = (found.api_key or {}).get(_TOKEN, "").strip()
    if not authorization.isprintable():
        raise ValueError("its token has characters that no header takes")
    url: str = found.host or ""
    tls = _context(found) if url.startswith("https") else True
    return Access(url, tls, authorization, found.proxy or None, found.tls_server_name or "", namespace)


def _told(error: Exception) -> str:
    """What is wrong with a kubeconfig. What is of another kind than it is to be fails in whoever reads it."""
    match error:
        case KeyError() | TypeError() | AttributeError():
            return f"it is no kubeconfig: {error}"
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
