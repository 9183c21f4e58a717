"""The command `batchyard submit`: creates a Job, follows its progress and logs, and exits with the Job's exit code."""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import typer

from batchyard.api import scheme, well_known
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, parse_quantity
from batchyard.api.scheme import kind_info
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import SECOND
from batchyard.base.primitives import uid_for
from batchyard.cli import cluster_access, output
from batchyard.cli.cluster_access import ClusterTarget, access_reader_of_target
from batchyard.cli.daily.cluster import ClusterClient, ClusterRequestError, LogReader, watch_objects
from batchyard.cli.help import HELP_SETTINGS, HelpCommand
from batchyard.cli.options import DATA_DIR, Context, DataDir, DocumentFormat, Kubeconfig, select_kubeconfig
from batchyard.cli.output import render_json, render_yaml
from batchyard.cli.submit import frameworks, manifests, progress
from batchyard.cli.submit.cluster import Cluster, SubmitError
from batchyard.cli.submit.manifests import CONTAINER, JobRequest, archive_config_maps, format_megabytes, job_name_prefix
from batchyard.client.informer import Informer, InformerScope, ObjectCache
from batchyard.client.transport import failure_reason
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.clocks.wall import sleep_for, wall_clock
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.platform.data_dir import KUBECONFIG_FILE

# The options of `batchyard submit` and the parsing of their values. Imports little, to keep startup fast.


class CommandWithArguments(HelpCommand):
    """A Typer command whose arguments end with another command line, after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the arguments after `--` in the Click context, and parse the arguments before it.

        Without `--`, the arguments to store start at the first one that is neither an option nor the folder to submit.
        """
        separator_index = args.index("--") if "--" in args else self._command_index(ctx, args)
        ctx.obj = args[separator_index:]
        if ctx.obj[:1] == ["--"]:
            ctx.obj = ctx.obj[1:]
        elif ctx.obj:
            self._check_command(ctx, args[:separator_index], ctx.obj)
        return super().parse_args(ctx, args[:separator_index])

    def _command_index(self, ctx: Any, args: Sequence[str]) -> int:
        """Return the index at which the command starts in arguments without `--`."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        parsed_values, remaining_args, _ = parser.parse_args(list(args))
        index = len(args) - len(remaining_args) - (parsed_values.get("folder") is not None)
        return index + 1 if index < len(args) and Path(args[index]).is_dir() else index

    def _check_command(self, ctx: Any, options: Sequence[str], argv: Sequence[str]) -> None:
        own_options = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        ambiguous_option = next((each for each in argv if each.partition("=")[0] in own_options), "")
        command = f"batchyard submit {shlex.join(options)}{' ' if options else ''}-- {shlex.join(argv)}"
        if ambiguous_option:
            message = f"{ambiguous_option} could belong to submit or to the command: write -- before the command"
            raise typer.BadParameter(f"{message}, such as: {command}")
        output.report_line(f"batchyard: -- is missing before the command; read as: {command}")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, with `-- COMMAND...` added."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


def command_line(context: typer.Context) -> Sequence[str]:
    """Return the user's command, as `parse_args` stored it; raise BadParameter if it is empty."""
    argv: Sequence[str] = context.obj
    if not argv:
        raise typer.BadParameter("add the command after --, such as: batchyard submit --queue QUEUE -- python train.py")
    return argv


def parse_pairs(option: str, option_values: Sequence[str] | None) -> dict[str, str]:
    """Parse the values of an option as NAME=VALUE pairs; raise BadParameter if one is malformed."""
    values_by_name = {}
    for text in option_values or ():
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise typer.BadParameter(f"{option} {text!r}: use the form NAME=VALUE")
        values_by_name[name] = value
    return values_by_name


def parse_toleration(text: str) -> dict[str, str]:
    """Parse a toleration of the form KEY or KEY=VALUE, optionally followed by :EFFECT, to its fields in a pod spec."""
    key_and_value, _, taint_effect = text.partition(":")
    key, separator, value = key_and_value.partition("=")
    operator_fields = {"operator": "Equal", "value": value} if separator else {"operator": "Exists"}
    return {**({"key": key} if key else {}), **operator_fields, **({"effect": taint_effect} if taint_effect else {})}


_GPUS_PATTERN: Final = re.compile(r"(?:([A-Za-z0-9][\w.-]*):)?(\d{1,4})")


def parse_memory(text: str) -> str:
    """Return an amount of memory unchanged; raise BadParameter if it is not a quantity in Kubernetes's notation."""
    try:
        parse_quantity(text or 0)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None
    return text


def parse_gpus(text: str) -> tuple[str, int]:
    """Parse the value of --gpus, N or MODEL:N, to the model ('' for any) and the number of GPUs."""
    match = _GPUS_PATTERN.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"--gpus {text}: use N or MODEL:N, such as 1 or a100:1, with N up to 9999")
    return match[1] or "", int(match[2])


def _repeatable_option(*names: str, metavar: str = "NAME=VALUE", description: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=f"{description}; repeatable.")


def _count_option(minimum: int, description: str) -> Any:
    return typer.Option(metavar="N", min=minimum, help=description)


_OptionalTexts: TypeAlias = list[str] | None

Queue: TypeAlias = Annotated[
    str, typer.Option(metavar="QUEUE", help="The LocalQueue of the Job; default: the only one of the namespace.")
]
Folder: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="A folder to ship as the working directory.", show_default=False)
]
Name: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The Job's name; default: from the command.")]
Namespace: TypeAlias = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", help="The Job's namespace; default: the kubeconfig's.")
]
Image: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The container image.")]
Cpu: TypeAlias = Annotated[
    str, typer.Option("--cpu", "--cpus", metavar="AMOUNT", help="CPUs of each pod: 2, 500m; '' requests none.")
]
Memory: TypeAlias = Annotated[str, typer.Option(metavar="AMOUNT", help="Memory of each pod, such as 4Gi.")]
Gpus: TypeAlias = Annotated[str, typer.Option(metavar="[MODEL:]N", help="GPUs of each pod, such as 1 or a100:1.")]
GpuResource: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The resource name of GPUs.")]
Priority: TypeAlias = Annotated[str, typer.Option(metavar="CLASS", help="The Job's WorkloadPriorityClass.")]
Completions: TypeAlias = Annotated[
    int | None, _count_option(1, "Number of pods that must succeed, each with its index.")
]
Parallelism: TypeAlias = Annotated[
    int | None, _count_option(1, "Number of pods that run in parallel; default: all completions.")
]
BackoffLimit: TypeAlias = Annotated[int, _count_option(0, "Number of retries of failed pods.")]
Env: TypeAlias = Annotated[_OptionalTexts, _repeatable_option("--env", "-e", description="An environment variable")]
Annotations: TypeAlias = Annotated[
    _OptionalTexts, _repeatable_option("--annotation", description="An annotation of the Job")
]
NodeSelector: TypeAlias = Annotated[
    _OptionalTexts, _repeatable_option("--node-selector", description="A label that the nodes must have")
]
Tolerations: TypeAlias = Annotated[
    _OptionalTexts,
    _repeatable_option("--toleration", metavar="KEY[=VALUE][:EFFECT]", description="A node taint to tolerate"),
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


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The arguments of `batchyard submit`; its JobRequest may have no namespace and name yet."""

    job_request: JobRequest
    folder: Path | None
    #: The kubeconfig file; '' for the platform of the data directory.
    kubeconfig: str
    context: str
    data_dir: Path
    dry_run: bool
    detach: bool
    output_format: DocumentFormat | None


# Follows a submitted Job until it ends: its Workload, its pods, and their logs.


#: The interval between queries of the queue position, which cannot be watched.
_PROGRESS_POLL_INTERVAL: Final = 5 * SECOND
_LOG_RETRY_DELAY: Final = SECOND
#: The maximum wait for the remaining log lines after the Job ends.
_LOG_DRAIN_TIMEOUT: Final = 30  # seconds
_NOT_FOUND_CODE: Final = 404


class FollowCallbacks(NamedTuple):
    """The callbacks of JobFollower: `report` gets each progress message, `log` a pod's name and a line of its log."""

    report: Callable[[progress.ProgressMessage], None]
    log: Callable[[str, str], None]


class JobFollower:
    """Follows one Job with informers and log readers, and reports its progress and its pods' logs."""

    def __init__(self, cluster: Cluster, job_request: JobRequest, job: Obj, callbacks: FollowCallbacks) -> None:
        self._cluster = cluster
        self._job_request = job_request
        self._notify, self._log = callbacks
        self._progress = progress.JobProgress()
        self._uid = uid = job["metadata"]["uid"]
        #: The latest version of the Job.
        self._job: Obj = job
        self._pod_selector = f"labelSelector={quote(f'{well_known.CONTROLLER_UID}={uid}')}"
        selector_by_kind = {
            scheme.JOB: f"fieldSelector={quote(f'metadata.name={job_request.name}')}",
            scheme.WORKLOAD: f"labelSelector={quote(f'{well_known.JOB_UID}={uid}')}",
            scheme.POD: self._pod_selector,
        }
        self._cache = ObjectCache()
        self._informers = [
            Informer(kind_info(kind), self._cache, 0, InformerScope(job_request.namespace, selector))
            for kind, selector in selector_by_kind.items()
        ]
        self._reported_problems: dict[str, None] = {}
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._job_ended = asyncio.Event()

    async def follow(self) -> int:
        """Report the Job's progress until the Job ends; return the exit code of the Job's command.

        Returns 1 if the Job was deleted or failed for another reason than its command.
        """
        tasks = [asyncio.ensure_future(task) for task in (*map(self._watch, self._informers), self._poll_progress())]
        job_ended_task = asyncio.ensure_future(self._job_ended.wait())
        done_tasks, _ = await asyncio.wait([job_ended_task, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done_tasks:
            task.result()  # these tasks run until cancelled: a finished one raises its error
        for pod in await self._list_pods():
            self._follow_log(pod)
        if self._logs:
            done_tasks, _ = await asyncio.wait(self._logs.values(), timeout=_LOG_DRAIN_TIMEOUT)
            for task in done_tasks:
                task.result()  # raises an unexpected error
        self._report_all(self._progress.process_job(self._job, await self._list_pods()))
        exit_code = self._progress.exit_code
        assert exit_code is not None, "process_job sets the exit code of an ended Job"
        return exit_code

    async def _watch(self, informer: Informer) -> None:
        client = self._cluster.client
        await watch_objects(client.transport, informer, self._process_events, self._report_informer_problem)

    def _process_events(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            is_deleted = event.type is EventType.DELETED
            match event.key.kind:
                case scheme.WORKLOAD if not is_deleted:
                    self._report_all(self._progress.process_workload(event.obj))
                case scheme.POD:
                    self._report_all(self._progress.process_pod(event.obj))
                    self._follow_log(event.obj)
                case scheme.JOB if event.obj["metadata"]["uid"] == self._uid:
                    self._update_job(event.obj, is_deleted=is_deleted)

    def _update_job(self, job: Obj, *, is_deleted: bool) -> None:
        status = job.get("status") or {}
        true_conditions = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        if is_deleted and not self._job_ended.is_set():
            self._report_all(self._progress.process_deletion())
        self._job = job
        if is_deleted or true_conditions & {"Complete", "Failed"}:
            self._job_ended.set()

    async def _list_pods(self) -> Sequence[Obj]:
        """Request the Job's pods from the API server, because the pod watch may lag behind the Job watch."""
        return await self._cluster.list_pods(self._job_request.namespace, self._pod_selector)

    async def _poll_progress(self) -> None:
        while True:
            for pod in list(self._cache.of_kind(scheme.POD).values()):
                is_pod_starting = not progress.has_container_started(pod) and progress.terminated_state_of(pod) is None
                if is_pod_starting and (warning := await self._cluster.latest_warning(pod)) is not None:
                    self._report_all(self._progress.process_warning(pod["metadata"]["name"], *warning))
            if self._progress.is_pending:
                position = await self._cluster.queue_position(self._job_request, self._uid)
                if position is not None:
                    self._report_all(self._progress.process_queue_position(*position, self._job_request.queue))
            await sleep_for(_PROGRESS_POLL_INTERVAL)

    def _follow_log(self, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        if name not in self._logs and progress.has_container_started(pod):
            self._logs[name] = asyncio.ensure_future(self._read_log(name))

    async def _read_log(self, pod: str) -> None:
        log = LogReader(pod, self._log)
        while True:
            namespace = self._job_request.namespace
            response = await self._cluster.follow_log(namespace, pod, CONTAINER, log.since, log.process_lines)
            is_log_complete = response.code == 200 and not response.trouble
            pods_by_key = self._cache.of_kind(scheme.POD)
            current_pod = next((candidate for key, candidate in pods_by_key.items() if key.name == pod), None)
            if response.code == _NOT_FOUND_CODE or (
                is_log_complete and (current_pod is None or progress.terminated_state_of(current_pod) is not None)
            ):
                return
            if response.code >= 400:
                self._report_problem_once(f"the log of pod {pod}: {failure_reason(response)}")
            log.restart_reading()
            await sleep_for(_LOG_RETRY_DELAY)

    def _report_all(self, messages: Iterable[progress.ProgressMessage]) -> None:
        for message in messages:
            self._notify(message)

    def _report_informer_problem(self, informer: Informer) -> None:
        if informer.trouble:
            self._report_problem_once(f"{informer.info.plural}: {informer.trouble}")

    def _report_problem_once(self, problem: str) -> None:
        if problem not in self._reported_problems:
            self._reported_problems[problem] = None
            self._notify(progress.ProgressMessage("Trouble", problem, {"message": problem}))


# Creates the Job in its cluster and follows it.


#: Errors that the command prints as one line, without a traceback.
SUBMIT_ERRORS: Final = (SubmitError, ClusterRequestError, *cluster_access.REQUEST_ERRORS)


async def submit_job(
    request: SubmitRequest,
    job_request: JobRequest,
    packed_folder: manifests.PackedFolder | None,
    submit_output: progress.SubmitOutput,
) -> int:
    """Create the Job and, unless detached, follow it to its end; return the exit code of its command, 0 if detached."""
    read_access = access_reader_of_target(ClusterTarget(request.kubeconfig, request.context, request.data_dir))
    access = await read_access()
    job_request = replace(job_request, namespace=job_request.namespace or access.namespace)
    archive = None if packed_folder is None else packed_folder.content
    transport = HttpTransport(access, read_access)
    try:
        cluster = Cluster(ClusterClient(transport, access))
        served_kind = frameworks.served_kind_of(job_request)
        if job_request.framework:
            controller = frameworks.FRAMEWORKS[job_request.framework].controller
            await cluster.check_installed(served_kind, f"install {controller}, or run a Job with --completions")
        job_request, remarks = await cluster.prepare(job_request)
        for remark in remarks:
            submit_output.report(progress.ProgressMessage("Remark", remark, {"message": remark}))
        config_maps = [] if archive is None else archive_config_maps(job_request, archive)
        job = await cluster.create(served_kind, frameworks.submitted_manifest(job_request, archive), config_maps)
        submit_output.report(_created_message(job_request, job))
        if packed_folder is not None:
            submit_output.report(_packed_folder_message(packed_folder))
        inspect_message = _inspection_commands(_kubectl_command(request, access), job_request)
        if request.detach or job_request.framework:
            submit_output.report(inspect_message)
            return 0
        log = partial(submit_output.log, of_several=max(job_request.completions, job_request.parallelism) > 1)
        return await _follow_to_end(
            JobFollower(cluster, job_request, job, FollowCallbacks(submit_output.report, log)),
            submit_output,
            inspect_message,
        )
    finally:
        await transport.close()


async def _follow_to_end(
    follower: JobFollower, submit_output: progress.SubmitOutput, inspect_message: progress.ProgressMessage
) -> int:
    loop = asyncio.get_running_loop()
    unexpected_error: asyncio.Future[int] = loop.create_future()
    loop.set_exception_handler(lambda _, context: _set_unexpected_error(unexpected_error, context))
    follow_task = asyncio.ensure_future(follower.follow())
    try:
        await asyncio.wait([follow_task, unexpected_error], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        follow_task.cancel()
        submit_output.report(inspect_message)
        raise
    return unexpected_error.result() if unexpected_error.done() else follow_task.result()


def _set_unexpected_error(unexpected_error: "asyncio.Future[int]", context: dict[str, Any]) -> None:
    error = context.get("exception")
    if error is not None and not isinstance(error, OSError) and not unexpected_error.done():
        unexpected_error.set_exception(error)


def _created_message(request: JobRequest, job: Any) -> progress.ProgressMessage:
    kind = frameworks.served_kind_of(request).singular
    line = f"{kind} {request.name} created in namespace {request.namespace}, queue {request.queue}"
    fields = {"job": request.name, "namespace": request.namespace, "queue": request.queue}
    fields["uid"] = job["metadata"]["uid"]
    return progress.ProgressMessage("Created", line, fields)


def _packed_folder_message(packed_folder: manifests.PackedFolder) -> progress.ProgressMessage:
    line = (
        f"{count_with_noun(packed_folder.file_count, 'file')} shipped, {format_megabytes(len(packed_folder.content))}"
    )
    if packed_folder.excluded_paths:
        line += f"; left out: {', '.join(packed_folder.excluded_paths)}"
    return progress.ProgressMessage(
        "Shipped",
        line,
        {
            "files": packed_folder.file_count,
            "bytes": len(packed_folder.content),
            "leftOut": packed_folder.excluded_paths,
        },
    )


def _inspection_commands(kubectl: str, job_request: JobRequest) -> progress.ProgressMessage:
    kubectl, kind = f"{kubectl} --namespace {job_request.namespace}", frameworks.served_kind_of(job_request).singular
    selector = {"": "job-name", "ray": "ray.io/originated-from-cr-name"}.get(
        job_request.framework, "training.kubeflow.org/job-name"
    )
    line = "\n".join(
        [
            f"{kind} {job_request.name} keeps running in the cluster",
            f"  show:   {kubectl} describe {kind} {job_request.name}",
            f"  logs:   {kubectl} logs --follow --prefix --selector {selector}={job_request.name}",
            f"  delete: {kubectl} delete {kind} {job_request.name}",
        ]
    )
    return progress.ProgressMessage("Detached", line, {"job": job_request.name, "namespace": job_request.namespace})


def _kubectl_command(request: SubmitRequest, access: ApiServerAccess) -> str:
    if access.url.startswith("http:") and not request.kubeconfig:
        return f"kubectl --server {access.url}"
    context_option = f" --context {shlex.quote(request.context)}" if request.context else ""
    if request.context and not request.kubeconfig:
        return f"kubectl{context_option}"
    kubeconfig_path = request.kubeconfig or str((request.data_dir / KUBECONFIG_FILE).resolve())
    return f"KUBECONFIG={shlex.quote(kubeconfig_path)} kubectl{context_option}"


#: The length of the suffix of generated names, as in Kubernetes.
_NAME_SUFFIX_LENGTH: Final = 5


def run(request: SubmitRequest) -> int:
    """Run `batchyard submit`; return the exit code of the Job's command, or 0 with `--dry-run` or `--detach`."""
    job_request = _with_generated_name(request.job_request)
    packed_folder = _pack_folder(request)
    archive_bytes = None if packed_folder is None else packed_folder.content
    job = frameworks.submitted_manifest(job_request, archive_bytes)
    config_maps = [] if archive_bytes is None else archive_config_maps(job_request, archive_bytes)
    manifest_faults = read_manifests([("submit", json.dumps(job))]).faults
    if manifest_faults:
        output.fail("\n".join(f"batchyard: {fault.error}" for fault in manifest_faults))
    if request.dry_run:
        output.write(_format_manifests([*config_maps, job], request.output_format or DocumentFormat.YAML))
        return 0

    submit_output = progress.SubmitOutput(is_json=request.output_format is DocumentFormat.JSON)
    try:
        return asyncio.run(submit_job(request, job_request, packed_folder, submit_output))
    except SUBMIT_ERRORS as error:
        output.fail(f"batchyard: {error}")


def _with_generated_name(job_request: JobRequest) -> JobRequest:
    if job_request.name:
        return job_request
    suffix = uid_for(wall_clock(), str(os.getpid()), *job_request.argv)[:_NAME_SUFFIX_LENGTH]
    return replace(job_request, name=f"{job_name_prefix(job_request.argv)}-{suffix}")


def _pack_folder(request: SubmitRequest) -> manifests.PackedFolder | None:
    if request.folder is None:
        return None
    try:
        return manifests.pack(request.folder)
    except manifests.PackingError as error:
        output.fail(f"batchyard: {error}")


def _format_manifests(objects: Sequence[Obj], document_format: DocumentFormat) -> str:
    if document_format is DocumentFormat.YAML:
        return "---\n".join(map(render_yaml, objects))
    if len(objects) == 1:
        return render_json(objects[0])
    return render_json({"apiVersion": "v1", "kind": "List", "items": objects})


def _check_output(output: DocumentFormat | None, *, is_dry_run: bool) -> None:
    if output is DocumentFormat.YAML and not is_dry_run:
        raise typer.BadParameter("--output yaml requires --dry-run: use --output json for events as JSON lines")


def _check_dry_run(queue: str, gpu_model: str, gpu_count: int) -> None:
    if not queue:
        raise typer.BadParameter("--dry-run sends no requests, so it cannot find the queue: add --queue QUEUE")
    if gpu_model:
        message = f"--dry-run sends no requests, so it cannot find the nodes of {gpu_model}"
        raise typer.BadParameter(f"{message}: use --gpus {gpu_count} --node-selector NAME=VALUE")


app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP_SETTINGS)


@app.command(cls=CommandWithArguments)
def submit(
    context: typer.Context,
    queue: Queue = "",
    folder: Folder = None,
    name: Name = "",
    namespace: Namespace = "",
    image: Image = frameworks.DEFAULT_IMAGE,
    cpu: Cpu = "1",
    memory: Memory = "",
    gpus: Gpus = "0",
    gpu_resource: GpuResource = "nvidia.com/gpu",
    priority: Priority = "",
    completions: Completions = None,
    parallelism: Parallelism = None,
    array: frameworks.Array = "",
    partial_start: frameworks.PartialStart = False,
    pytorch: frameworks.PyTorch = "",
    mpi: frameworks.Mpi = "",
    ray: frameworks.Ray = "",
    after: frameworks.After = None,
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
    _check_output(output, is_dry_run=dry_run)
    gpu_model, gpu_count = parse_gpus(gpus)
    if dry_run:
        _check_dry_run(queue, gpu_model, gpu_count)
    accelerator_counts = {gpu_resource: gpu_count} if gpu_count else {}
    job = JobRequest(argv, name, queue, image, namespace, priority, cpu, parse_memory(memory), accelerator_counts)
    pods_in_parallel = parallelism or completions or 1
    job = replace(
        job,
        environment=parse_pairs("--env", env),
        annotations=parse_pairs("--annotation", annotation),
        node_selector=parse_pairs("--node-selector", node_selector),
        tolerations=[parse_toleration(toleration_text) for toleration_text in toleration or ()],
        completions=completions or pods_in_parallel,
        parallelism=pods_in_parallel,
        backoff_limit=backoff_limit,
        gpu_model=gpu_model,
        checkpoint_folder="" if checkpoint_dir is None else str(checkpoint_dir.resolve()),
    )
    has_counts, has_folder, sizes = bool(completions or parallelism), folder is not None, (pytorch, mpi, ray, array)
    shape = frameworks.ShapeOptions(*sizes, partial_start, after or (), gpu_resource, has_counts, has_folder)
    job = frameworks.with_shape(job, shape)
    kubeconfig = select_kubeconfig(context, kubeconfig, data_dir)
    request = SubmitRequest(job, folder, kubeconfig, kube_context, data_dir or DATA_DIR, dry_run, detach, output)
    raise typer.Exit(run(request))
