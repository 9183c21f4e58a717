"""The command `batchyard platform plan`: prints what a platform.yaml needs and creates, without creating anything.

The plan has objects, machines, costs, cloud quotas and lint findings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.accounting.records import format_dollars
from batchyard.api.printing import Table, format_table
from batchyard.api.scheme import find_kind
from batchyard.api.yaml_documents import DocumentLines
from batchyard.base.counts import count_with_noun
from batchyard.cli import output
from batchyard.cli.commands.guide import play_on_platform
from batchyard.cli.options import Output
from batchyard.cli.output import render_document
from batchyard.cli.platform.target import document_lines, read_source, read_valid_platform
from batchyard.cloud.catalog.machine_types import MicroDollars
from batchyard.lint.findings import LintFinding, Severity
from batchyard.lint.registry import lint
from batchyard.provision.google import describe_google_resources
from batchyard.provision.loading import PlatformSource
from batchyard.provision.manifests import RenderedObject, platform_objects
from batchyard.provision.model import PlatformModel
from batchyard.provision.system_pods import (
    ComputeQuota,
    MachineSupply,
    machine_supplies,
    required_quotas,
    system_pod_errors,
)

# Lint findings for the objects of a platform, mapped to lines of its platform.yaml.


_SEVERITY_ORDER: Final = tuple(Severity)
#: The kind whose findings are reported at the line of the queue's class.
_CLUSTER_QUEUE_KIND: Final = "ClusterQueue"
_CLUSTER_KIND: Final = "Cluster"
#: The rule that the pods of Kueue and of other system components must fit on the nodes.
_ENGINE_ROOM_RULE: Final = "engine-room"


class MergedFinding(NamedTuple):
    """A lint finding for several objects: equal findings of one lint rule at the same line of the platform file."""

    finding: LintFinding
    #: The objects that have the finding, as `KIND/NAME` or `KIND/NAMESPACE/NAME`.
    objects: Sequence[str]
    #: The line in the platform file; 0 if no field causes the finding.
    line: int


def lint_platform(source: PlatformSource, platform: PlatformModel) -> Sequence[MergedFinding]:
    """Lint the platform's objects; return the findings with the most severe first, equal findings merged."""
    objects = [each for group in platform_objects(platform).values() for each in group if not _is_idle(each)]
    if platform.cluster is not None:
        objects.append(RenderedObject(platform.cluster, "spec.cluster"))
    report = lint(each.obj for each in objects)
    lines = document_lines(source)
    findings_by_key: dict[tuple[str, str, int], list[LintFinding]] = {}
    for finding in report.findings:
        rendered_object = _object_of_finding(finding, objects)
        line = _line_of_finding(finding, rendered_object, platform, lines)
        findings_by_key.setdefault((finding.rule, finding.problem, line), []).append(finding)
    merged_findings = [
        MergedFinding(group_findings[0], [_object_name(each) for each in group_findings], key[2])
        for key, group_findings in findings_by_key.items()
    ]
    merged_findings += _pod_findings(source, platform, lines)
    return sorted(merged_findings, key=lambda each: (_SEVERITY_ORDER.index(each.finding.severity), each.line))


def _pod_findings(source: PlatformSource, platform: PlatformModel, lines: DocumentLines) -> Iterator[MergedFinding]:
    for fault in system_pod_errors(platform):
        finding = LintFinding(
            rule=_ENGINE_ROOM_RULE,
            severity=Severity.ERROR,
            source=source.name,
            document=1,
            kind="Platform",
            namespace="",
            name=platform.name,
            path=fault.path,
            problem=fault.problem,
            fix=fault.remedy,
        )
        yield MergedFinding(finding, [_object_name(finding)], lines.line_of(fault.path))


def _is_idle(rendered_object: RenderedObject) -> bool:
    """Return whether `batchyard up` stores an object of this kind without acting on it; a real cluster acts on it."""
    kind = find_kind(rendered_object.obj["apiVersion"], rendered_object.obj["kind"])
    return kind is not None and kind.is_idle


def _object_of_finding(finding: LintFinding, objects: Sequence[RenderedObject]) -> RenderedObject | None:
    object_number = finding.source.removeprefix("<object ").removesuffix(">")
    return objects[int(object_number) - 1] if object_number.isdecimal() else None


def _line_of_finding(
    finding: LintFinding, rendered_object: RenderedObject | None, platform: PlatformModel, lines: DocumentLines
) -> int:
    if rendered_object is None:
        return 0
    path = rendered_object.path
    queue_class = next((queue.class_name for queue in platform.queues if queue.path == path), "")
    if finding.kind == _CLUSTER_QUEUE_KIND and queue_class:
        path = _queue_class_path(queue_class, platform)
    field = finding.path.removeprefix("spec.")
    if finding.kind == _CLUSTER_KIND:
        return lines.line_of(f"{path}.{field}")
    return lines.line_of(f"{path}.{field.partition('.')[0]}") if field else lines.line_of(path)


def _queue_class_path(name: str, platform: PlatformModel) -> str:
    return f"spec.queueClasses[{platform.queue_classes.index(name)}]"


def _object_name(finding: LintFinding) -> str:
    return "/".join(part for part in (finding.kind, finding.namespace, finding.name) if part)


#: A formatter of name lists: it shows all names, or as many as fit.
_NamesFormatter: TypeAlias = Callable[[Sequence[str]], str]
_NAMES_WIDTH: Final = 72
_HOURS_PER_MONTH: Final = 730
_MICRODOLLARS_PER_CENT: Final = 10_000
_UNPRICED_NOTE: Final = "Disks, network, the control plane and licenses are not included."


class _Plan(NamedTuple):
    platform: PlatformModel
    #: The names of the Google Cloud resources by type; `objects` has the names of the applied objects by kind.
    google: Mapping[str, Sequence[str]]
    objects: Mapping[str, Sequence[str]]
    supplies: Sequence[MachineSupply]
    quotas: Sequence[ComputeQuota]
    findings: Sequence[MergedFinding]
    source: str


def run(file: str, project: str, output_format: Output, *, guide: bool = False) -> None:
    """Print the plan of a platform file; with `guide`, also simulate the guide on it. Exit with 1 on failure."""
    source = read_source(file)
    platform = read_valid_platform(source, project)
    plan = _make_plan(source, platform)
    if output_format.is_table:
        output.write("".join(_plan_sections(plan, ", ".join if output_format is Output.WIDE else _fit_names)))
    else:
        output.write(render_document(_plan_document(plan), output_format))
    severities = [merged_finding.finding.severity for merged_finding in plan.findings]
    counts = {severity: severities.count(severity) for severity in Severity}
    count_texts = ", ".join(count_with_noun(count, severity.value) for severity, count in counts.items())
    output.report_line(f"batchyard: nothing has been created; lint: {count_texts}")
    if guide:
        play_on_platform(platform, output_format)


def _make_plan(source: PlatformSource, platform: PlatformModel) -> _Plan:
    objects: dict[str, list[str]] = {}
    for group in platform_objects(platform).values():
        for rendered_object in group:
            metadata = rendered_object.obj["metadata"]
            name = f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"]
            objects.setdefault(rendered_object.obj["kind"], []).append(name)
    merged_findings = lint_platform(source, platform)
    resource_names, supplies = describe_google_resources(platform), machine_supplies(platform)
    return _Plan(platform, resource_names, objects, supplies, required_quotas(platform), merged_findings, source.name)


def _plan_sections(plan: _Plan, format_names: _NamesFormatter) -> Iterator[str]:
    platform = plan.platform
    platform_attributes = [f"engine {platform.engine.value}"]
    platform_attributes += [f"region {platform.region}"] if platform.region else []
    platform_attributes += [f"project {platform.google.project or 'not set'}"] if platform.google else []
    yield f"# Platform {platform.name}: {', '.join(platform_attributes)}\n"
    if plan.google:
        yield format_table(_names_table("ON GOOGLE CLOUD", plan.google, format_names))
        yield "\n"
    yield format_table(_names_table("KIND", plan.objects, format_names))
    if plan.supplies:
        yield "\n# Machines and dollars per hour: idle (minimum nodes) and full (maximum nodes)\n"
        yield format_table(_supplies_table(plan.supplies))
        idle, full = _total_prices(plan.supplies)
        yield f"{_dollars_per_month(idle)} dollars per month idle, {_dollars_per_month(full)} full. {_UNPRICED_NOTE}\n"
    if plan.quotas:
        yield "\n# Compute Engine quotas required for all nodes\n"
        yield format_table(_quotas_table(plan.quotas, format_names))
    if plan.findings:
        yield "\n# Lint findings\n"
        for merged_finding in plan.findings:
            yield from (f"{text}\n" for text in _finding_lines(merged_finding, plan.source, format_names))


def _names_table(header: str, names_by_kind: Mapping[str, Sequence[str]], format_names: _NamesFormatter) -> Table:
    rows = [[kind, str(len(names)), format_names(names)] for kind, names in names_by_kind.items()]
    return [[header, "COUNT", "NAMES"], *rows]


def _supplies_table(rows: Sequence[MachineSupply]) -> Table:
    idle, full = _total_prices(rows)
    header = ["POOL", "MACHINE", "TERMS", "ACCELERATORS", "NODES", "EACH", "IDLE", "FULL"]
    cells = [
        [
            row.name,
            row.machine.name,
            "reserved" if row.is_reserved else row.provisioning,
            _accelerators_cell(row),
            str(row.maximum) if row.minimum == row.maximum else f"{row.minimum}-{row.maximum}",
            *map(_format_dollars, (row.price, row.idle_price, row.full_price)),
        ]
        for row in rows
    ]
    return [header, *cells, ["all", "", "", "", "", "", _format_dollars(idle), _format_dollars(full)]]


def _accelerators_cell(row: MachineSupply) -> str:
    accelerator = row.machine.accelerator
    return f"{accelerator.count} {accelerator.type}" if accelerator else ""


def _quotas_table(rows: Sequence[ComputeQuota], format_names: _NamesFormatter) -> Table:
    cells = [[row.region, row.metric, str(row.needed_amount), format_names(row.pool_names)] for row in rows]
    return [["REGION", "QUOTA", "NEEDED", "FOR"], *cells]


def _finding_lines(merged_finding: MergedFinding, source: str, format_names: _NamesFormatter) -> Iterator[str]:
    finding, location = merged_finding.finding, f"{source}:{merged_finding.line}" if merged_finding.line else source
    yield f"{location}: {finding.severity.value} {finding.rule}: {format_names(merged_finding.objects)}"
    yield f"    {finding.problem}"
    if finding.fix:
        yield f"    fix: {finding.fix}"
    yield f"    see: {finding.link}"


def _fit_names(names: Sequence[str]) -> str:
    fitting_names: list[str] = []
    for name in names:
        if fitting_names and len(", ".join([*fitting_names, name])) > _NAMES_WIDTH:
            return f"{', '.join(fitting_names)} and {len(names) - len(fitting_names)} more"
        fitting_names.append(name)
    return ", ".join(fitting_names)


def _total_prices(rows: Sequence[MachineSupply]) -> tuple[MicroDollars, MicroDollars]:
    return sum(row.idle_price for row in rows), sum(row.full_price for row in rows)


def _format_dollars(amount: MicroDollars) -> str:
    return format_dollars((amount + _MICRODOLLARS_PER_CENT // 2) // _MICRODOLLARS_PER_CENT)


def _dollars_per_month(amount: MicroDollars) -> str:
    return str((amount * _HOURS_PER_MONTH + 500_000) // 1_000_000)


def _plan_document(plan: _Plan) -> dict[str, Any]:
    idle_price, full_price = _total_prices(plan.supplies)
    platform = plan.platform
    return {
        "apiVersion": "batchyard.dev/v1alpha1",
        "kind": "PlatformPlan",
        "name": platform.name,
        "engine": platform.engine.value,
        "region": platform.region,
        "project": platform.google.project if platform.google else "",
        "google": {resource_type: list(names) for resource_type, names in plan.google.items()},
        "objects": {kind: list(names) for kind, names in plan.objects.items()},
        "machines": [_supply_row(row) for row in plan.supplies],
        "dollarsAnHour": {"idle": _exact_dollars(idle_price), "full": _exact_dollars(full_price)},
        "quotas": [
            {"region": row.region, "metric": row.metric, "needed": row.needed_amount, "usedBy": list(row.pool_names)}
            for row in plan.quotas
        ],
        "findings": [_finding_row(merged_finding) for merged_finding in plan.findings],
    }


def _supply_row(row: MachineSupply) -> dict[str, Any]:
    accelerator = row.machine.accelerator
    accelerator_field = {"accelerator": {"type": accelerator.type, "count": accelerator.count}} if accelerator else {}
    return {
        "name": row.name,
        "machineType": row.machine.name,
        "provisioning": row.provisioning,
        "reserved": row.is_reserved,
        "nodes": {"least": row.minimum, "most": row.maximum},
        "dollarsAnHour": {
            "each": _exact_dollars(row.price),
            "idle": _exact_dollars(row.idle_price),
            "full": _exact_dollars(row.full_price),
        },
        **accelerator_field,
    }


def _finding_row(merged_finding: MergedFinding) -> dict[str, Any]:
    finding = merged_finding.finding
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "line": merged_finding.line,
        "objects": list(merged_finding.objects),
        "problem": finding.problem,
        "fix": finding.fix,
        "link": finding.link,
    }


def _exact_dollars(amount: MicroDollars) -> float:
    return round(amount / 1_000_000, 6)
