"""Credential plugins of kubeconfigs (`exec`). Source: client-go, plugin/pkg/client/auth/exec.

The plugin's standard error is passed through to the user. Its input and output are ExecCredential objects.
"""

import asyncio
import base64
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

#: The fields of a cluster that a plugin receives.
_OF_CLUSTER: Final = (
    *("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression"),
    "certificate-authority-data",
)
#: The cluster extension for plugins.
_EXTENSION: Final = "client.authentication.k8s.io/exec"


async def credentials_from(plugin: Any, cluster: Mapping[str, Any]) -> Mapping[str, str]:
    """Run a plugin, and return its credentials as fields of a kubeconfig user. ValueError or OSError if it fails."""
    if not isinstance(plugin, dict) or not plugin.get("command") or not plugin.get("apiVersion"):
        raise ValueError("the exec of its user needs an apiVersion and a command")
    command = [str(each) for each in (plugin["command"], *(plugin.get("args") or ()))]
    asked = {each["name"]: str(each.get("value") or "") for each in plugin.get("env") or ()}
    asked["KUBERNETES_EXEC_INFO"] = json.dumps(_asked(plugin, cluster))
    stdin = None if _is_interactive(plugin) else DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **asked}, stdin=stdin, stdout=PIPE)
    except FileNotFoundError as error:
        hint = f". {plugin['installHint']}" if plugin.get("installHint") else ""
        raise ValueError(f"exec: {command[0]} is not on this machine{hint}") from error
    try:
        answer, _ = await process.communicate()
    finally:
        if process.returncode is None:  # cancelled
            process.kill()
            await process.wait()
    if process.returncode:
        raise ValueError(f"exec: {command[0]} returned {process.returncode}")
    return _credentials(answer, plugin["apiVersion"], command[0])


def _is_interactive(plugin: Mapping[str, Any]) -> bool:
    """Whether the plugin may prompt the user, and there is a terminal to do so."""
    return plugin.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()


def _asked(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ExecCredential that is the plugin's input."""
    spec: dict[str, Any] = {"interactive": _is_interactive(plugin)}
    if plugin.get("provideClusterInfo"):
        info = {field: cluster[field] for field in _OF_CLUSTER if cluster.get(field)}
        if cluster.get("certificate-authority") and "certificate-authority-data" not in info:
            authority = Path(cluster["certificate-authority"]).read_bytes()
            info["certificate-authority-data"] = base64.b64encode(authority).decode()
        meant = [each.get("extension") for each in cluster.get("extensions") or () if each.get("name") == _EXTENSION]
        spec["cluster"] = {**info, **({"config": meant[0]} if meant else {})}
    return {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": spec}


def _credentials(answer: bytes, version: str, command: str) -> Mapping[str, str]:
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise ValueError(f"exec: {command} did not print an ExecCredential: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "ExecCredential":
        raise ValueError(f"exec: {command} did not print an ExecCredential")
    if found.get("apiVersion") != version:
        raise ValueError(f"exec: {command} answered with apiVersion {found.get('apiVersion')} instead of {version}")
    status = found.get("status")
    given_status = status if isinstance(status, dict) else {}
    token, certificate, key = (given_status.get(each) for each in ("token", "clientCertificateData", "clientKeyData"))
    if bool(certificate) != bool(key):
        raise ValueError(f"exec: {command} gave only one of certificate and key")
    if not token and not certificate:
        raise ValueError(f"exec: {command} gave neither a token nor a certificate")
    given = {"token": token, "client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
    return {field: str(value) for field, value in given.items() if value}


def _encoded(text: Any) -> str:
    return base64.b64encode(str(text).encode()).decode() if text else ""
