"""Programs that a kubeconfig has run for credentials. Source: client-go, plugin/pkg/client/auth/exec.

What a program tells people goes where we tell them ourselves; what it is asked, and what it answers, is an
ExecCredential.
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

#: Of a cluster, what a program may be told of it; its certificates are told as they are.
_OF_CLUSTER: Final = (
    *("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression"),
    "certificate-authority-data",
)
#: The extension of a cluster that is meant for such programs.
_EXTENSION: Final = "client.authentication.k8s.io/exec"


async def credentials_from(plugin: Any, cluster: Mapping[str, Any]) -> Mapping[str, str]:
    """What a program gives, as a user of a kubeconfig has it; ValueError or OSError where it gives nothing."""
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
        if process.returncode is None:  # nobody waits for it any more
            process.kill()
            await process.wait()
    if process.returncode:
        raise ValueError(f"exec: {command[0]} returned {process.returncode}")
    return _credentials(answer, plugin["apiVersion"], command[0])


def _is_interactive(plugin: Mapping[str, Any]) -> bool:
    """Whether somebody can be asked who may be."""
    return plugin.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()


def _asked(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a program is told of its task."""
    spec: dict[str, Any] = {"interactive": _is_interactive(plugin)}
    if plugin.get("provideClusterInfo"):
        told = {field: cluster[field] for field in _OF_CLUSTER if cluster.get(field)}
        if cluster.get("certificate-authority") and "certificate-authority-data" not in told:
            authority = Path(cluster["certificate-authority"]).read_bytes()
            told["certificate-authority-data"] = base64.b64encode(authority).decode()
        meant = [each.get("extension") for each in cluster.get("extensions") or () if each.get("name") == _EXTENSION]
        spec["cluster"] = {**told, **({"config": meant[0]} if meant else {})}
    return {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": spec}


def _credentials(answer: bytes, version: str, command: str) -> Mapping[str, str]:
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise ValueError(f"exec: {command} did not print an ExecCredential: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "ExecCredential":
        raise ValueError(f"exec: {command} did not print an ExecCredential")
    if found.get("apiVersion") != version:
        raise ValueError(f"exec: {command} answered in {found.get('apiVersion')}, and was asked in {version}")
    status = found.get("status")
    said = status if isinstance(status, dict) else {}
    token, certificate, key = (said.get(each) for each in ("token", "clientCertificateData", "clientKeyData"))
    if bool(certificate) != bool(key):
        raise ValueError(f"exec: {command} gave only one of certificate and key")
    if not token and not certificate:
        raise ValueError(f"exec: {command} gave neither a token nor a certificate")
    given = {"token": token, "client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
    return {field: str(value) for field, value in given.items() if value}


def _encoded(text: Any) -> str:
    return base64.b64encode(str(text).encode()).decode() if text else ""
