"""The command `batchyard why`: explains why a Workload, pod or queue of a cluster or simulation is in its state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import typer

from batchyard.api import scheme, well_known
from batchyard.api.amounts import readable_quantity
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.views.pods import is_terminal
from batchyard.api.views.queued_pods import has_admission_gate
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Duration, format_age
from batchyard.cli import output
from batchyard.cli.cluster_access import (
    REQUEST_ERRORS,
    ClusterTarget,
    UnreachableError,
    list_existing_names,
    request_document,
)
from batchyard.cli.missing_objects import NamespacedName, missing_role_advice, not_found_text
from batchyard.cli.options import (
    DATA_DIR,
    Context,
    DataDir,
    Kubeconfig,
    Output,
    RecordedVersionOption,
    select_kubeconfig,
)
from batchyard.cli.output import render_document
from batchyard.client.transport import object_path
from batchyard.sim.scenario import parse_run_duration

# The `why` document as text: summary, facts, quota table, quota holders, nodes, suggested changes.


Document: TypeAlias = Mapping[str, Any]

LINE_WIDTH: Final = 120
#: Wraps a text at spaces only, so that names stay whole.
_wrap: Final = partial(wrap, break_on_hyphens=False, break_long_words=False)
_CELL_WIDTH_MAX: Final = 44
_QUOTA_ROWS_MAX: Final = 18
_LABEL_WIDTH: Final = 13
_PLACEMENT_DOMAINS_SHOWN: Final = 8

_VERDICT_TEXTS: Final = {
    "fits": "fits",
    "short": "short of quota",
    "nobodyToPreempt": "short, nothing to preempt",
    "preempts": "fits after preemption",
    "reclaims": "fits after reclamation",
    "exceedsMaximum": "exceeds maximum capacity",
    "taint": "taint not tolerated",
    "affinity": "not selected by the pods",
    "notFound": "flavor not found",
    "topology": "topology does not suit",
}


def document_text_lines(document: Document, *, is_wide: bool) -> Iterator[str]:
    """Yield a `why` document (an object's explanation) as lines; with `is_wide`, with all rows of the quota table."""
    subject = document["subject"]
    name = "/".join(subject[field] for field in ("namespace", "name") if subject.get(field))
    yield f"{subject['kind']} {name}: {document['state']}"
    yield from _wrap(document["summary"], LINE_WIDTH)
    yield ""
    yield from _fact_lines(document)
    for section in (
        _quota_lines(document, is_wide=is_wide),
        _queue_quota_lines(document),
        _holder_lines(document),
        _topology_lines(document),
        _node_lines(document),
        _change_lines(document),
    ):
        lines = list(section)
        if lines:
            yield ""
            yield from lines


def _fact_lines(document: Document) -> Iterator[str]:
    binding = document.get("binding")
    if binding:
        limit_location = binding.get("where") or {}
        location_note = f" at {limit_location['kind']} {limit_location['name']}" if limit_location.get("kind") else ""
        resource_and_flavor = " ".join(binding[field] for field in ("resource", "flavor") if binding.get(field))
        missing_amount = readable_quantity(binding.get("resource", ""), binding.get("missing", ""))
        missing_note = f"; missing {missing_amount} {resource_and_flavor}" if missing_amount else ""
        yield from _labeled_lines("limit", f"{binding['limit']}{location_note}{missing_note}")
    if document.get("clusterQueue"):
        cohort = f" in Cohort {document['cohort']}" if document.get("cohort") else ""
        yield from _labeled_lines("queue", f"{document['clusterQueue']}{cohort}")
    line = document.get("line") or {}
    if line.get("position"):
        ahead_note = f", after {', '.join(line['ahead'])}" if line.get("ahead") else ""
        more_ahead_count = line["position"] - 1 - len(line.get("ahead") or ())
        more_ahead_note = f" and {more_ahead_count} more" if more_ahead_count else ""
        yield from _labeled_lines("in line", f"{line['position']} of {line['of']}{ahead_note}{more_ahead_note}")
    for share in document.get("shares") or ():
        text = f"{share['clusterQueue']}: {share.get('share', 0)} at weight {share['weight']:g}"
        yield from _labeled_lines("share", text)
    for number, text in enumerate((document.get("preemption") or {}).get("alternatives") or ()):
        yield from _labeled_lines("alternatives" if number == 0 else "", text)
    for check in document.get("checks") or ():
        message = f": {check['message']}" if check.get("message") else ""
        yield from _labeled_lines("check", f"{check['name']} is {check['state']}{message}")
    for request in document.get("requests") or ():
        yield from _labeled_lines("request", f"{request['name']}: {request['conditions']}")
    for label, text in (document.get("facts") or {}).items():
        yield from _labeled_lines(label, text)


def _labeled_lines(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(_wrap(text, LINE_WIDTH - _LABEL_WIDTH) or [""]):
        yield f"{(label if number == 0 else ''):<{_LABEL_WIDTH}}{line}".rstrip()


def _quota_lines(document: Document, *, is_wide: bool) -> Iterator[str]:
    rows = list(_quota_rows(document))
    if not rows:
        return
    binding_limit = document.get("binding") or {}
    if len(rows) > _QUOTA_ROWS_MAX and not is_wide:
        relevant_rows = [row for row in rows if row[1] == binding_limit.get("flavor") or not row[6]]
        omitted_count = len(rows) - len(relevant_rows[:_QUOTA_ROWS_MAX])
        rows = relevant_rows[:_QUOTA_ROWS_MAX]
    else:
        omitted_count = 0
    header = ("POD SET", "FLAVOR", "RESOURCE", "REQUESTED", "MISSING", "VERDICT", "LEVEL")
    amount_columns = ("NOMINAL", "USED", "FREE", "BORROW", "LEND")
    yield from _table_lines([(*header, *amount_columns), *rows])
    if omitted_count:
        yield f"... and {count_with_noun(omitted_count, 'more row')}: -o wide"


def _queue_quota_lines(document: Document) -> Iterator[str]:
    fields = ("nominal", "used", "borrowed", "lent", "available")
    rows = [
        (quota["flavor"], quota["resource"], *(readable_quantity(quota["resource"], quota[field]) for field in fields))
        for quota in document.get("quotas") or ()
    ]
    if rows:
        header = ("FLAVOR", "RESOURCE", "NOMINAL", "USED", "BORROWED", "LENT", "FREE")
        yield from _table_lines([header, *rows[:_QUOTA_ROWS_MAX]])
    if len(rows) > _QUOTA_ROWS_MAX:
        yield f"... and {count_with_noun(len(rows) - _QUOTA_ROWS_MAX, 'more row')}: -o yaml"


def _quota_rows(document: Document) -> Iterator[tuple[str, ...]]:
    for pod_set in document.get("podSets") or ():
        if pod_set.get("unavailable"):
            yield pod_set["name"], "", pod_set["unavailable"], "", "", "not covered by the queue", *[""] * 6
        for flavor in pod_set.get("flavors") or ():
            verdict_text = _VERDICT_TEXTS.get(flavor["verdict"], flavor["verdict"])
            resources = flavor.get("resources") or ()
            verdict_resource = flavor.get("bindingResource") or next((each["resource"] for each in resources), "")
            for resource in resources:
                name = resource["resource"]
                amounts = [readable_quantity(name, resource.get(field, "")) for field in ("asked", "missing")]
                verdict_cell = verdict_text if name == verdict_resource else ""
                leading_cells = (pod_set["name"], flavor["flavor"], name, *amounts, verdict_cell)
                yield from _level_rows(leading_cells, resource.get("levels") or (), is_ruled_out="obstacle" in flavor)


def _level_rows(prefix: Sequence[str], levels: Sequence[Document], *, is_ruled_out: bool) -> Iterator[tuple[str, ...]]:
    if is_ruled_out:
        yield *prefix, *[""] * 6
        return
    for number, level in enumerate(levels):
        fields = ("nominal", "used", "available", "borrowingLimit", "lendingLimit")
        cells = [readable_quantity(prefix[2], level.get(field, "")) for field in fields]
        name = f"{level['name']}" if level["kind"] == "ClusterQueue" else f"Cohort {level['name']}"
        level_leading_cells = prefix if number == 0 else ("", prefix[1], "", "", "", "")
        yield *level_leading_cells, name, *cells


def _holder_lines(document: Document) -> Iterator[str]:
    holders = document.get("holders") or ()
    if not holders:
        return
    rows = [("HELD BY", "QUEUE", "PRIORITY", "HOLDS", "PREEMPTION")]
    for holder in holders:
        amounts = ", ".join(
            f"{readable_quantity(row['resource'], row['amount'])} {row['resource']} {row['flavor']}".rstrip()
            for row in holder["holds"]
        )
        reason = "being preempted" if holder.get("preempted") else holder.get("stays", "")
        note = " (borrows)" if holder["borrows"] else ""
        queue = f"{holder.get('clusterQueue', '')}{note}"
        rows.append((holder["workload"], queue, str(holder["priority"]), amounts, reason))
    yield from _table_lines(rows, is_last_column_uncut=True)
    if document.get("holdersMore"):
        yield f"... and {document['holdersMore']} more"


def _topology_lines(document: Document) -> Iterator[str]:
    """Yield the topology domains: where admitted pods are, or how many pods of a pending Workload fit per level."""
    for part in document.get("topology") or ():
        if part.get("reason") and "levels" not in part:
            yield from _wrap(f"topology {part['topology']}, pod set {part['podSet']}: {part['reason']}", LINE_WIDTH)
        elif "fits" in part:
            yield from _topology_fit_lines(part)
        else:
            yield from _topology_placement_lines(part)


def _topology_fit_lines(part: Document) -> Iterator[str]:
    request = f"{part['request']} {part['level']}"
    if part.get("sliceSize"):
        layers = part.get("sliceLayers") or [{"size": part["sliceSize"], "level": part["sliceLevel"]}]
        layer_texts = [f"of {layer['size']} per {layer['level']}" for layer in layers]
        request += f", slices {', '.join(layer_texts)}"
    leader = f" and a leader ({part['leader']})" if part.get("leader") else ""
    pods = count_with_noun(part["pods"], "pod")
    yield f"topology {part['topology']}, flavor {part['flavor']}, pod set {part['podSet']}: {pods}{leader}, {request}"
    rows = [("LEVEL", "DOMAINS", "WITH ROOM", "LARGEST", "FREE", "FREE IF IDLE", "TOTAL FREE", "NEEDED")]
    for level in part["levels"]:
        name = f"{level['level']} (binds)" if level.get("binds") else level["level"]
        numbers = (level["free"], level["idle"], level["total"], part["pods"])
        rows.append((name, str(level["domains"]), str(level["fitting"]), level.get("largest", ""), *map(str, numbers)))
    yield from _table_lines(rows)
    occupants = part.get("occupants") or ()
    where = part.get("domain") or f"topology {part['topology']}"
    if occupants:
        note_header = ("",) if any(each.get("stays") for each in occupants) else ()
        rows_of_occupants = [(f"IN {where}", "QUEUE", "PRIORITY", "PODS", "FREES ROOM FOR", *note_header)]
        for each in occupants:
            amounts = (each["priority"], each["pods"], each["frees"])
            note = (each.get("stays", ""),) if note_header else ()
            rows_of_occupants.append((each["workload"], each["clusterQueue"], *map(str, amounts), *note))
        yield from _table_lines(rows_of_occupants, is_last_column_uncut=bool(note_header))
    if part.get("occupantsMore"):
        yield f"... and {part['occupantsMore']} more"
    if part.get("otherPods"):
        yield f"{count_with_noun(part['otherPods'], 'other pod')} without topology in {where}"


def _topology_placement_lines(part: Document) -> Iterator[str]:
    yield f"placement of pod set {part['podSet']}: {count_with_noun(part['pods'], 'pod')}"
    rows = [("LEVEL", "DOMAINS", "PODS")]
    for level in part["levels"]:
        shown = [f"{each['domain']}: {each['pods']}" for each in level["domains"][:_PLACEMENT_DOMAINS_SHOWN]]
        more = level["count"] - len(shown)
        missing = [f"{level['missing']} in domains that are gone"] if level.get("missing") else []
        texts = [*shown, *([f"and {more} more"] if more else ()), *missing]
        rows.append((level["level"], str(level["count"]), ", ".join(texts)))
    yield from _table_lines(rows, is_last_column_uncut=True)


def _node_lines(document: Document) -> Iterator[str]:
    nodes = document.get("nodes") or {}
    for text in nodes.get("text") or ():
        yield from _wrap(text, LINE_WIDTH, subsequent_indent="  ")


def _change_lines(document: Document) -> Iterator[str]:
    changes = document.get("changes") or ()
    if changes:
        effect = "place its pods" if document.get("nodes") else "admit it"
        is_minimal = all(change.get("minimal", True) for change in changes)
        if len(changes) == 1:
            minimality = "and is minimal" if is_minimal else "but may not be minimal"
            yield f"This change would {effect}. It was verified {minimality}:"
        else:
            minimality = "and is minimal" if is_minimal else "but not all are minimal"
            yield f"Any one of these changes would {effect}. Each was verified {minimality}:"
    for change in changes:
        condition = f" ({change['given']})" if change.get("given") else ""
        yield from _wrap(f"{change['text']}{condition}", LINE_WIDTH - 2, initial_indent="- ", subsequent_indent="  ")
    if document.get("changesEnd"):
        prefix = "Note: " if changes else "No change is proposed: "
        yield from _wrap(f"{prefix}{document['changesEnd']}.", LINE_WIDTH)


def _table_lines(rows: Sequence[Sequence[str]], *, is_last_column_uncut: bool = False) -> Iterator[str]:
    nonempty_columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    cells = [
        [
            _truncate_cell(row[column]) if not (is_last_column_uncut and column == len(row) - 1) else row[column]
            for column in nonempty_columns
        ]
        for row in rows
    ]
    column_widths = [max(len(row[index]) for row in cells) for index in range(len(nonempty_columns))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, column_widths, strict=True)).rstrip()


def _truncate_cell(text: str) -> str:
    return text if len(text) <= _CELL_WIDTH_MAX else f"{text[: _CELL_WIDTH_MAX - 3]}..."


if TYPE_CHECKING:
    from batchyard.sim.state import State
    from batchyard.sim.world import World

SUBJECT_FORMS: Final = "workload/NAME, job/NAME, jobset/NAME, pod/NAME, deployment/NAME or clusterqueue/NAME"
#: The kinds of objects that the command explains.
EXPLAINED_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
#: The status codes of servers without the `why` subresource: 404, or 403 without permission for it.
_FORBIDDEN_CODE: Final = 403
_MISSING_SUBRESOURCE_CODES: Final = (404, _FORBIDDEN_CODE)


class Subject(NamedTuple):
    """The object that the user asks about; the namespace '' means the kubeconfig's or, in a simulation, any."""

    kind: str
    namespace: str
    name: str

    @staticmethod
    def parse(text: str, namespace: str) -> "Subject | None":
        """Parse the text KIND/NAME; return None if the text is malformed or the kind cannot be explained."""
        kind_name, _, name = text.partition("/")
        kind = _kinds_by_name().get(kind_name.lower().partition(".")[0])
        if kind is None or not name or "/" in name:
            return None
        subject = Subject(kind, namespace, name)
        return subject if subject.served_kind.namespaced else subject._replace(namespace="")

    @property
    def served_kind(self) -> ServedKind:
        """The API kind of the object."""
        return scheme.DESCRIBED_KINDS.get(self.kind) or kind_info(self.kind)

    @property
    def is_service(self) -> bool:
        """Whether the object is a Deployment, a StatefulSet or a LeaderWorkerSet, whose pods are in the queue."""
        return self.kind in scheme.SERVING_KINDS


class SimulationInputs(NamedTuple):
    """The simulation in which an object is explained: manifest paths, virtual time of the explanation, random seed."""

    paths: Sequence[str]
    at: Duration | None
    seed: int
    #: The version of Kueue whose decision rules apply.
    kueue_version: str | None = None


def explain_in_cluster(subject: Subject, target: ClusterTarget, output_format: Output) -> None:
    """Print the explanation of an object of a live cluster; exit with 1 on failure.

    If the server does not serve `why` or forbids it, compute the explanation on this machine.
    """
    if subject.is_service:
        subject = _pod_of_service(subject, *_service_with_pods(subject, target))
    elif not scheme.is_built_in(subject.kind):
        subject = _workload_of_job(subject, target)
    served_kind = subject.served_kind
    api_version = served_kind.versions[-1] if served_kind.group == "kueue.x-k8s.io" else served_kind.storage_version
    requested_namespaces: list[str] = []

    def path_for_namespace(namespace: str) -> str:
        requested_namespaces.append(subject.namespace or namespace)
        return object_path(served_kind, api_version, requested_namespaces[-1], quote(subject.name), "why")

    try:
        document = request_document(target, path_for_namespace)
    except UnreachableError as error:
        if error.code not in _MISSING_SUBRESOURCE_CODES:
            output.fail(f"batchyard: {error}")
        namespace = requested_namespaces[-1] if served_kind.namespaced else ""
        existing_names = list_existing_names(target, served_kind, NamespacedName(subject.namespace, subject.name)) or []
        if NamespacedName(namespace, subject.name) in existing_names:
            _explain_locally(subject, target, output_format)
            return
        if error.code == _FORBIDDEN_CODE:
            output.fail(f"batchyard: {error}; {missing_role_advice(served_kind, namespace)}")
        output.fail(
            f"batchyard: {not_found_text(served_kind, NamespacedName(namespace, subject.name), existing_names)}"
        )
    except REQUEST_ERRORS as error:
        output.fail(f"batchyard: {error}")
    output.write(_format_answer(document, output_format))


def _service_with_pods(subject: Subject, target: ClusterTarget) -> tuple[Obj, Sequence[Obj]]:
    """Return a service of a live cluster and the pods that its selector selects; exit with 1 if it does not exist."""
    kind = subject.served_kind

    def service_path(namespace: str) -> str:
        return object_path(kind, kind.storage_version, subject.namespace or namespace, quote(subject.name))

    try:
        service = request_document(target, service_path)
        labels = ",".join(f"{name}={value}" for name, value in _pod_labels(service).items())
        pods_path = object_path(kind_info(scheme.POD), "v1", service["metadata"]["namespace"])
        return service, request_document(target, lambda _: f"{pods_path}?labelSelector={quote(labels)}")["items"]
    except REQUEST_ERRORS as error:
        output.fail(f"batchyard: {error}")


def _pod_labels(service: Obj) -> Mapping[str, str]:
    """Return the labels of the pods of a service."""
    if service["kind"] == "LeaderWorkerSet":
        return {"leaderworkerset.sigs.k8s.io/name": service["metadata"]["name"]}
    labels: Mapping[str, str] = (service["spec"].get("selector") or {}).get("matchLabels") or {}
    return labels


def _pod_of_service(subject: Subject, service: Obj, pods: Sequence[Obj]) -> Subject:
    """Report how many pods of a service wait; return the first one that waits, or else the first pod."""
    metadata = service["metadata"]
    order = itemgetter("creationTimestamp", "name")
    live_pods = sorted((pod for pod in pods if not is_terminal(pod)), key=lambda pod: order(pod["metadata"]))
    waiting_pods = [pod for pod in live_pods if has_admission_gate(pod)]
    name = f"{service['kind']} {metadata['namespace']}/{metadata['name']}"
    if not live_pods:
        command = f"kubectl describe {subject.served_kind.singular}"
        output.fail(f"batchyard: {name} has no pods: check its replicas with {command}")
    pod = (waiting_pods or live_pods)[0]["metadata"]
    counts_text = f"{len(waiting_pods)} of {count_with_noun(len(live_pods), 'pod')} wait in the queue"
    output.report_line(f"batchyard: {name}: {counts_text}; pod {pod['name']} is explained")
    return Subject(scheme.POD, pod["namespace"], pod["name"])


def _workload_of_job(job_subject: Subject, target: ClusterTarget) -> Subject:
    """Return the newest Workload of a job whose kind a JobKind describes; exit with 1 if it has none."""
    job_kind, workload_kind = job_subject.served_kind, kind_info(scheme.WORKLOAD)
    workload_version = workload_kind.versions[-1]

    def job_path(namespace: str) -> str:
        return object_path(
            job_kind, job_kind.storage_version, job_subject.namespace or namespace, quote(job_subject.name)
        )

    try:
        metadata = request_document(target, job_path)["metadata"]
        selector = quote(f"{well_known.JOB_UID}={metadata['uid']}")
        path = f"{object_path(workload_kind, workload_version, metadata['namespace'])}?labelSelector={selector}"
        workloads = request_document(target, lambda _: path)["items"]
    except REQUEST_ERRORS as error:
        output.fail(f"batchyard: {error}")
    if not workloads:
        name = f"{job_kind.singular} {metadata['namespace']}/{job_subject.name}"
        remedy = f"set the label {well_known.QUEUE_NAME}, and check that the operator manages {job_kind.plural}"
        output.fail(f"batchyard: {name} has no Workload: {remedy}")
    newest = max(workloads, key=lambda each: str(each["metadata"]["creationTimestamp"]))["metadata"]
    return Subject(scheme.WORKLOAD, newest["namespace"], newest["name"])


def explain_in_simulation(subject: Subject, inputs: SimulationInputs, output_format: Output) -> None:
    """Simulate manifests up to a virtual time and print the explanation of an object.

    The default time is the end of the run, or if the files contain a cluster state, the time of this state. The command
    exits with 1 if the object does not exist then.
    """
    from batchyard.cli.cluster_access import read_source_texts  # noqa: PLC0415 - loads the simulator
    from batchyard.cli.commands.simulate import SimulateRequest, read_scenario_and_state  # noqa: PLC0415 - loads the simulator
    from batchyard.cli.kueue_configuration import select_version  # noqa: PLC0415 - loads the scheduler
    from batchyard.scheduling.decisions import KueueVersion  # noqa: PLC0415 - loads the scheduler
    from batchyard.sim.simulate import Simulation, SimulationOptions  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.world import EPOCH  # noqa: PLC0415 - loads the simulator

    version = None if inputs.kueue_version is None else KueueVersion(inputs.kueue_version)
    texts = read_source_texts(inputs.paths)
    if inputs.at is None and not (texts.manifests or texts.file_faults):
        state = texts.state()
        if state is not None:
            state = replace(state, kueue=select_version(state.kueue, version))
            explain_in_state(subject, state, output_format)
            return
    request = SimulateRequest(inputs.paths, None, inputs.at, inputs.seed, kueue_version=version)
    scenario, state = read_scenario_and_state(request, texts)
    until = 0 if inputs.at is None and state is not None else inputs.at
    # A sink, even one that keeps nothing, makes the run record the time of its last event.
    options = SimulationOptions(until, inputs.seed, sink=lambda _: None, state=state)
    simulation = Simulation(scenario, options)
    simulation.advance()
    end = simulation.world.log.last_record_at - (EPOCH if state is None else state.at)
    simulation.result()
    if inputs.at is not None and simulation.world.kernel.next_instant() is None and end < inputs.at:
        message = f"the run ends at {format_age(end)}, before --at {format_age(inputs.at)}: its end is explained"
        output.report_line(f"batchyard: {message}; set an earlier --at for an earlier state")
    explain_in_world(simulation.world, subject, output_format)


def explain_in_state(subject: Subject, state: "State", output_format: Output) -> None:
    """Print the explanation of an object of a cluster state, without simulating any later time."""
    from batchyard.sim.whatif import start_from_state  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.world import World  # noqa: PLC0415 - loads the simulator

    explain_in_world(World(start_from_state(state).scenario, state=state), subject, output_format)


def explain_in_world(world: "World", subject: Subject, output_format: Output) -> None:
    """Print the explanation of an object of a simulated cluster; exit with 1 unless exactly one object matches."""
    key = _resolve_key(world, subject)
    if subject.is_service:
        service = world.client.get(key)
        assert service is not None, f"{key} exists"
        labels = _pod_labels(service).items()
        pods = [pod for pod in world.objects(scheme.POD) if labels <= (pod["metadata"].get("labels") or {}).items()]
        pods = [pod for pod in pods if pod["metadata"]["namespace"] == key.namespace]
        key = _resolve_key(world, _pod_of_service(subject, service, pods))
    document = world.platform.explainer.why(key, world.kernel.now())
    assert document is not None, f"{key} exists, so it can be explained"
    output.write(_format_answer(document, output_format))


def _resolve_key(world: "World", subject: Subject) -> Key:
    all_metadata = [obj["metadata"] for obj in world.objects(subject.kind)]
    same_named = [metadata for metadata in all_metadata if metadata["name"] == subject.name]
    if subject.namespace:
        same_named = [metadata for metadata in same_named if metadata.get("namespace", "") == subject.namespace]
    if len(same_named) == 1:
        return Key(subject.kind, same_named[0].get("namespace", ""), subject.name)
    if same_named:
        namespaces = sorted(metadata.get("namespace", "") for metadata in same_named)
        output.fail(
            f"batchyard: {subject.served_kind.singular} {subject.name} exists in several namespaces"
            f" ({', '.join(namespaces)}): select one with --namespace, such as --namespace {namespaces[0]}"
        )
    existing_names = [NamespacedName(metadata.get("namespace", ""), metadata["name"]) for metadata in all_metadata]
    subject_name = NamespacedName(subject.namespace, subject.name)
    return output.fail(f"batchyard: {not_found_text(subject.served_kind, subject_name, existing_names)}")


def _explain_locally(subject: Subject, target: ClusterTarget, output_format: Output) -> None:
    from batchyard.cli.cluster_access import read_requested_state  # noqa: PLC0415 - loads the simulator

    explain_in_state(subject, read_requested_state(None, target), output_format)


def _kinds_by_name() -> dict[str, str]:
    kinds = {"wl": scheme.WORKLOAD}
    services = [kind_info(kind) for kind in scheme.SERVING_KINDS if scheme.is_built_in(kind)]
    for info in (*map(kind_info, EXPLAINED_KINDS), *services, *scheme.DESCRIBED_KINDS.values()):
        kinds |= dict.fromkeys((info.singular, info.plural, *info.short_names), info.constant)
    return kinds


def _format_answer(document: Mapping[str, Any], output_format: Output) -> str:
    if output_format.is_table:
        return "\n".join(document_text_lines(document, is_wide=output_format is Output.WIDE)) + "\n"
    return render_document(document, output_format)


def _parse_duration_option(text: str) -> Duration:
    try:
        return parse_run_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def why(
    context: typer.Context,
    about: Annotated[
        str, typer.Argument(metavar="KIND/NAME", help="workload/x, job/x, pod/x, deployment/x or clusterqueue/x.")
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace; default: the kubeconfig's.")
    ] = "",
    paths: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filename", metavar="PATH", help="Simulate these manifests instead of asking a cluster; repeatable."
        ),
    ] = None,
    at: Annotated[
        Duration | None,
        typer.Option(
            parser=_parse_duration_option,
            metavar="DURATION",
            help="With -f: at this virtual time; default: the end, or a state's time.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="With -f: seed of all random values, such as uids.")] = 0,
    kueue_version: RecordedVersionOption = None,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show why a Workload or pod waits, what holds the missing quota, and the smallest change that would admit it."""
    if at is not None and not paths:
        raise typer.BadParameter("--at requires a simulation: add manifests with -f PATH")

    subject = Subject.parse(about, namespace)
    if subject is None:
        raise typer.BadParameter(f"{about!r} is not a supported KIND/NAME: use {SUBJECT_FORMS}")
    if paths:
        explain_in_simulation(subject, SimulationInputs(paths, at, seed, kueue_version), output)
    else:
        target = ClusterTarget(select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
        explain_in_cluster(subject, target, output)
