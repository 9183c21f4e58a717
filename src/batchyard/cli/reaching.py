"""Reaching the cluster that a command is about: the platform of a data directory, or whatever a kubeconfig names.

What talks to others takes long to load: whoever asks the platform here waits for the standard library alone.
"""

import http.client
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from batchyard.server.kubeconfig.access import Access, KubeconfigError, Source, access_of_owner, tls_of_owner
from batchyard.server.platform.data_dir import Process, process_in

_ANSWERS_WITHIN: Final = 60  # seconds


class UnreachableError(Exception):
    """The cluster cannot be asked, or refuses to answer; says why and what to do."""

    def __init__(self, told: str, code: int = 0) -> None:
        super().__init__(told)
        #: The code of the answer; 0 where there is none.
        self.code = code


#: What the user is told in a line.
REFUSALS: Final = (UnreachableError, KubeconfigError, OSError, http.client.HTTPException)


class Target(NamedTuple):
    """Which cluster: by kubeconfig or context, '' where the platform of the data directory is meant."""

    kubeconfig: str
    context: str
    data_dir: Path

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is another than the platform of the data directory."""
        return bool(self.kubeconfig or self.context)


def reading(target: Target) -> Callable[[], Awaitable[Access]]:
    """What reads where the cluster is and who we are to it, and again when that is good no more."""
    if target.is_elsewhere:

        async def read() -> Access:
            from batchyard.server.kubeconfig.loading import read_access  # noqa: PLC0415 - takes long to load

            return await read_access(Source(target.kubeconfig, target.context))

        return read
    running = _running(target.data_dir)

    async def own() -> Access:
        return access_of_owner(running, target.data_dir)

    return own


def answered(target: Target, path_in: Callable[[str], str]) -> Mapping[str, Any]:
    """What the cluster answers at a path, given the namespace that we work in; UnreachableError where it refuses."""
    if target.is_elsewhere:
        from batchyard.cli.reaching_others import answered_elsewhere  # noqa: PLC0415 - takes long to load

        url, code, body = answered_elsewhere(reading(target), path_in)
    else:
        url, code, body = _answered_here(_running(target.data_dir), target.data_dir, path_in("default"))
    if code != http.client.OK:
        raise UnreachableError(f"{url}: {_trouble(code, body)}", code)
    return _decoded(body)


def _running(folder: Path) -> Process:
    running = process_in(folder)
    if running is None:
        told = "start a platform with `batchyard up`, name its --data-dir, or another cluster with --kubeconfig"
        raise UnreachableError(f"nothing runs in {folder}: {told}")
    return running


def _answered_here(running: Process, folder: Path, path: str) -> tuple[str, int, bytes]:
    place = urlsplit(running.url)
    assert place.hostname is not None, "a platform says where it listens"
    if place.scheme == "http":
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN)
    else:
        secured = tls_of_owner(folder)
        connection = http.client.HTTPSConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN, context=secured)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return running.url, response.status, response.read()
    finally:
        connection.close()


def _trouble(code: int, body: bytes) -> str:
    """What a server says that refuses, as far as it says it in a Status."""
    try:
        message = _decoded(body).get("message") or ""
    except msgspec.DecodeError:
        message = body[:200].decode("utf-8", "replace").strip()
    return f"{code}: {message}" if message else f"{code}: {http.client.responses.get(code, 'no answer')}"


def _decoded(body: bytes) -> Mapping[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])
