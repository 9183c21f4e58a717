"""Reaching the cluster that a command is about: the platform of a data directory, or whatever a kubeconfig names."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.client.wire import HttpRequest
from batchyard.client.writes import decoded, trouble_of
from batchyard.live.access import Access, KubeconfigError, Source, access_of_owner
from batchyard.live.folder import process_in
from batchyard.live.rest_wire import HttpTransport


class UnreachableError(Exception):
    """The cluster cannot be asked, or refuses to answer; says why and what to do."""

    def __init__(self, told: str, code: int = 0) -> None:
        super().__init__(told)
        #: The code of the answer; 0 where there is none.
        self.code = code


#: What the user is told in a line.
REFUSALS: Final = (UnreachableError, KubeconfigError, OSError)


class Target(NamedTuple):
    """Which cluster: by kubeconfig or context, '' where the platform of the data directory is meant."""

    kubeconfig: str
    context: str
    data_dir: Path


def reading(target: Target) -> Callable[[], Awaitable[Access]]:
    """What reads where the cluster is and who we are to it, and again when that is good no more."""
    if target.kubeconfig or target.context:

        async def read() -> Access:
            from batchyard.live.kubeconfig import read_access  # noqa: PLC0415 - takes long to load

            return await read_access(Source(target.kubeconfig, target.context))

        return read
    folder = target.data_dir
    running = process_in(folder)
    if running is None:
        told = "start a platform with `batchyard up`, name its --data-dir, or another cluster with --kubeconfig"
        raise UnreachableError(f"nothing runs in {folder}: {told}")

    async def own() -> Access:
        return access_of_owner(running, folder)

    return own


def answered(target: Target, path_in: Callable[[str], str]) -> Mapping[str, Any]:
    """What the cluster answers at a path, given the namespace that we work in; UnreachableError where it refuses."""

    async def ask() -> Mapping[str, Any]:
        read = reading(target)
        access = await read()
        wire = HttpTransport(access, read)
        try:
            answer = await wire.ask(HttpRequest("GET", path_in(access.namespace)))
        finally:
            await wire.close()
        if answer.code != 200:
            raise UnreachableError(f"{access.url}: {trouble_of(answer)}", answer.code)
        return decoded(answer.body)

    return asyncio.run(ask())
