"""The command `batchyard whatif`: simulates a cluster with and without a change, and prints the differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
import typer

from batchyard.api import scheme
from batchyard.api.errors import FieldError, NotFound
from batchyard.api.meta import Key, Obj, find_condition, key_of
from batchyard.api.printing import format_table
from batchyard.api.scheme import KINDS, kind_info
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import MINUTE, SECOND, Duration
from batchyard.cli import options, output
from batchyard.cli.cluster_access import (
    DEFAULT_RUN_LENGTH,
    ClusterTarget,
    read_requested_state,
    read_source_texts,
    with_explicit_runtimes,
)
from batchyard.cli.commands.simulate import read_scenario_or_exit
from batchyard.cli.daily.cluster import ClusterClient, run_in_cluster
from batchyard.cli.kueue_configuration import select_version
from batchyard.cli.manifest_warnings import Verbose, print_warnings
from batchyard.cli.missing_objects import NamespacedName, not_found_text
from batchyard.cli.output import render_document
from batchyard.cli.simulation_output import format_go_duration
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.explain.defragmentation import NotDefragmentableError, plan_document, plan_for_waiting, read_topologies
from batchyard.scheduling.decisions import KueueVersion
from batchyard.server.clocks.wall import sleep_for
from batchyard.sim.scenario import FileFault, InvalidScenario, ScenarioStep
from batchyard.sim.whatif import (
    Comparison,
    Difference,
    PlannedChange,
    QueueDifference,
    RunStart,
    WorkloadDifference,
    WorkloadTimeline,
    compare,
    difference_of,
    document_of,
    read_change,
    run_until_start,
    shrink_count,
    start_from_state,
)
from batchyard.sim.world import EPOCH

_NEVER_CELL: Final = "-"


@dataclass(frozen=True, slots=True)
class WhatifRequest:
    """The arguments of `batchyard whatif`."""

    paths: Sequence[str]
    #: The files with the manifests to apply.
    changes: Sequence[str]
    #: The objects to delete, as KIND[/NAMESPACE]/NAME.
    deletions: Sequence[str]
    at: Duration
    until: Duration | None
    state: str | None
    source: ClusterTarget
    fair_sharing: bool
    seed: int
    output_format: options.Output
    #: The version of Kueue whose decision rules apply in both runs.
    kueue_version: KueueVersion | None = None


def run_whatif(request: WhatifRequest) -> None:
    """Simulate the cluster with and without the change and print the differences.

    Exits with 1 on failure, and after the output if a write of the change was rejected.
    """
    run_start = _requested_run_start(request)
    try:
        deleted_keys = [_parse_object_key(text) for text in request.deletions]
        change, warnings = read_change(request.changes, deleted_keys, run_start)
    except InvalidScenario as invalid:
        output.fail(f"{invalid}\nbatchyard: {count_with_noun(len(invalid.faults), 'fault')}; nothing was run")
    print_warnings(warnings)
    started_at = EPOCH + request.at if run_start.state is None else run_start.state.at
    run_length = DEFAULT_RUN_LENGTH if request.until is None and run_start.state is not None else request.until
    try:
        difference = difference_of(compare(run_start, change, run_length, request.seed), started_at)
    except EndlessInstant as error:
        output.fail(f"batchyard: {error}")
    if missing := _missing_object_messages(difference.comparison, deleted_keys):
        output.fail("\n".join([*missing, "batchyard: nothing was compared"]))
    for rejection in difference.comparison.refused:
        output.report_line(f"rejected write: {rejection}")
    output.write(format_differences(difference, request.output_format))
    if difference.comparison.refused:
        raise SystemExit(1)


def _missing_object_messages(comparison: Comparison, deleted_keys: Sequence[Key]) -> list[str]:
    rejected_keys = [each.key for each in comparison.refused if each.reason == NotFound.reason]
    messages = []
    for key in deleted_keys:
        if key in rejected_keys:
            objects = comparison.without.result.objects.get(key.kind, ())
            existing_names = [NamespacedName(*key_of(obj)[1:]) for obj in objects]
            info = kind_info(key.kind)
            option = f"--delete {info.singular}/{{namespace}}/{key.name}"
            text = not_found_text(info, NamespacedName(key.namespace, key.name), existing_names, option)
            messages.append(f"--delete: {text}")
    return messages


def format_differences(difference: Difference, output_format: options.Output) -> str:
    """Format the differences that a change makes as tables, JSON or YAML."""
    if not output_format.is_table:
        return render_document(document_of(difference), output_format)
    section_texts = [f"{difference.summary}\n"]
    if difference.workloads:
        header = ["WORKLOAD", "QUEUE", "EFFECT", "STARTS", "WITH CHANGE", "ENDS", "WITH CHANGE", "PREEMPTED BY"]
        section_texts.append(format_table([header, *map(_workload_row, difference.workloads)]))
    if shrunk := [each for each in difference.workloads if shrink_count(each.without) or shrink_count(each.changed)]:
        header = ["SHRUNK WORKLOAD", "PODS LOST", "WITH CHANGE", "FOR", "WITH CHANGE", "SHRUNK BY"]
        section_texts.append(format_table([header, *map(_shrunk_row, shrunk)]))
    if difference.queues:
        header = ["QUEUE", "MEAN WAIT", "WITH CHANGE", "PENDING", "WITH CHANGE"]
        section_texts.append(format_table([header, *map(_queue_row, difference.queues)]))
    section_texts += _machines_table(document_of(difference))
    return "\n".join(section_texts)


def _requested_run_start(request: WhatifRequest) -> RunStart:
    run_start = _read_run_start(request)
    scenario = run_start.scenario
    kueue = select_version(scenario.kueue, request.kueue_version)
    return replace(run_start, scenario=replace(scenario, kueue=kueue))


def _read_run_start(request: WhatifRequest) -> RunStart:
    if request.paths:
        texts = read_source_texts(request.paths)
        if texts.states:
            output.fail(f"batchyard: {texts.states[0][0]} is the state of a cluster: use --state for it")
        return RunStart(read_scenario_or_exit(texts), at=request.at)
    state = with_explicit_runtimes(
        read_requested_state(request.state, request.source), "they keep running in both runs"
    )
    return start_from_state(state, fair_sharing=request.fair_sharing)


def _parse_object_key(text: str) -> Key:
    kind, *namespace_and_name = text.split("/")
    kind_name = kind.lower()
    for info in KINDS:
        names = {info.singular, info.plural, *info.short_names, info.kind.lower(), f"{info.plural}.{info.group}"}
        if kind_name in names:
            if len(namespace_and_name) == 1 and namespace_and_name[0]:
                return Key(info.constant, "default" if info.namespaced else "", namespace_and_name[0])
            if len(namespace_and_name) == 2 and info.namespaced:
                return Key(info.constant, *namespace_and_name)
            break
    else:
        raise InvalidScenario(
            [
                FileFault(
                    "--delete",
                    FieldError("", f"{kind!r} is not a known kind", "use a kind such as node, job or clusterqueue"),
                )
            ]
        )
    remedy = f"use {kind}/NAMESPACE/NAME" if info.namespaced else f"use {kind}/NAME"
    raise InvalidScenario([FileFault("--delete", FieldError("", f"{text!r} is not an object name", remedy))])


def _workload_row(difference: WorkloadDifference) -> list[str]:
    timeline_without, timeline_with = difference.without, difference.changed
    effect = difference.effect
    if difference.sooner_by and effect in {"sooner", "later"}:
        effect = f"{format_go_duration(abs(difference.sooner_by))} {effect}"
    preemptor = (
        ""
        if timeline_with is None
        or (timeline_without is not None and timeline_without.preemptions == timeline_with.preemptions)
        else timeline_with.preempted_by
    )
    return [
        difference.name,
        difference.queue,
        effect,
        _format_start(timeline_without),
        _format_start(timeline_with),
        _format_end(timeline_without),
        _format_end(timeline_with),
        preemptor,
    ]


def _shrunk_row(difference: WorkloadDifference) -> list[str]:
    totals = [None if each is None else each.shrunk for each in (difference.without, difference.changed)]
    pods = ["0" if each is None else str(each.pods_lost) for each in totals]
    times = [_NEVER_CELL if each is None else format_go_duration(each.seconds) for each in totals]
    preemptors = [each.preemptor for each in reversed(totals) if each is not None]
    return [difference.name, *pods, *times, preemptors[0]]


def _format_start(timeline: WorkloadTimeline | None) -> str:
    if timeline is None or timeline.started_at is None:
        return _NEVER_CELL
    start = timeline.started_at
    return "running" if start < 0 else format_go_duration(start) if start else "at once"


def _format_end(timeline: WorkloadTimeline | None) -> str:
    return _NEVER_CELL if timeline is None or timeline.ended_at is None else format_go_duration(timeline.ended_at)


def _queue_row(row: QueueDifference) -> list[str]:
    mean_waits = (row.waited_without, row.waited_changed)
    wait_cells = [format_go_duration(round(wait)) for wait in mean_waits]
    return [row.name, *wait_cells, str(row.pending_without), str(row.pending_changed)]


def _machines_table(comparison_document: dict[str, Any]) -> list[str]:
    nodes, cost_fields = comparison_document["nodes"], comparison_document["costs"]
    if nodes["without"] == nodes["changed"] and cost_fields["without"] == cost_fields["changed"]:
        return []
    rows = [["", "WITHOUT", "WITH CHANGE"]]
    rows.append(["nodes at the end", *(str(nodes[side]["atEnd"]) for side in ("without", "changed"))])
    rows.append(["machine hours", *(f"{nodes[side]['machineHours']:,.2f}" for side in ("without", "changed"))])
    rows.append(["cost", *(f"${cost_fields[side]}" for side in ("without", "changed"))])
    return [format_table(rows)]


def whatif(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Manifests of a scenario to change, instead of a cluster."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="Manifests to apply, as kubectl does; repeatable."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND/NAME", help="An object to delete; or KIND/NAMESPACE/NAME; repeatable."),
    ] = None,
    at: Annotated[
        Duration,
        typer.Option(
            parser=options.to_duration,
            metavar="DURATION",
            help="The virtual time of the change, in a scenario.",
            show_default="0s",
        ),
    ] = 0,
    until: options.Until = None,
    state: options.StateFile = None,
    kubeconfig: options.Kubeconfig = "",
    kube_context: options.Context = "",
    data_dir: options.DataDir = None,
    fair_sharing: options.FairSharing = False,
    kueue_version: options.RecordedVersionOption = None,
    seed: options.Seed = 0,
    output: options.OutputOption = options.Output.TABLE,
    verbose: Verbose = False,  # noqa: ARG001 - its callback passes it to the warnings
) -> None:
    """Compare two simulated runs of the same state, with and without a change. The cluster is not changed."""
    if not change and not delete:
        raise typer.BadParameter("add a change with -f FILE, or an object to delete with --delete KIND/NAME")
    if paths and state is not None:
        raise typer.BadParameter("PATH and --state are two starting states: remove one of them")
    if at and not paths:
        raise typer.BadParameter(
            "--at applies only to a scenario (PATH), because a change to the state of a cluster takes effect at the "
            "time of that state; remove --at, or add PATH"
        )

    source = ClusterTarget(
        options.select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or options.DATA_DIR
    )
    request = WhatifRequest(
        *(paths or [], change or [], delete or [], at, until, state, source, fair_sharing, seed, output),
        kueue_version=None if kueue_version is None else KueueVersion(kueue_version.value),
    )
    run_whatif(request)


# `batchyard defrag`: plans restarts that free topology domains, and simulates them before anything is changed.


#: How long the restarted Workloads stay stopped in the simulation, so that the waiting one is admitted before them.
_RESTART_PAUSE: Final = 2 * MINUTE
#: How many seconds the command waits for the quota of the waiting Workload, with --apply.
_QUOTA_POLLS_MAX: Final = 300
#: The duration that is simulated after the restarts, unless --until is set.
_DEFRAGMENTATION_RUN: Final = 10 * MINUTE


@dataclass(frozen=True, slots=True)
class DefragmentationRequest:
    """The arguments of `batchyard defrag`."""

    start: WhatifRequest
    #: The name of the waiting Workload or of its Job; '' for the first one that lacks domains.
    workload: str
    only_checkpointed: bool
    #: Whether the restarts are carried out in the cluster.
    applies: bool


def run_defragmentation(request: DefragmentationRequest) -> None:
    """Print the cheapest plan and its simulation; with `applies`, then restart the Workloads in the cluster.

    Exits with 1 if no Workload waits for domains, if no plan exists, or if the simulation does not admit the Workload.
    """
    start = request.start
    run_start = _requested_run_start(start)
    if run_start.state is None:
        run_start = run_until_start(run_start, start.seed)
    assert run_start.state is not None
    stored = read_topologies(run_start.state.objects, run_start.state.at)
    try:
        waiting, plan = plan_for_waiting(stored, request.workload, only_checkpointed=request.only_checkpointed)
    except NotDefragmentableError as error:
        output.fail(f"batchyard: {error}; nothing was planned")
    keys = [Key(scheme.WORKLOAD, *move.workload.name.split("/")) for move in plan.moves]
    change = PlannedChange(
        [
            ScenarioStep(at, tuple(_with_active(stored.objects[key], is_active=at > 0) for key in keys), ())
            for at in (0, _RESTART_PAUSE)
        ]
    )
    comparison = compare(run_start, change, start.until or _DEFRAGMENTATION_RUN, start.seed)
    difference = difference_of(comparison, run_start.state.at)
    timeline = comparison.changed.timelines.get(waiting.key)
    is_admitted = timeline is not None and timeline.started_at is not None
    document = {**plan_document(plan, waiting.key), "admittedInSimulation": is_admitted}
    output.write(_format_plan(document, difference, start.output_format))
    if not is_admitted:
        output.fail(f"batchyard: {waiting.key} was not admitted in the simulation; nothing was changed")
    if request.applies:
        apply_restarts(start.source, keys, Key(scheme.WORKLOAD, *waiting.key.split("/")))


def apply_restarts(target: ClusterTarget, keys: Sequence[Key], waiting: Key) -> None:
    """Deactivate Workloads in a cluster until the waiting one has quota, and then activate them again.

    They are activated again even if the waiting Workload gets no quota in time, or a request fails.
    """

    async def run(client: ClusterClient) -> None:
        info = kind_info(scheme.WORKLOAD)
        version = f"{info.group}/{info.storage_version}"
        paths = [await client.path_of(version, "Workload", key.namespace, key.name) for key in keys]
        waiting_path = await client.path_of(version, "Workload", waiting.namespace, waiting.name)
        stopped_paths: list[str] = []
        try:
            for path in paths:
                stopped_paths.append(path)
                await client.merge_patch(path, {"spec": {"active": False}})
            for _ in range(_QUOTA_POLLS_MAX):
                if _has_quota((await client.get(waiting_path)).body):
                    output.report_line(f"{waiting} has its quota")
                    break
                await sleep_for(SECOND)
            else:
                output.report_line(f"{waiting} got no quota within {_QUOTA_POLLS_MAX} s")
        finally:
            for path in stopped_paths:
                await client.merge_patch(path, {"spec": {"active": True}})
        output.report_line(f"{count_with_noun(len(keys), 'Workload')} restarted")

    run_in_cluster(target, run)


def _has_quota(body: bytes) -> bool:
    condition = find_condition(msgspec.json.decode(body), "QuotaReserved")
    return condition is not None and condition["status"] == "True"


def _with_active(workload: Obj, *, is_active: bool) -> Obj:
    # Without its annotations, a Workload would lose the run time that the simulation needs.
    metadata = {
        field: value
        for field, value in workload["metadata"].items()
        if field in {"name", "namespace", "labels", "annotations"}
    }
    identity = {"apiVersion": workload["apiVersion"], "kind": workload["kind"]}
    return {**identity, "metadata": metadata, "spec": {**workload["spec"], "active": is_active}}


def _format_plan(document: dict[str, Any], difference: Difference, output_format: options.Output) -> str:
    if not output_format.is_table:
        return render_document({**document, "simulation": document_of(difference)}, output_format)
    restarts = document["restarts"]
    text = f"{document['workload']} gets {_domains_text(document['domains'])} after "
    lost = f"{select_verb(len(restarts), 'loses', 'lose')} {document['cost']:,} device seconds"
    text += f"{count_with_noun(len(restarts), 'restart')}, which {lost}"
    text += "\n" if document["cheapest"] else "; cheaper plans may exist\n"
    if not restarts:
        return text
    rows = [["RESTART", "COST", "FROM", "TO"]]
    for each in restarts:
        cells = [_domains_text(each["from"]), _domains_text(each["to"])]
        rows.append([each["workload"], f"{each['cost']:,}", *cells])
    return f"{text}\n{format_table(rows)}\n{format_differences(difference, output_format)}"


def _domains_text(domains: Sequence[str]) -> str:
    return domains[0] if len(domains) == 1 else f"{domains[0]} and {count_with_noun(len(domains) - 1, 'other')}"


def defrag(
    context: typer.Context,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Manifests of a scenario, instead of a cluster.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan and its simulation; the default.")] = False,  # noqa: ARG001
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The waiting Workload, or its Job: NAMESPACE/NAME, or job/NAME.",
            show_default="the first that waits",
        ),
    ] = "",
    checkpointed: Annotated[
        bool, typer.Option("--checkpointed", help="Restart only Workloads that save checkpoints.")
    ] = False,
    at: Annotated[
        Duration,
        typer.Option(
            parser=options.to_duration,
            metavar="DURATION",
            help="The virtual time of the plan, in a scenario.",
            show_default="0s",
        ),
    ] = 0,
    apply: Annotated[
        bool, typer.Option("--apply", help="Restart the Workloads in the cluster, if the simulation admits the other.")
    ] = False,
    until: Annotated[
        Duration | None,
        typer.Option(
            parser=options.to_duration,
            metavar="DURATION",
            help="The horizon of the simulation, such as 2h; default: 10 minutes.",
        ),
    ] = None,
    state: options.StateFile = None,
    kubeconfig: options.Kubeconfig = "",
    kube_context: options.Context = "",
    data_dir: options.DataDir = None,
    kueue_version: options.RecordedVersionOption = None,
    seed: options.Seed = 0,
    output: options.OutputOption = options.Output.TABLE,
    verbose: Verbose = False,  # noqa: ARG001 - its callback passes it to the warnings
) -> None:
    """Plan which Workloads to restart so that a waiting one gets its topology domains, and simulate the plan."""
    if apply and (paths or state is not None):
        raise typer.BadParameter("--apply changes a cluster: remove PATH and --state")
    source = ClusterTarget(
        options.select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or options.DATA_DIR
    )
    start = WhatifRequest(
        *(paths or [], [], [], at, until, state, source, False, seed, output),
        kueue_version=None if kueue_version is None else KueueVersion(kueue_version.value),
    )
    run_defragmentation(DefragmentationRequest(start, workload, checkpointed, apply))
