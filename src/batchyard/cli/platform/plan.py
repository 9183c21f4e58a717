"""`batchyard platform plan`: the objects, machines, costs and quotas of a platform.yaml, before anything is created."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.accounting.records import dollars
from batchyard.api.printing import Table, format_table
from batchyard.api.scheme import find_kind
from batchyard.api.yaml_documents import DocumentLines
from batchyard.cli import output
from batchyard.cli.commands.guide import play
from batchyard.cli.options import Output
from batchyard.cli.output import render_json, render_yaml
from batchyard.cli.platform.target import lines_of, read_source, sound_platform
from batchyard.cloud.catalog.machine_types import MicroDollars
from batchyard.lint.findings import LintFinding, Severity
from batchyard.lint.registry import lint
from batchyard.provision.google import made_on_google
from batchyard.provision.loading import PlatformSource
from batchyard.provision.manifests import RenderedObject, made
from batchyard.provision.model import PlatformModel
from batchyard.provision.system_pods import ComputeQuota, Supply, quotas, supplies, system_pod_faults

# --- findings ---
#
# Lint findings for the objects of a platform, mapped to lines of its platform.yaml.


_ORDER: Final = tuple(Severity)
#: Findings of this kind are reported at the queue's class.
_QUEUE: Final = "ClusterQueue"
_CLUSTER: Final = "Cluster"
#: The rule for the room of the engine's own pods.
_ROOM: Final = "engine-room"


class MergedFinding(NamedTuple):
    """Equal findings of one rule at one line of the file."""

    finding: LintFinding
    #: The objects, as `kind/name`.
    objects: Sequence[str]
    line: int


def findings(source: PlatformSource, platform: PlatformModel) -> Sequence[MergedFinding]:
    """The findings, the most severe first; equal ones for several objects are merged."""
    objects = [each for group in made(platform).values() for each in group if not _is_idle(each)]
    if platform.cluster is not None:
        objects.append(RenderedObject(platform.cluster, "spec.cluster"))
    report = lint(each.obj for each in objects)
    lines = lines_of(source)
    alike: dict[tuple[str, str, int], list[LintFinding]] = {}
    for finding in report.findings:
        whose = _whose(finding, objects)
        line = _line(finding, whose, platform, lines)
        alike.setdefault((finding.rule, finding.problem, line), []).append(finding)
    reported = [MergedFinding(found[0], [_name(each) for each in found], key[2]) for key, found in alike.items()]
    reported += _room_findings(source, platform, lines)
    return sorted(reported, key=lambda each: (_ORDER.index(each.finding.severity), each.line))


def _room_findings(source: PlatformSource, platform: PlatformModel, lines: DocumentLines) -> Iterator[MergedFinding]:
    """An error if the pods of the engine do not fit on the nodes."""
    for fault in system_pod_faults(platform):
        finding = LintFinding(
            rule=_ROOM,
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
        yield MergedFinding(finding, [_name(finding)], lines.of(fault.path))


def _is_idle(each: RenderedObject) -> bool:
    """Whether the object has no effect in the embedded platform; on a cluster it does."""
    kind = find_kind(each.obj["apiVersion"], each.obj["kind"])
    return kind is not None and kind.is_idle


def _whose(finding: LintFinding, objects: Sequence[RenderedObject]) -> RenderedObject | None:
    """The object of a finding; lint names object sources by their number, from 1."""
    number = finding.source.removeprefix("<object ").removesuffix(">")
    return objects[int(number) - 1] if number.isdecimal() else None


def _line(finding: LintFinding, whose: RenderedObject | None, platform: PlatformModel, lines: DocumentLines) -> int:
    if whose is None:
        return 0
    path = whose.path
    of_class = next((queue.of_class for queue in platform.queues if queue.path == path), "")
    if finding.kind == _QUEUE and of_class:
        path = _class_path(of_class, platform)
    field = finding.path.removeprefix("spec.")
    if finding.kind == _CLUSTER:
        return lines.of(f"{path}.{field}")
    return lines.of(f"{path}.{field.partition('.')[0]}") if field else lines.of(path)


def _class_path(name: str, platform: PlatformModel) -> str:
    return f"spec.queueClasses[{platform.queue_classes.index(name)}]"


def _name(finding: LintFinding) -> str:
    return "/".join(part for part in (finding.kind, finding.namespace, finding.name) if part)


#: Formats names: all of them, or as many as fit.
_Shown: TypeAlias = Callable[[Sequence[str]], str]
_NAMES_WIDTH: Final = 72
_HOURS_A_MONTH: Final = 730
_CENT: Final = 10_000
_UNPRICED: Final = "Disks, network, the control plane and licences are not included."


class _Plan(NamedTuple):
    """The data of the plan."""

    platform: PlatformModel
    #: The names of Google Cloud resources by type, and of applied objects by kind.
    google: Mapping[str, Sequence[str]]
    objects: Mapping[str, Sequence[str]]
    supplies: Sequence[Supply]
    quotas: Sequence[ComputeQuota]
    findings: Sequence[MergedFinding]
    source: str


def run(file: str, project: str, form: Output, *, guide: bool = False) -> None:
    """Print the plan; ends the command with 1 if the file is invalid or the guide differs."""
    source = read_source(file)
    platform = sound_platform(source, project)
    found = _planned(source, platform)
    match form:
        case Output.JSON:
            output.write(render_json(_document(found)))
        case Output.YAML:
            output.write(render_yaml(_document(found)))
        case Output.TABLE | Output.WIDE:
            output.write("".join(_sections(found, ", ".join if form is Output.WIDE else _cut)))
    counts = {
        severity: sum(message.finding.severity is severity for message in found.findings) for severity in Severity
    }
    message = ", ".join(f"{count} {severity.value}{'s' * (count != 1)}" for severity, count in counts.items())
    output.report_line(f"batchyard: nothing has been created; lint: {message}")
    if guide:
        play(platform, form)


def _planned(source: PlatformSource, platform: PlatformModel) -> _Plan:
    objects: dict[str, list[str]] = {}
    for group in made(platform).values():
        for each in group:
            metadata = each.obj["metadata"]
            name = f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"]
            objects.setdefault(each.obj["kind"], []).append(name)
    found = findings(source, platform)
    return _Plan(platform, made_on_google(platform), objects, supplies(platform), quotas(platform), found, source.name)


# --- for people ---


def _sections(plan: _Plan, shown: _Shown) -> Iterator[str]:
    platform = plan.platform
    where = [f"engine {platform.engine.value}"]
    where += [f"region {platform.region}"] if platform.region else []
    where += [f"project {platform.google.project or 'not set'}"] if platform.google else []
    yield f"# Platform {platform.name}: {', '.join(where)}\n"
    if plan.google:
        yield format_table(_names_table("ON GOOGLE CLOUD", plan.google, shown))
        yield "\n"
    yield format_table(_names_table("KIND", plan.objects, shown))
    if plan.supplies:
        yield "\n# Machines and dollars an hour: idle, without work, and full, with all nodes\n"
        yield format_table(_supplies_table(plan.supplies))
        idle, full = _totals(plan.supplies)
        yield f"{_a_month(idle)} dollars a month idle, {_a_month(full)} full. {_UNPRICED}\n"
    if plan.quotas:
        yield "\n# Compute Engine quotas required for all nodes\n"
        yield format_table(_quotas_table(plan.quotas, shown))
    if plan.findings:
        yield "\n# Lint findings\n"
        yield from (f"{text}\n" for reported in plan.findings for text in _finding_lines(reported, plan.source, shown))


def _names_table(what: str, named: Mapping[str, Sequence[str]], shown: _Shown) -> Table:
    rows = [[kind, str(len(names)), shown(names)] for kind, names in named.items()]
    return [[what, "COUNT", "NAMES"], *rows]


def _supplies_table(rows: Sequence[Supply]) -> Table:
    idle, full = _totals(rows)
    header = ["POOL", "MACHINE", "TERMS", "ACCELERATORS", "NODES", "EACH", "IDLE", "FULL"]
    shown = [
        [
            row.name,
            row.machine.name,
            "reserved" if row.reserved else row.provisioning,
            _accelerators(row),
            str(row.most) if row.least == row.most else f"{row.least}-{row.most}",
            *map(_dollars, (row.price, row.idle, row.full)),
        ]
        for row in rows
    ]
    return [header, *shown, ["all", "", "", "", "", "", _dollars(idle), _dollars(full)]]


def _accelerators(row: Supply) -> str:
    accelerator = row.machine.accelerator
    return f"{accelerator.count} {accelerator.type}" if accelerator else ""


def _quotas_table(rows: Sequence[ComputeQuota], shown: _Shown) -> Table:
    return [
        ["REGION", "QUOTA", "NEEDED", "FOR"],
        *([row.region, row.metric, str(row.needed), shown(row.used_by)] for row in rows),
    ]


def _finding_lines(reported: MergedFinding, source: str, shown: _Shown) -> Iterator[str]:
    finding, place = reported.finding, f"{source}:{reported.line}" if reported.line else source
    yield f"{place}: {finding.severity.value} {finding.rule}: {shown(reported.objects)}"
    yield f"    {finding.problem}"
    if finding.fix:
        yield f"    fix: {finding.fix}"
    yield f"    see: {finding.link}"


def _cut(names: Sequence[str]) -> str:
    """As many names as fit, and the number of the others."""
    shown: list[str] = []
    for name in names:
        if shown and len(", ".join([*shown, name])) > _NAMES_WIDTH:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def _totals(rows: Sequence[Supply]) -> tuple[MicroDollars, MicroDollars]:
    return sum(row.idle for row in rows), sum(row.full for row in rows)


def _dollars(amount: MicroDollars) -> str:
    return dollars((amount + _CENT // 2) // _CENT)


def _a_month(amount: MicroDollars) -> str:
    return str((amount * _HOURS_A_MONTH + 500_000) // 1_000_000)


# --- for programs ---


def _document(plan: _Plan) -> dict[str, Any]:
    """The plan as a document; money in dollars per hour."""
    idle, full = _totals(plan.supplies)
    platform = plan.platform
    return {
        "apiVersion": "batchyard.dev/v1alpha1",
        "kind": "PlatformPlan",
        "name": platform.name,
        "engine": platform.engine.value,
        "region": platform.region,
        "project": platform.google.project if platform.google else "",
        "google": {what: list(names) for what, names in plan.google.items()},
        "objects": {kind: list(names) for kind, names in plan.objects.items()},
        "machines": [_supply_row(row) for row in plan.supplies],
        "dollarsAnHour": {"idle": _exact(idle), "full": _exact(full)},
        "quotas": [
            {"region": row.region, "metric": row.metric, "needed": row.needed, "usedBy": list(row.used_by)}
            for row in plan.quotas
        ],
        "findings": [_finding_row(reported) for reported in plan.findings],
    }


def _supply_row(row: Supply) -> dict[str, Any]:
    accelerator = row.machine.accelerator
    having = {"accelerator": {"type": accelerator.type, "count": accelerator.count}} if accelerator else {}
    return {
        "name": row.name,
        "machineType": row.machine.name,
        "provisioning": row.provisioning,
        "reserved": row.reserved,
        "nodes": {"least": row.least, "most": row.most},
        "dollarsAnHour": {"each": _exact(row.price), "idle": _exact(row.idle), "full": _exact(row.full)},
        **having,
    }


def _finding_row(reported: MergedFinding) -> dict[str, Any]:
    finding = reported.finding
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "line": reported.line,
        "objects": list(reported.objects),
        "problem": finding.problem,
        "fix": finding.fix,
        "link": finding.link,
    }


def _exact(amount: MicroDollars) -> float:
    return round(amount / 1_000_000, 6)
