"""`batchyard eta`: the start times of Workloads, forecast by the platform's server or by local forks of a state."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.printing import format_table
from batchyard.api.scheme import kind_info
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import MINUTE, SECOND, Duration, format_age
from batchyard.cli import output
from batchyard.cli.cluster_access import SOURCE_REFUSALS, ClusterSource, access_to, requested_state
from batchyard.cli.options import (
    DATA_DIR,
    Context,
    DataDir,
    FairSharing,
    Kubeconfig,
    Output,
    OutputOption,
    Seed,
    Until,
    cluster,
)
from batchyard.cli.output import render_json, render_yaml
from batchyard.client.transport import HttpRequest, decoded, failure_reason, path_of
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.sim.forecast import HORIZON, ForecastOptions, forecasts
from batchyard.sim.state import State
from batchyard.sim.whatif import KINDS, subject_document, workload_of

#: The server serves forecasts but is overloaded now.
_BUSY: Final = (429, 503)


@dataclass(frozen=True, slots=True)
class EtaRequest:
    """The arguments of the command."""

    #: KIND/NAME; '' for all pending Workloads.
    subject: str
    #: '' for that of the kubeconfig, or for all.
    namespace: str
    queue: str
    state: str | None
    where: ClusterSource
    asked: ForecastOptions
    form: Output


def run(request: EtaRequest) -> None:
    """Print the forecasts; ends the command with 1 if there is none."""
    if request.subject:
        subject = _subject(request)
        documents = [_of_server(request, subject) or _forked_one(request, subject)]
    else:
        documents = _forked_all(request)
    output.write(shown(documents, request.form, is_one=bool(request.subject)))


def shown(documents: Sequence[Mapping[str, Any]], form: Output, *, is_one: bool) -> str:
    """Format the forecasts."""
    if form in (Output.JSON, Output.YAML):
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        value = documents[0] if is_one else listed
        return render_json(value) if form is Output.JSON else render_yaml(value)
    if not documents:
        return "no pending Workloads\n"
    header = ["SUBJECT", "LIKELY IN", "FROM", "TO", "STARTS WITHIN", "BASIS"]
    reported = format_table([header, *map(_row, documents)])
    lines = dict.fromkeys(line for document in documents for line in document["dependsOn"])
    return reported + "".join(f"\n{line}" for line in lines) + ("\n" if lines else "")


def _row(document: Mapping[str, Any]) -> list[str]:
    subject, waits = document["subject"], document["waitSeconds"]
    name = f"{subject['kind'].lower()}/{subject['name']}"
    name = name if subject["namespace"] == "default" else f"{name} -n {subject['namespace']}"
    if not document["forks"]:
        return [name, "runs", "", "", "", ""]
    reported = [format_age(round(waits[each] * SECOND)) if each in waits else "?" for each in ("p50", "p10", "p90")]
    return [name, *reported, f"{document['within']:.0%} of forks", document["basis"]]


def _subject(request: EtaRequest) -> Key:
    """The key of the subject; ends the command if it is malformed."""
    kind, _, name = request.subject.partition("/")
    for constant in KINDS:
        info = kind_info(constant)
        if kind.lower() in {info.singular, info.plural, *info.short_names, f"{info.plural}.{info.group}"} and name:
            break
    else:
        output.fail(f"batchyard: {request.subject!r}: use workload/NAME, job/NAME or jobset/NAME")
    return Key(constant, request.namespace or "default", name)


def _forked_one(request: EtaRequest, subject: Key) -> Mapping[str, Any]:
    state = requested_state(request.state, request.where)
    name = workload_of(state.objects, subject)
    if name is None:
        what = "" if subject.kind == scheme.WORKLOAD or subject not in state.objects else "Workload of "
        output.fail(f"batchyard: not found: {what}{kind_info(subject.kind).singular} {subject}")
    found = forecasts(state, [name], request.asked)
    if name not in found:
        output.fail(f"batchyard: {kind_info(subject.kind).singular} {subject} has ended")
    return found[name].document(subject_document(subject))


def _forked_all(request: EtaRequest) -> list[Mapping[str, Any]]:
    state = requested_state(request.state, request.where)
    names = _waiting(state, request)
    reported = forecasts(state, names, request.asked)
    subjects = {name: Key(scheme.WORKLOAD, *name.split("/", 1)) for name in reported}
    return [reported[name].document(subject_document(subject)) for name, subject in subjects.items()]


def _waiting(state: State, request: EtaRequest) -> list[str]:
    """The keys of the pending Workloads, in order of creation."""
    views = [workload_view(obj) for obj in state.of_kind(scheme.WORKLOAD)]
    found = [
        view
        for view in views
        if not view.finished
        and not view.admitted
        and (not request.namespace or view.namespace == request.namespace)
        and (not request.queue or view.queue.partition("/")[2] == request.queue)
    ]
    return [view.key for view in sorted(found, key=lambda view: (view.created, view.key))]


def _of_server(request: EtaRequest, subject: Key) -> Mapping[str, Any] | None:
    """The server's forecast; None if it does not serve forecasts."""
    if request.state is not None:
        return None
    try:
        return asyncio.run(_asked(request, subject))
    except SOURCE_REFUSALS as error:
        output.fail(f"batchyard: {error}")


async def _asked(request: EtaRequest, subject: Key) -> Mapping[str, Any] | None:
    reading = access_to(request.where)
    wire = HttpTransport(await reading(), reading)
    info = kind_info(subject.kind)
    path = path_of(info, info.storage_version, subject.namespace, subject.name, "eta")
    try:
        answer = await wire.ask(HttpRequest("GET", f"{path}?seed={request.asked.seed}", within=MINUTE))
    finally:
        await wire.close()
    if answer.code == 200:
        return decoded(answer.body)
    if answer.code in _BUSY:
        output.report_line(f"batchyard: the server is overloaded ({failure_reason(answer)}): forecasting locally")
    return None


# --- eta ---
#
# The options of `batchyard eta`.


def eta(
    context: typer.Context,
    subject: Annotated[
        str, typer.Argument(metavar="[KIND/NAME]", help="workload/NAME, job/NAME or jobset/NAME.", show_default=False)
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="All pending Workloads.")] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace.")] = "",
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="With --all: only this LocalQueue.")] = "",
    forks: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="The most forks to run.")] = 40,
    until: Until = None,
    arrivals: Annotated[
        bool, typer.Option("--arrivals/--no-arrivals", help="Simulate arrivals at the recent rate.")
    ] = True,
    state: Annotated[
        str | None,
        typer.Option("--state", "-f", "--filename", metavar="FILE", help="A state file instead of a cluster."),
    ] = None,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    fair_sharing: FairSharing = False,
    seed: Seed = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Forecast the start of Workloads, with an interval, from many simulated forks of the current state."""
    if bool(subject) == all_:
        raise typer.BadParameter("give one KIND/NAME, or use --all")
    if queue and not all_:
        raise typer.BadParameter("--queue requires --all")

    horizon: Duration = HORIZON if until is None else until
    asked = ForecastOptions(seed, forks, fair_sharing, horizon, expects_arrivals=arrivals)
    where = ClusterSource(cluster(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    run(EtaRequest(subject, namespace, queue, state, where, asked, output))
