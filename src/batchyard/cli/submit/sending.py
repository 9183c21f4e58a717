"""Creates a submitted Job in its cluster and follows it there."""

import asyncio
import shlex
from dataclasses import replace
from functools import partial
from typing import Any, Final

from batchyard.cli import reaching
from batchyard.cli.reaching import ClusterTarget, reading
from batchyard.cli.submit import packing
from batchyard.cli.submit.cluster import Cluster, SubmitError
from batchyard.cli.submit.following import FollowCallbacks, JobFollower
from batchyard.cli.submit.manifests import JobRequest, job_of, parts_of
from batchyard.cli.submit.story import ProgressMessage
from batchyard.cli.submit.telling import SubmitOutput
from batchyard.cli.submit.wanted import SubmitRequest
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.platform.data_dir import KUBECONFIG

#: Errors that are reported to the user as one line.
REFUSALS: Final = (SubmitError, *reaching.REFUSALS)


async def submit_job(
    request: SubmitRequest, asked: JobRequest, packed: packing.PackedFolder | None, reporting: SubmitOutput
) -> int:
    """Create the Job and follow it, unless detached; return the exit code."""
    read = reading(ClusterTarget(request.kubeconfig, request.context, request.data_dir))
    access = await read()
    asked = replace(asked, namespace=asked.namespace or access.namespace)
    archive = None if packed is None else packed.content
    wire = HttpTransport(access, read)
    try:
        cluster = Cluster(wire, access.url)
        await cluster.check(asked)
        job = await cluster.create(job_of(asked, archive), [] if archive is None else parts_of(asked, archive))
        reporting.report(_created(asked, job))
        if packed is not None:
            reporting.report(_shipped(packed))
        inspect_message = _inspection_commands(_kubectl(request, access), asked)
        if request.detach:
            reporting.report(inspect_message)
            return 0
        log = partial(reporting.log, of_several=max(asked.completions, asked.parallelism) > 1)
        return await _followed(
            JobFollower(cluster, asked, job, FollowCallbacks(reporting.report, log)), reporting, inspect_message
        )
    finally:
        await wire.close()


async def _followed(follower: JobFollower, reporting: SubmitOutput, inspect_message: ProgressMessage) -> int:
    """Follow the Job to its end; if interrupted, leave it running and print how to inspect it."""
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[int] = loop.create_future()
    loop.set_exception_handler(lambda _, context: _take_note(broken, context))
    following = asyncio.ensure_future(follower.follow())
    try:
        await asyncio.wait([following, broken], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        following.cancel()
        reporting.report(inspect_message)
        raise
    return broken.result() if broken.done() else following.result()


def _take_note(broken: "asyncio.Future[int]", context: dict[str, Any]) -> None:
    """End the command with an unexpected error of a callback."""
    error = context.get("exception")
    if error is not None and not isinstance(error, OSError) and not broken.done():
        broken.set_exception(error)


def _created(asked: JobRequest, job: Any) -> ProgressMessage:
    line = f"job {asked.name} created in namespace {asked.namespace}, queue {asked.queue}"
    fields = {"job": asked.name, "namespace": asked.namespace, "queue": asked.queue, "uid": job["metadata"]["uid"]}
    return ProgressMessage("Created", line, fields)


def _shipped(packed: packing.PackedFolder) -> ProgressMessage:
    line = f"{packed.files} files shipped, {packing.megabytes(len(packed.content))}"
    if packed.left_out:
        line += f"; left out: {', '.join(packed.left_out)}"
    return ProgressMessage(
        "Shipped", line, {"files": packed.files, "bytes": len(packed.content), "leftOut": packed.left_out}
    )


def _inspection_commands(kubectl: str, asked: JobRequest) -> ProgressMessage:
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
    return ProgressMessage("Detached", line, {"job": asked.name, "namespace": asked.namespace})


def _kubectl(request: SubmitRequest, access: ApiServerAccess) -> str:
    """The kubectl command line for the same cluster."""
    if access.url.startswith("http:") and not request.kubeconfig:
        return f"kubectl --server {access.url}"
    context = f" --context {shlex.quote(request.context)}" if request.context else ""
    if request.context and not request.kubeconfig:
        return f"kubectl{context}"
    named = request.kubeconfig or str((request.data_dir / KUBECONFIG).resolve())
    return f"KUBECONFIG={shlex.quote(named)} kubectl{context}"
