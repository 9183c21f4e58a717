"""Names of a cluster's objects for completion: at most 200, within one second, and none after any error.

The only credentials used are client certificates and tokens, because credential plugins may be slow or ask the user.
"""

import base64
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import ssl

#: The time for the names of one completion, in seconds.
TIMEOUT_SECONDS: Final = 1.0
NAMES_MAX: Final = 200
_KUBECONFIG_BYTES_MAX: Final = 1 << 20
_RESPONSE_BYTES_MAX: Final = 16 << 20
#: The kubeconfig of the default data directory.
_DEFAULT_KUBECONFIG: Final = ".batchyard/kubeconfig"
#: Lists of metadata alone are smaller; a server that cannot make them sends the objects.
_ACCEPTED_TYPES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_KUEUE_API: Final = "/apis/kueue.x-k8s.io/v1beta2"
#: The API path and whether the objects are namespaced, by the plural of the API.
NAME_KINDS: Final[Mapping[str, tuple[str, bool]]] = {
    "namespaces": ("/api/v1", False),
    "nodes": ("/api/v1", False),
    "pods": ("/api/v1", True),
    "jobs": ("/apis/batch/v1", True),
    "jobsets": ("/apis/jobset.x-k8s.io/v1alpha2", True),
    "workloads": (_KUEUE_API, True),
    "localqueues": (_KUEUE_API, True),
    "clusterqueues": (_KUEUE_API, False),
    "workloadpriorityclasses": (_KUEUE_API, False),
}


class NameQuery(NamedTuple):
    """Where to list names: a kubeconfig (a path list), context and namespace; '' for each default."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


class _ServerAccess(NamedTuple):
    url: str
    tls: "ssl.SSLContext | None"
    headers: Mapping[str, str]
    namespace: str


class _TooSlowError(Exception):
    """The server did not return the names for shell completion in time."""


def list_names(plural: str, query: NameQuery) -> Sequence[str]:
    """Return at most NAMES_MAX names of a kind's objects, sorted; an empty list after an error or a timeout."""
    try:
        with _time_limit():
            return _request_names(plural, query)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, _TooSlowError):
        return []


@contextmanager
def _time_limit() -> Iterator[None]:
    def raise_too_slow(*_: object) -> None:
        raise _TooSlowError

    previous_handler = signal.signal(signal.SIGALRM, raise_too_slow)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


def _request_names(plural: str, query: NameQuery) -> Sequence[str]:
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # noqa: PLC0415 - only to ask for names
    from urllib.parse import quote, urlsplit  # noqa: PLC0415 - only to ask for names

    access = _read_access(query)
    api_path, is_namespaced = NAME_KINDS[plural]
    scope = f"/namespaces/{quote(query.namespace or access.namespace)}" if is_namespaced else ""
    url = urlsplit(access.url)
    connection: HTTPConnection
    if access.tls is None:
        connection = HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
    else:
        connection = HTTPSConnection(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS, context=access.tls)
    headers = {"Accept": _ACCEPTED_TYPES, **access.headers}
    try:
        connection.request(
            "GET", f"{url.path.rstrip('/')}{api_path}{scope}/{plural}?limit={NAMES_MAX}", headers=headers
        )
        items = json.loads(connection.getresponse().read(_RESPONSE_BYTES_MAX))["items"]
    except HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
    return sorted(item["metadata"]["name"] for item in items[:NAMES_MAX])


def _read_access(query: NameQuery) -> _ServerAccess:
    """Return the access that a kubeconfig describes; credential plugins are ignored."""
    import yaml  # noqa: PLC0415 - only to ask for names

    path = _kubeconfig_path(query.kubeconfig)
    try:
        with path.open("rb") as file:
            kubeconfig = yaml.load(file.read(_KUBECONFIG_BYTES_MAX), Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    context = _find_entry(kubeconfig["contexts"], query.context or kubeconfig["current-context"])["context"]
    cluster = _find_entry(kubeconfig["clusters"], context["cluster"])["cluster"]
    user = _find_entry(kubeconfig["users"], context["user"])["user"] if context.get("user") else {}
    headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    url = cluster["server"]
    tls = _tls_context(path.parent, cluster, user) if url.startswith("https:") else None
    return _ServerAccess(url, tls, headers, context.get("namespace") or "default")


def _kubeconfig_path(path_list: str) -> Path:
    paths = [Path(name).expanduser() for name in (path_list or _DEFAULT_KUBECONFIG).split(":") if name]
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(path_list)


def _find_entry(entries: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(entry for entry in [*entries, {}] if not entry or entry["name"] == name)


def _tls_context(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> "ssl.SSLContext":
    import ssl  # noqa: PLC0415 - only to ask for names
    from tempfile import NamedTemporaryFile  # noqa: PLC0415 - only to ask for names

    authority = _read_credential(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode() or None)
    certificate_and_key = b"".join(_read_credential(folder, user, f"client-{name}") for name in ("certificate", "key"))
    if certificate_and_key:
        with NamedTemporaryFile() as certificate_file:
            certificate_file.write(certificate_and_key)
            certificate_file.flush()
            context.load_cert_chain(certificate_file.name)
    return context


def _read_credential(folder: Path, entry: Mapping[str, Any], name: str) -> bytes:
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"])
    return (folder / entry[name]).read_bytes() if entry.get(name) else b""
