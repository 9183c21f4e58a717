"""`batchyard submit`: creates a Job, reports its progress, and exits with its exit code."""

import asyncio
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from batchyard.api import scheme, well_known
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.base import uid_for
from batchyard.base.instant import SECOND
from batchyard.cli import cluster_access, output
from batchyard.cli.cluster_access import ClusterTarget, reading
from batchyard.cli.options import DATA_DIR, Context, DataDir, DocumentFormat, Kubeconfig, cluster
from batchyard.cli.output import render_json, render_yaml
from batchyard.cli.submit import manifests
from batchyard.cli.submit.cluster import Cluster, SubmitError
from batchyard.cli.submit.manifests import CONTAINER, JobRequest, job_of, megabytes, parts_of, stem_of
from batchyard.cli.submit.progress import JobProgress, ProgressMessage, SubmitOutput, has_begun, terminated
from batchyard.client.informer import Cache, Informer, InformerScope
from batchyard.client.transport import failure_reason
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.clocks.wall import sleep_for, wall_clock
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.platform.data_dir import KUBECONFIG

# --- options ---
#
# The options of `batchyard submit` and the parsing of their values. Imports little, to keep startup fast.


class WithCommand(TyperCommand):
    """A command whose arguments end with another command line, after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments after `--` and parse the rest."""
        place = args.index("--") if "--" in args else len(args)
        ctx.obj = args[place + 1 :]
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the command after `--` added."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


def command_line(context: typer.Context) -> Sequence[str]:
    """The arguments after `--`; BadParameter if there are none."""
    argv: Sequence[str] = context.obj
    if not argv:
        raise typer.BadParameter("add the command after --, such as: batchyard submit --queue QUEUE -- python train.py")
    return argv


def pairs(option: str, reported: Sequence[str] | None) -> dict[str, str]:
    """Parse values of the form NAME=VALUE."""
    found = {}
    for text in reported or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option} {text!r}: use the form NAME=VALUE")
        found[name] = value
    return found


def parse_toleration(text: str) -> dict[str, str]:
    """Parse a toleration: KEY or KEY=VALUE, optionally with :EFFECT."""
    reported, _, effect = text.partition(":")
    key, equals, value = reported.partition("=")
    which = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {**({"key": key} if key else {}), **which, **({"effect": effect} if effect else {})}


def _repeated(*names: str, metavar: str = "NAME=VALUE", reported: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=f"{reported}; repeatable.")


def _count(least: int, reported: str) -> Any:
    return typer.Option(metavar="N", min=least, help=reported)


_Texts: TypeAlias = list[str] | None

Queue: TypeAlias = Annotated[str, typer.Option(metavar="QUEUE", help="The LocalQueue of the Job.")]
Folder: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="A folder to ship as the working directory.", show_default=False)
]
Name: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The Job's name; default: from the command.")]
Namespace: TypeAlias = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", help="The Job's namespace; default: the kubeconfig's.")
]
Image: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The container image.")]
Cpu: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="CPUs of each pod: 2, 500m; '' requests none.")]
Memory: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="Memory of each pod, such as 4Gi.")]
Gpus: TypeAlias = Annotated[int, _count(0, "GPUs of each pod.")]
GpuResource: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The resource name of GPUs.")]
Priority: TypeAlias = Annotated[str, typer.Option(metavar="CLASS", help="Its WorkloadPriorityClass.")]
Completions: TypeAlias = Annotated[int | None, _count(1, "Number of pods that must succeed, each with its index.")]
Parallelism: TypeAlias = Annotated[
    int | None, _count(1, "Number of pods that run in parallel; default: all completions.")
]
BackoffLimit: TypeAlias = Annotated[int, _count(0, "Number of retries of failed pods.")]
Env: TypeAlias = Annotated[_Texts, _repeated("--env", "-e", reported="An environment variable")]
Annotations: TypeAlias = Annotated[_Texts, _repeated("--annotation", reported="An annotation of the Job")]
NodeSelector: TypeAlias = Annotated[_Texts, _repeated("--node-selector", reported="A label that the nodes must have")]
Tolerations: TypeAlias = Annotated[
    _Texts, _repeated("--toleration", metavar="KEY[=VALUE][:EFFECT]", reported="A node taint to tolerate")
]
CheckpointDir: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder of the node, mounted at $CHECKPOINT_DIR.")
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print the objects and create nothing.")]
Detach: TypeAlias = Annotated[bool, typer.Option("--detach", help="Return once the Job is created.")]
Output: TypeAlias = Annotated[
    DocumentFormat | None,
    typer.Option("--output", "-o", help="Format of --dry-run; without it, json prints events as JSON lines."),
]


# --- arguments ---
#
# The arguments of `batchyard submit`.


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The arguments. `asked` may lack the namespace and the name."""

    asked: JobRequest
    folder: Path | None
    #: '' for the platform of the data directory.
    kubeconfig: str
    context: str
    data_dir: Path
    dry_run: bool
    detach: bool
    form: DocumentFormat | None


# --- following ---
#
# Follows a submitted Job until it ends: its Workload, its pods, and their logs.


#: The interval between queries of the queue position, which cannot be watched.
_LOOKS_EVERY: Final = 5 * SECOND
_TRIES_AGAIN: Final = SECOND
#: The longest wait for the rest of the logs after the end.
_DRAINS_WITHIN: Final = 30  # seconds
_GONE: Final = 404


class FollowCallbacks(NamedTuple):
    """Callbacks: `report` for each message, `log` for each line of a pod's log."""

    report: Callable[[ProgressMessage], None]
    log: Callable[[str, str], None]


class JobFollower:
    """A Job being followed: its informers, log readers and reported messages."""

    def __init__(self, cluster: Cluster, asked: JobRequest, job: Mapping[str, Any], heard: FollowCallbacks) -> None:
        self._cluster = cluster
        self._asked = asked
        self._notify, self._log = heard
        self._story = JobProgress()
        self._uid = uid = job["metadata"]["uid"]
        #: The latest version of the Job.
        self._job: Obj = job
        self._pods_of = f"labelSelector={quote(f'{well_known.CONTROLLER_UID}={uid}')}"
        of_kind = {
            scheme.JOB: f"fieldSelector={quote(f'metadata.name={asked.name}')}",
            scheme.WORKLOAD: f"labelSelector={quote(f'{well_known.JOB_UID}={uid}')}",
            scheme.POD: self._pods_of,
        }
        self._cache = Cache()
        self._informers = [
            Informer(kind_info(kind), self._cache, 0, InformerScope(asked.namespace, selector))
            for kind, selector in of_kind.items()
        ]
        self._troubles: dict[str, None] = {}
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()

    async def follow(self) -> int:
        """Report the Job's progress until it ends; return the exit code."""
        looking = [asyncio.ensure_future(each) for each in (*map(self._watch, self._informers), self._look())]
        over = asyncio.ensure_future(self._over.wait())
        done, _ = await asyncio.wait([over, *looking], return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()  # these tasks never end by themselves: raise their error
        for pod in await self._pods():
            self._follow_log(pod)
        if self._logs:
            done, _ = await asyncio.wait(self._logs.values(), timeout=_DRAINS_WITHIN)
            for each in done:
                each.result()  # raises an unexpected error
        self._report_all(self._story.process_job(self._job, await self._pods()))
        code = self._story.ended
        assert code is not None, "it is over"
        return code

    async def _watch(self, informer: Informer) -> None:
        """List and watch a kind until the task is cancelled."""
        while True:
            following = informer.following()
            if following.wait:
                await sleep_for(following.wait)
            if following.is_watch:
                answer = await self._cluster.wire.stream(following.request, lambda lines: self._heard(informer, lines))
                informer.ended(answer)
            else:
                self._take_in(informer.listed(await self._cluster.wire.ask(following.request)))
            self._report_trouble(informer)

    def _heard(self, informer: Informer, lines: Sequence[bytes]) -> None:
        self._take_in(informer.watched(lines))

    def _take_in(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            is_gone = event.type is EventType.DELETED
            match event.key.kind:
                case scheme.WORKLOAD if not is_gone:
                    self._report_all(self._story.process_workload(event.obj))
                case scheme.POD:
                    self._report_all(self._story.process_pod(event.obj))
                    self._follow_log(event.obj)
                case scheme.JOB if event.obj["metadata"]["uid"] == self._uid:
                    self._job_is(event.obj, is_gone=is_gone)

    def _job_is(self, job: Obj, *, is_gone: bool) -> None:
        status = job.get("status") or {}
        ended = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        if is_gone and not self._over.is_set():
            self._report_all(self._story.process_deletion())
        self._job = job
        if is_gone or ended & {"Complete", "Failed"}:
            self._over.set()

    async def _pods(self) -> Sequence[Obj]:
        """List the Job's pods: the pod watch may be behind the watch that reported the Job's end."""
        return await self._cluster.pods(self._asked.namespace, self._pods_of)

    async def _look(self) -> None:
        """Report the queue position while the Job waits, and warnings about its pods that do not run yet."""
        while True:
            for pod in list(self._cache.of_kind(scheme.POD).values()):
                waits = not has_begun(pod) and terminated(pod) is None
                if waits and (warning := await self._cluster.warning(pod)) is not None:
                    self._report_all(self._story.process_warning(pod["metadata"]["name"], *warning))
            if self._story.waits:
                found = await self._cluster.place(self._asked, self._uid)
                if found is not None:
                    self._report_all(self._story.process_position(*found, self._asked.queue))
            await sleep_for(_LOOKS_EVERY)

    def _follow_log(self, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        if name not in self._logs and has_begun(pod):
            self._logs[name] = asyncio.ensure_future(self._read_log(name))

    async def _read_log(self, pod: str) -> None:
        """Report a log up to its end; resume if the connection breaks."""
        log = LogReader(pod, self._log)
        while True:
            answer = await self._cluster.follow_log(self._asked.namespace, pod, CONTAINER, log.since, log.take)
            is_whole = answer.code == 200 and not answer.trouble
            known = self._cache.of_kind(scheme.POD)
            found = next((each for key, each in known.items() if key.name == pod), None)
            if answer.code == _GONE or (is_whole and (found is None or terminated(found) is not None)):
                return
            if answer.code >= 400:
                self._report_once(f"the log of pod {pod}: {failure_reason(answer)}")
            log.restart_reading()
            await sleep_for(_TRIES_AGAIN)

    def _report_all(self, reported: Iterable[ProgressMessage]) -> None:
        for each in reported:
            self._notify(each)

    def _report_trouble(self, informer: Informer) -> None:
        if informer.trouble:
            self._report_once(f"{informer.info.plural}: {informer.trouble}")

    def _report_once(self, trouble: str) -> None:
        if trouble not in self._troubles:
            self._troubles[trouble] = None
            self._notify(ProgressMessage("Trouble", trouble, {"message": trouble}))


class LogReader:
    """Reports each line of a timestamped log once, however often reading restarts."""

    def __init__(self, pod: str, notify: Callable[[str, str], None]) -> None:
        self._pod = pod
        self._notify = notify
        #: The time of the last line, and how many lines with that time were reported.
        self.since = ""
        self._reported = 0
        self._skips = 0

    def take(self, lines: Sequence[bytes]) -> None:
        """Process lines; skip those that were already reported."""
        for line in lines:
            time, _, text = line.decode("utf-8", "replace").partition(" ")
            if time == self.since and self._skips:
                self._skips -= 1
                continue
            if time < self.since:
                continue
            self._reported = self._reported + 1 if time == self.since else 1
            self.since = time
            self._notify(self._pod, text)

    def restart_reading(self) -> None:
        """Restart reading at the time of the last line."""
        self._skips = self._reported


# --- sending ---
#
# Creates a submitted Job in its cluster and follows it there.


#: Errors that are reported to the user as one line.
REFUSALS: Final = (SubmitError, *cluster_access.REFUSALS)


async def submit_job(
    request: SubmitRequest, asked: JobRequest, packed: manifests.PackedFolder | None, reporting: SubmitOutput
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


def _shipped(packed: manifests.PackedFolder) -> ProgressMessage:
    line = f"{packed.files} files shipped, {megabytes(len(packed.content))}"
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


#: The length of the suffix of generated names, as in Kubernetes.
_LETTERS: Final = 5


def run(request: SubmitRequest) -> int:
    """Run the command; return the exit code of the Job's command once it has ended."""
    asked = _named(request.asked)
    packed = _packed(request)
    archive = None if packed is None else packed.content
    job = job_of(asked, archive)
    parts = [] if archive is None else parts_of(asked, archive)
    faults = read_manifests([("submit", json.dumps(job))]).faults
    if faults:
        output.fail("\n".join(f"batchyard: {fault.error}" for fault in faults))
    if request.dry_run:
        output.write(_written([*parts, job], request.form or DocumentFormat.YAML))
        return 0

    reported = SubmitOutput(is_json=request.form is DocumentFormat.JSON)
    try:
        return asyncio.run(submit_job(request, asked, packed, reported))
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")


def _named(asked: JobRequest) -> JobRequest:
    """Set a generated name if none is given."""
    if asked.name:
        return asked
    letters = uid_for(wall_clock(), str(os.getpid()), *asked.argv)[:_LETTERS]
    return replace(asked, name=f"{stem_of(asked.argv)}-{letters}")


def _packed(request: SubmitRequest) -> manifests.PackedFolder | None:
    if request.folder is None:
        return None
    try:
        return manifests.pack(request.folder)
    except manifests.PackingError as error:
        output.fail(f"batchyard: {error}")


def _written(objects: Sequence[Obj], form: DocumentFormat) -> str:
    """Format the objects as manifests for kubectl."""
    if form is DocumentFormat.YAML:
        return "---\n".join(map(render_yaml, objects))
    if len(objects) == 1:
        return render_json(objects[0])
    return render_json({"apiVersion": "v1", "kind": "List", "items": objects})


app = typer.Typer(rich_markup_mode=None)


@app.command(cls=WithCommand)
def submit(
    context: typer.Context,
    queue: Queue,
    folder: Folder = None,
    name: Name = "",
    namespace: Namespace = "",
    image: Image = "python:3.12-slim",
    cpu: Cpu = "1",
    memory: Memory = "",
    gpus: Gpus = 0,
    gpu_resource: GpuResource = "nvidia.com/gpu",
    priority: Priority = "",
    completions: Completions = None,
    parallelism: Parallelism = None,
    backoff_limit: BackoffLimit = 0,
    env: Env = None,
    annotation: Annotations = None,
    node_selector: NodeSelector = None,
    toleration: Tolerations = None,
    checkpoint_dir: CheckpointDir = None,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    output: Output = None,
) -> None:
    """Create a Job in a queue, report its progress, print its logs, and exit with its exit code."""
    argv = command_line(context)
    if output is DocumentFormat.YAML and not dry_run:
        raise typer.BadParameter("--output yaml requires --dry-run: use --output json for events as JSON lines")

    asked = JobRequest(argv, name, queue, image, namespace, priority, cpu, memory, {gpu_resource: gpus} if gpus else {})
    at_once = parallelism or completions or 1
    asked = replace(
        asked,
        environment=pairs("--env", env),
        annotations=pairs("--annotation", annotation),
        node_selector=pairs("--node-selector", node_selector),
        tolerations=[parse_toleration(each) for each in toleration or ()],
        completions=completions or at_once,
        parallelism=at_once,
        backoff_limit=backoff_limit,
        checkpoint_folder="" if checkpoint_dir is None else str(checkpoint_dir.resolve()),
    )
    kubeconfig = cluster(context, kubeconfig, data_dir)
    request = SubmitRequest(asked, folder, kubeconfig, kube_context, data_dir or DATA_DIR, dry_run, detach, output)
    raise typer.Exit(run(request))
