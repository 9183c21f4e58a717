"""Creates a submitted Job in its cluster and follows it there."""

import asyncio
import shlex
from dataclasses import replace
from functools import partial
from typing import Any, Final

from batchyard.cli import reaching
from batchyard.cli.reaching import Target, reading
from batchyard.cli.submit import packing
from batchyard.cli.submit.cluster import Cluster, SubmitError
from batchyard.cli.submit.following import Follower, Heard
from batchyard.cli.submit.manifests import Asked, job_of, parts_of
from batchyard.cli.submit.story import Told
from batchyard.cli.submit.telling import Telling
from batchyard.cli.submit.wanted import Request
from batchyard.server.kubeconfig.access import Access
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.platform.data_dir import KUBECONFIG

#: Errors that are reported to the user as one line.
REFUSALS: Final = (SubmitError, *reaching.REFUSALS)


async def sent(request: Request, asked: Asked, packed: packing.Packed | None, telling: Telling) -> int:
    """Create the Job and follow it, unless detached; return the exit code."""
    read = reading(Target(request.kubeconfig, request.context, request.data_dir))
    access = await read()
    asked = replace(asked, namespace=asked.namespace or access.namespace)
    archive = None if packed is None else packed.content
    wire = HttpTransport(access, read)
    try:
        cluster = Cluster(wire, access.url)
        await cluster.check(asked)
        job = await cluster.create(job_of(asked, archive), [] if archive is None else parts_of(asked, archive))
        telling.tell(_created(asked, job))
        if packed is not None:
            telling.tell(_shipped(packed))
        to_look = _how_to_look(_kubectl(request, access), asked)
        if request.detach:
            telling.tell(to_look)
            return 0
        log = partial(telling.log, of_several=max(asked.completions, asked.parallelism) > 1)
        return await _followed(Follower(cluster, asked, job, Heard(telling.tell, log)), telling, to_look)
    finally:
        await wire.close()


async def _followed(follower: Follower, telling: Telling, to_look: Told) -> int:
    """Follow the Job to its end; if interrupted, leave it running and print how to inspect it."""
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[int] = loop.create_future()
    loop.set_exception_handler(lambda _, context: _take_note(broken, context))
    following = asyncio.ensure_future(follower.follow())
    try:
        await asyncio.wait([following, broken], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        following.cancel()
        telling.tell(to_look)
        raise
    return broken.result() if broken.done() else following.result()


def _take_note(broken: "asyncio.Future[int]", context: dict[str, Any]) -> None:
    """End the command with an unexpected error of a callback."""
    error = context.get("exception")
    if error is not None and not isinstance(error, OSError) and not broken.done():
        broken.set_exception(error)


def _created(asked: Asked, job: Any) -> Told:
    line = f"job {asked.name} created in namespace {asked.namespace}, queue {asked.queue}"
    fields = {"job": asked.name, "namespace": asked.namespace, "queue": asked.queue, "uid": job["metadata"]["uid"]}
    return Told("Created", line, fields)


def _shipped(packed: packing.Packed) -> Told:
    line = f"{packed.files} files shipped, {packing.megabytes(len(packed.content))}"
    if packed.left_out:
        line += f"; left out: {', '.join(packed.left_out)}"
    return Told("Shipped", line, {"files": packed.files, "bytes": len(packed.content), "leftOut": packed.left_out})


def _how_to_look(kubectl: str, asked: Asked) -> Told:
    """The commands that inspect or delete the Job."""
    kubectl = f"{kubectl} --namespace {asked.namespace}"
    line = "\n".join(
        [
            "it keeps running in the cluster",
            f"  see:    {kubectl} describe job {asked.name}",
            f"  logs:   {kubectl} logs --follow --prefix --selector job-name={asked.name}",
            f"  delete: {kubectl} delete job {asked.name}",
        ]
    )
    return Told("Detached", line, {"job": asked.name, "namespace": asked.namespace})


def _kubectl(request: Request, access: Access) -> str:
    """The kubectl command line for the same cluster."""
    if access.url.startswith("http:") and not request.kubeconfig:
        return f"kubectl --server {access.url}"
    context = f" --context {shlex.quote(request.context)}" if request.context else ""
    if request.context and not request.kubeconfig:
        return f"kubectl{context}"
    named = request.kubeconfig or str((request.data_dir / KUBECONFIG).resolve())
    return f"KUBECONFIG={shlex.quote(named)} kubectl{context}"
