"""Lint findings for the objects of a platform, mapped to lines of its platform.yaml."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.scheme import find_kind
from batchyard.api.yaml_documents import DocumentLines
from batchyard.cli.platform.files import lines_of
from batchyard.lint.findings import LintFinding, Severity
from batchyard.lint.run import lint
from batchyard.provision.loading import PlatformSource
from batchyard.provision.manifests import RenderedObject, made
from batchyard.provision.model import PlatformModel
from batchyard.provision.system_pods import system_pod_faults

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
