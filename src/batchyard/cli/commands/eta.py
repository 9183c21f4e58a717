"""The command `batchyard eta`: forecasts the start times of Workloads, on the server or by local simulations."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import format_table
from batchyard.api.scheme import kind_info
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import MINUTE, SECOND, Duration, format_age
from batchyard.cli import options, output
from batchyard.cli.cluster_access import (
    SOURCE_ERRORS,
    ClusterTarget,
    ListPermissionError,
    access_reader_of_source,
    list_existing_names,
    read_cluster_state,
    read_state_file,
)
from batchyard.cli.daily.cluster import ClusterClient, run_in_cluster
from batchyard.cli.kueue_configuration import select_version
from batchyard.cli.missing_objects import NamespacedName, not_found_text
from batchyard.cli.output import render_document
from batchyard.client.transport import HttpRequest, decode_object, failure_reason, object_path
from batchyard.scheduling.decisions import KueueVersion
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.sim.forecast import HORIZON, NO_START, ForecastOptions, forecast_workloads
from batchyard.sim.state import State
from batchyard.sim.whatif import SUBJECT_KINDS, subject_document, workload_of

#: The status codes of a server that serves forecasts but is overloaded.
_OVERLOAD_STATUS_CODES: Final = (429, 503)
#: The parameters of the command that a server's forecast does not take into account.
_LOCAL_PARAMETERS: Final = ("forks", "until", "arrivals", "fair_sharing", "kueue_version")
#: The maximum number of forecasts that one command requests from a server.
_SERVER_FORECASTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class EtaRequest:
    """The arguments of `batchyard eta`."""

    #: KIND/NAME; '' for all pending Workloads.
    subject: str
    #: The namespace; '' for the kubeconfig's namespace, or for all namespaces if there is no subject.
    namespace: str
    queue: str
    state: str | None
    source: ClusterTarget
    forecast_options: ForecastOptions
    output_format: options.Output
    #: Whether options are given that only a local forecast takes into account.
    is_local: bool = False
    #: The version of Kueue whose decision rules apply.
    kueue_version: KueueVersion | None = None


def run(request: EtaRequest) -> None:
    """Print the forecast start times of the requested Workloads; the command exits on failure."""
    if request.subject:
        subject = _parse_subject(request)
        documents = [_forecast_on_server(request, subject) or _forecast_locally(request, subject)]
    else:
        documents = _forecast_all_locally(request)
    output.write(format_forecasts(documents, request.output_format, is_one=bool(request.subject)))


def format_forecasts(documents: Sequence[Mapping[str, Any]], output_format: options.Output, *, is_one: bool) -> str:
    """Format the forecasts as a table, JSON or YAML; with `is_one`, JSON and YAML have no List around the forecast."""
    if not output_format.is_table:
        list_document = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        value = documents[0] if is_one else list_document
        return render_document(value, output_format)
    if not documents:
        return "no pending Workloads\n"
    header = ["SUBJECT", "LIKELY IN", "FROM", "TO", "STARTS IN", "BASIS"]
    table = format_table([header, *map(_forecast_row, documents)])
    lines = dict.fromkeys(line for document in documents for line in document["dependsOn"])
    return table + "".join(f"\n{line}" for line in lines) + ("\n" if lines else "")


def _forecast_row(document: Mapping[str, Any]) -> list[str]:
    subject, seconds = document["subject"], document["waitSeconds"]
    name = f"{subject['kind'].lower()}/{subject['name']}"
    name = name if subject["namespace"] == "default" else f"{name} -n {subject['namespace']}"
    if not document["forks"]:
        return [name, "runs", "", "", "", ""]
    cells = [format_age(round(seconds[level] * SECOND)) if level in seconds else "?" for level in ("p50", "p10", "p90")]
    return [name, *cells, f"{document['within']:.0%} of forks", document["basis"]]


def _parse_subject(request: EtaRequest) -> Key:
    kind, _, name = request.subject.partition("/")
    for constant in SUBJECT_KINDS:
        info = kind_info(constant)
        if kind.lower() in {info.singular, info.plural, *info.short_names, f"{info.plural}.{info.group}"} and name:
            break
    else:
        raise typer.BadParameter(f"{request.subject!r} is not supported: use workload/NAME, job/NAME or jobset/NAME")
    namespace = request.namespace or ("default" if request.state is not None else _default_namespace(request.source))
    return Key(constant, namespace, name)


def _default_namespace(source: ClusterTarget) -> str:
    async def read() -> str:
        return (await access_reader_of_source(source)()).namespace

    try:
        return asyncio.run(read())
    except SOURCE_ERRORS as error:
        output.fail(f"batchyard: {error}")


def _read_state(request: EtaRequest) -> State:
    state = read_state_file(request.state) if request.state is not None else read_cluster_state(request.source)
    return replace(state, kueue=select_version(state.kueue, request.kueue_version))


def _forecast_locally(request: EtaRequest, subject: Key) -> Mapping[str, Any]:
    try:
        state = _read_state(request)
    except ListPermissionError as error:
        output.fail(f"batchyard: {_missing_object_text(request.source, subject) or error}")
    except SOURCE_ERRORS as error:
        output.fail(f"batchyard: {error}")
    name = workload_of(state.objects, subject)
    if name is None:
        output.fail(_missing_workload_text(request, subject, state))
    forecasts_by_name = forecast_workloads(state, [name], request.forecast_options)
    if name not in forecasts_by_name:
        output.fail(f"batchyard: {kind_info(subject.kind).singular} {subject} has ended: there is nothing to forecast")
    return forecasts_by_name[name].document(subject_document(subject))


def _missing_workload_text(request: EtaRequest, subject: Key, state: State) -> str:
    info, file = kind_info(subject.kind), request.state
    is_manifests = file is not None and not state.at
    if subject in state.objects:
        question = f"batchyard why {info.singular}/{subject.name} -n {subject.namespace}"
        text = f"{info.singular} {subject} has no Workload"
        if is_manifests:
            text += f", because {file} holds manifests, not the state of a cluster"
            return f"batchyard: {text}; `{question} -f {file} --at 10m` simulates them, and explains it at that time"
        return f"batchyard: {text}; `{question}{f' -f {file}' if file else ''}` prints the reason"
    existing_names = [NamespacedName(key.namespace, key.name) for key in state.objects if key.kind == subject.kind]
    if is_manifests and not existing_names:
        message = f"the file has no {info.singular}; write the state of a cluster with `batchyard snapshot FILE`"
        return f"{file}: {message}, and use that file"
    return f"batchyard: {not_found_text(info, NamespacedName(subject.namespace, subject.name), existing_names)}"


def _missing_object_text(source: ClusterTarget, subject: Key) -> str:
    info, subject_name = kind_info(subject.kind), NamespacedName(subject.namespace, subject.name)
    existing_names = list_existing_names(source, info, subject_name)
    return (
        ""
        if existing_names is None or subject_name in existing_names
        else not_found_text(info, subject_name, existing_names)
    )


def _forecast_all_locally(request: EtaRequest) -> list[Mapping[str, Any]]:
    try:
        state = _read_state(request)
    except ListPermissionError as error:
        return _forecast_namespace_on_server(request, error)
    except SOURCE_ERRORS as error:
        output.fail(f"batchyard: {error}")
    names = _pending_workload_keys(state.of_kind(scheme.WORKLOAD), request)
    forecasts_by_name = forecast_workloads(state, names, request.forecast_options)
    subject_by_name = {name: Key(scheme.WORKLOAD, *name.split("/", 1)) for name in forecasts_by_name}
    return [forecasts_by_name[name].document(subject_document(subject)) for name, subject in subject_by_name.items()]


def _forecast_namespace_on_server(request: EtaRequest, error: ListPermissionError) -> list[Mapping[str, Any]]:
    """Return the server's forecasts of one namespace's pending Workloads, for a user without the right to list all.

    Exit with `error` if these forecasts are not available either.
    """

    async def ask(client: ClusterClient) -> list[Mapping[str, Any]] | None:
        namespace = request.namespace or client.namespace
        workloads = await client.list_objects(scheme.WORKLOAD, namespace, is_required=False)
        keys = _pending_workload_keys(workloads or (), request)
        if workloads is None or len(keys) > _SERVER_FORECASTS_MAX:
            return None
        documents = []
        for key in keys:
            path = _forecast_path(Key(scheme.WORKLOAD, *key.split("/", 1)), request)
            response = await client.get(path, timeout_seconds=MINUTE // SECOND)
            if response.code != 200:
                return None
            documents.append(decode_object(response.body))
        output.report_line(
            f"batchyard: forecasts of namespace {namespace} only: no permission to list other namespaces"
        )
        return documents

    documents = None if request.is_local else run_in_cluster(request.source, ask)
    if documents is None:
        output.fail(f"batchyard: {error}")
    return documents


def _forecast_path(subject: Key, request: EtaRequest) -> str:
    info = kind_info(subject.kind)
    path = object_path(info, info.storage_version, subject.namespace, subject.name, "eta")
    return f"{path}?seed={request.forecast_options.seed}"


def _pending_workload_keys(workloads: Iterable[Obj], request: EtaRequest) -> list[str]:
    workload_views = map(workload_view, workloads)
    selected_views = [
        view
        for view in workload_views
        if not view.finished
        and not view.admitted
        and (not request.namespace or view.namespace == request.namespace)
        and (not request.queue or view.queue.partition("/")[2] == request.queue)
    ]
    return [view.key for view in sorted(selected_views, key=lambda view: (view.created, view.key))]


def _forecast_on_server(request: EtaRequest, subject: Key) -> Mapping[str, Any] | None:
    if request.state is not None or request.is_local:
        return None
    try:
        return asyncio.run(_request_forecast(request, subject))
    except SOURCE_ERRORS as error:
        output.fail(f"batchyard: {error}")


async def _request_forecast(request: EtaRequest, subject: Key) -> Mapping[str, Any] | None:
    read_access = access_reader_of_source(request.source)
    transport = HttpTransport(await read_access(), read_access)
    try:
        reply = await transport.send_request(HttpRequest("GET", _forecast_path(subject, request), timeout=MINUTE))
    finally:
        await transport.close()
    if reply.code == 200:
        return decode_object(reply.body)
    if reply.code == HTTPStatus.NOT_FOUND and failure_reason(reply).endswith(NO_START):
        output.fail(f"batchyard: {failure_reason(reply)}")
    if reply.code in _OVERLOAD_STATUS_CODES:
        output.report_line(f"batchyard: the server is overloaded ({failure_reason(reply)}): forecasting locally")
    return None


def eta(
    context: typer.Context,
    subject: Annotated[
        str, typer.Argument(metavar="KIND/NAME", help="workload/NAME, job/NAME or jobset/NAME.", show_default=False)
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="All pending Workloads.")] = False,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NS", help="The namespace; default for one object: the kubeconfig's."
        ),
    ] = "",
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="With --all: only this LocalQueue.")] = "",
    forks: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="The number of forks to run, at most.")] = 40,
    until: options.Until = None,
    arrivals: Annotated[
        bool, typer.Option("--arrivals/--no-arrivals", help="Simulate arrivals at the recent rate.")
    ] = True,
    state: Annotated[
        str | None,
        typer.Option("--state", "-f", "--filename", metavar="FILE", help="A state file instead of a cluster."),
    ] = None,
    kubeconfig: options.Kubeconfig = "",
    kube_context: options.Context = "",
    data_dir: options.DataDir = None,
    fair_sharing: options.FairSharing = False,
    kueue_version: options.RecordedVersionOption = None,
    seed: options.Seed = 0,
    output: options.OutputOption = options.Output.TABLE,
) -> None:
    """Forecast the start of Workloads, with an interval, from many simulated forks of the current state.

    If you name one object, the platform computes the forecast. With --forks, --until, --no-arrivals, --fair-sharing or
    --kueue-version, the command computes the forecast itself, from all objects of the cluster.
    """
    if subject and all_:
        raise typer.BadParameter("KIND/NAME and --all exclude each other: remove one of them")
    if not subject and not all_:
        raise typer.BadParameter("add one KIND/NAME, or --all")
    if queue and not all_:
        raise typer.BadParameter("--queue requires --all: add it, or remove --queue")

    horizon: Duration = HORIZON if until is None else until
    forecast_options = ForecastOptions(seed, forks, fair_sharing, horizon, expects_arrivals=arrivals)
    source = ClusterTarget(
        options.select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or options.DATA_DIR
    )
    is_local = any(options.is_on_command_line(context, name) for name in _LOCAL_PARAMETERS)
    version = None if kueue_version is None else KueueVersion(kueue_version.value)
    run(EtaRequest(subject, namespace, queue, state, source, forecast_options, output, is_local, version))
