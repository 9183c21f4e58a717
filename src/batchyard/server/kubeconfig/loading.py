"""Loading of kubeconfig files, or of the in-cluster configuration of a pod.

This module merges kubeconfig files, runs credential plugins and reads token files. The library kubernetes-asyncio turns
the result into credentials (certificates, OIDC). The files are loaded again when the server rejects the credentials.
"""

import asyncio
import base64
import json
import os
import ssl
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config_from_dict

from batchyard.server.kubeconfig.access import ApiServerAccess, KubeconfigError, KubeconfigSource

# Credential plugins of kubeconfigs (`exec`). Source: client-go, plugin/pkg/client/auth/exec.
#
# The plugin's standard error is passed through to the user. Its input and output are ExecCredential objects.


#: The fields of a cluster that a plugin receives.
_CLUSTER_FIELDS: Final = (
    *("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression"),
    "certificate-authority-data",
)
#: The cluster extension for plugins.
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"


async def run_credential_plugin(plugin: Any, cluster: Mapping[str, Any]) -> Mapping[str, str]:
    """Run a credential plugin, and return its credentials as fields of a kubeconfig user.

    Raises ValueError if the plugin is invalid, is missing or fails, or OSError if it cannot be started.
    """
    if not isinstance(plugin, dict) or not plugin.get("command") or not plugin.get("apiVersion"):
        raise ValueError("the credential plugin (exec) of its user must have an apiVersion and a command")
    command = [str(argument) for argument in (plugin["command"], *(plugin.get("args") or ()))]
    env = {variable["name"]: str(variable.get("value") or "") for variable in plugin.get("env") or ()}
    env["KUBERNETES_EXEC_INFO"] = json.dumps(_exec_credential_input(plugin, cluster))
    stdin = None if _is_interactive(plugin) else DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **env}, stdin=stdin, stdout=PIPE)
    except FileNotFoundError as error:
        install_hint = f". {plugin['installHint']}" if plugin.get("installHint") else ": install it"
        raise ValueError(f"exec: {command[0]} was not found on this machine{install_hint}") from error
    try:
        plugin_output, _ = await process.communicate()
    finally:
        if process.returncode is None:  # cancelled
            process.kill()
            await process.wait()
    if process.returncode:
        raise ValueError(f"exec: {command[0]} failed with exit code {process.returncode}")
    return _parse_credentials(plugin_output, plugin["apiVersion"], command[0])


def _is_interactive(plugin: Mapping[str, Any]) -> bool:
    return plugin.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()


def _exec_credential_input(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: dict[str, Any] = {"interactive": _is_interactive(plugin)}
    if plugin.get("provideClusterInfo"):
        cluster_info = {field: cluster[field] for field in _CLUSTER_FIELDS if cluster.get(field)}
        if cluster.get("certificate-authority") and "certificate-authority-data" not in cluster_info:
            authority_data = Path(cluster["certificate-authority"]).read_bytes()
            cluster_info["certificate-authority-data"] = base64.b64encode(authority_data).decode()
        exec_configs = [
            extension.get("extension")
            for extension in cluster.get("extensions") or ()
            if extension.get("name") == _EXEC_EXTENSION
        ]
        spec["cluster"] = {**cluster_info, **({"config": exec_configs[0]} if exec_configs else {})}
    return {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": spec}


def _parse_credentials(plugin_output: bytes, version: str, command: str) -> Mapping[str, str]:
    try:
        credential = json.loads(plugin_output)
    except ValueError as error:
        raise ValueError(f"exec: {command} did not print an ExecCredential: {error}") from error
    if not isinstance(credential, dict) or credential.get("kind") != "ExecCredential":
        raise ValueError(f"exec: {command} did not print an ExecCredential")
    if credential.get("apiVersion") != version:
        printed_version = f"apiVersion {credential['apiVersion']}" if credential.get("apiVersion") else "no apiVersion"
        raise ValueError(f"exec: {command} printed an ExecCredential with {printed_version} instead of {version}")
    status = credential.get("status")
    status_fields = status if isinstance(status, dict) else {}
    token, certificate, key = (status_fields.get(each) for each in ("token", "clientCertificateData", "clientKeyData"))
    if bool(certificate) != bool(key):
        raise ValueError(f"exec: {command} must print both clientCertificateData and clientKeyData, or neither")
    if not token and not certificate:
        raise ValueError(f"exec: {command} printed neither a token nor a client certificate")
    user_fields = {
        "token": token,
        "client-certificate-data": _encode_base64(certificate),
        "client-key-data": _encode_base64(key),
    }
    return {field: str(value) for field, value in user_fields.items() if value}


def _encode_base64(text: Any) -> str:
    return base64.b64encode(str(text).encode()).decode() if text else ""


# Merging of several kubeconfigs, and the cluster and user of a context.
#
# If several files define a name, the first one is used. Missing or empty files are ignored. Paths are relative to the
# folder of their file. Source: client-go, tools/clientcmd/loader.go.


#: The field with the content of a kubeconfig entry, by the list (such as `clusters`) that the entry is in.
_KUBECONFIG_ENTRY_FIELDS: Final = {"clusters": "cluster", "users": "user", "contexts": "context"}
_FILE_PATH_FIELDS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class InvalidKubeconfigError(ValueError):
    """The content of a kubeconfig is invalid."""


class KubeconfigContext(NamedTuple):
    """The content of a kubeconfig context: its cluster, its user, and its default namespace."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    namespace: str


def select_context(file_list: str, context: str) -> KubeconfigContext:
    """Return the content of a context ('': the current context), from the kubeconfig files in a path list.

    If several files define a name, the first file has precedence. Raises FileNotFoundError if no file exists, or
    InvalidKubeconfigError.
    """
    entries_by_kind: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _KUBECONFIG_ENTRY_FIELDS}
    current_context = ""
    for path in _existing_kubeconfig_files(file_list):
        kubeconfig = _read_kubeconfig(path)
        current_context = current_context or kubeconfig.get("current-context") or ""
        for kind, entry_field in _KUBECONFIG_ENTRY_FIELDS.items():
            for name, value in _named_entries(kubeconfig, kind, entry_field):
                entries_by_kind[kind].setdefault(name, _resolve_paths(value, path))
    name = context or current_context
    if not name:
        raise InvalidKubeconfigError("it does not set current-context")
    context_entry = entries_by_kind["contexts"].get(name)
    if context_entry is None:
        defined_contexts = ", ".join(map(repr, entries_by_kind["contexts"])) or "none"
        raise InvalidKubeconfigError(f"it does not define the context {name!r}; it defines {defined_contexts}")
    cluster, user = context_entry.get("cluster") or "", context_entry.get("user") or ""
    if cluster not in entries_by_kind["clusters"]:
        raise InvalidKubeconfigError(f"its context {name!r} refers to a cluster that it does not define: {cluster!r}")
    if user and user not in entries_by_kind["users"]:
        raise InvalidKubeconfigError(f"its context {name!r} refers to a user that it does not define: {user!r}")
    namespace: str = context_entry.get("namespace") or "default"
    return KubeconfigContext(entries_by_kind["clusters"][cluster], entries_by_kind["users"].get(user) or {}, namespace)


def _existing_kubeconfig_files(file_list: str) -> list[Path]:
    paths = [Path(name).expanduser() for name in file_list.split(os.pathsep) if name]
    existing_files = [path for path in paths if path.is_file()]
    if not existing_files:
        raise FileNotFoundError("no such file")
    return existing_files


def _read_kubeconfig(path: Path) -> Mapping[str, Any]:
    kubeconfig = yaml.safe_load(path.read_text("utf-8"))
    if kubeconfig is None:
        return {}
    if not isinstance(kubeconfig, dict) or not isinstance(kubeconfig.get("current-context") or "", str):
        raise InvalidKubeconfigError(f"{path} is not a valid kubeconfig")
    return kubeconfig


def _named_entries(config: Mapping[str, Any], kind: str, entry_field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    named_entries = config.get(kind) or []
    if not isinstance(named_entries, list):
        raise InvalidKubeconfigError(f"its field {kind} must be a list")
    for entry in named_entries:
        value = (entry.get(entry_field) or {}) if isinstance(entry, dict) else None
        if not isinstance(value, dict) or "name" not in entry:
            raise InvalidKubeconfigError(f"each entry of its field {kind} must have a name and a {entry_field}")
        yield str(entry["name"]), value


def _resolve_paths(entry: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    folder = path.absolute().parent
    resolved_paths = {field: str(folder / entry[field]) for field in _FILE_PATH_FIELDS if entry.get(field)}
    exec_plugin = entry.get("exec")
    if isinstance(exec_plugin, dict) and os.sep in str(exec_plugin.get("command") or ""):
        return {**entry, **resolved_paths, "exec": {**exec_plugin, "command": str(folder / exec_plugin["command"])}}
    return {**entry, **resolved_paths}


#: The default kubeconfig, and the ServiceAccount's folder in pods.
DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")
_SERVICE_ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: The supported URL schemes of servers and proxies.
_SUPPORTED_SCHEMES: Final = ("http", "https")
_TOKEN_KEY: Final = "BearerToken"  # noqa: S105 - the library's key


async def read_access(source: KubeconfigSource) -> ApiServerAccess:
    """Load a kubeconfig or the in-cluster configuration, and return how to reach its API server.

    Runs the kubeconfig's credential plugin, if it has one. Raises KubeconfigError on failure.
    """
    configuration = Configuration()
    try:
        namespace, impersonation_headers = await _fill_configuration(source, configuration)
        return _access_from_configuration(configuration, namespace)._replace(headers=tuple(impersonation_headers))
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        is_missing = isinstance(error, FileNotFoundError) and error.filename is None
        problem = _error_message(error).rstrip(".")
        raise KubeconfigError(_describe_failure(source, problem, is_missing=is_missing)) from error


def _describe_failure(source: KubeconfigSource, problem: str, *, is_missing: bool) -> str:
    if _is_in_cluster(source):
        return f"ServiceAccount in {_SERVICE_ACCOUNT_FOLDER}: {problem}; run in a pod, or use --kubeconfig"
    source_path = source.kubeconfig or str(DEFAULT_KUBECONFIG)
    if is_missing:
        return f"{source_path}: {problem}; select another file with --kubeconfig"
    return f"{source_path}: {problem}; correct it, or select another file (--kubeconfig) or context (--context)"


def _is_in_cluster(source: KubeconfigSource) -> bool:
    return not source.kubeconfig and not source.context and (_SERVICE_ACCOUNT_FOLDER / "token").exists()


async def _fill_configuration(
    source: KubeconfigSource, configuration: Configuration
) -> tuple[str, Sequence[tuple[str, str]]]:
    if _is_in_cluster(source):
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return (_SERVICE_ACCOUNT_FOLDER / "namespace").read_text("utf-8").strip(), ()
    cluster, user, namespace = select_context(source.kubeconfig or str(DEFAULT_KUBECONFIG), source.context)
    cluster_entry = {**_without_empty_fields(cluster), **_normalized_server(cluster)}
    config = {
        "current-context": "chosen",
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "clusters": [{"name": "chosen", "cluster": cluster_entry}],
        "users": [{"name": "chosen", "user": await _add_credentials(_without_empty_fields(user), cluster_entry)}],
    }
    await load_kube_config_from_dict(config, client_configuration=configuration)
    return namespace, list(_impersonation_headers(user))


def _without_empty_fields(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return {field: value for field, value in entry.items() if value not in ("", None)}


def _normalized_server(cluster: Mapping[str, Any]) -> Mapping[str, str]:
    url, proxy = str(cluster.get("server") or ""), str(cluster.get("proxy-url") or "")
    if urlsplit(url).scheme not in _SUPPORTED_SCHEMES or not urlsplit(url).hostname:
        problem = f"the server of its cluster is not an http or https URL: {url!r}"
        raise ValueError(problem if url else "its cluster has no server")
    if proxy and (urlsplit(proxy).scheme not in _SUPPORTED_SCHEMES or not urlsplit(proxy).hostname):
        raise ValueError(f"the proxy-url of its cluster is not an http or https URL: {proxy!r}")
    scheme, _, authority_and_path = url.partition("://")
    return {"server": f"{scheme.lower()}://{authority_and_path}"}


async def _add_credentials(user: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    if "exec" in user:
        plugin_credentials = await run_credential_plugin(user["exec"], cluster)
        return {**{field: value for field, value in user.items() if field != "exec"}, **plugin_credentials}
    if "tokenFile" in user:
        return {**user, "token": Path(user["tokenFile"]).read_text("utf-8").strip()}
    return user


def _impersonation_headers(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the impersonation headers of a kubeconfig user. Source: client-go, transport/round_trippers.go."""
    if user.get("as"):
        yield "Impersonate-User", user["as"]
    if user.get("as-uid"):
        yield "Impersonate-Uid", user["as-uid"]
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", group
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", value


def _access_from_configuration(config: Configuration, namespace: str) -> ApiServerAccess:
    authorization: str = (config.api_key or {}).get(_TOKEN_KEY, "").strip()
    if not authorization.isprintable():
        raise ValueError("its token contains characters that are invalid in an HTTP header")
    url: str = config.host or ""
    access = ApiServerAccess(url, True, authorization, config.proxy or None, config.tls_server_name or "", namespace)
    if not url.startswith("https"):
        return access
    tls_without_certificate = _tls_context(config)
    access = access._replace(tls=tls_without_certificate, tls_without_certificate=tls_without_certificate)
    if not config.cert_file:
        return access
    tls = _tls_context(config)
    tls.load_cert_chain(config.cert_file, config.key_file)
    return access._replace(tls=tls)


def _error_message(error: Exception) -> str:
    match error:
        case KeyError(args=(str(name),)):
            return f"it is not a valid kubeconfig: the field {name} is missing"
        case KeyError() | TypeError() | AttributeError():
            return "it is not a valid kubeconfig: a field has a wrong type"
        case FileNotFoundError(filename=str(name)):
            return f"{name} does not exist"
        case OSError(filename=str(name), strerror=str(problem)):
            return f"{name}: {problem}"
    return str(error)


def _tls_context(configuration: Configuration) -> ssl.SSLContext:
    tls_context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        tls_context.check_hostname = False
        tls_context.verify_mode = ssl.CERT_NONE
    return tls_context
