"""Lint rules, their severities, and the findings that `batchyard lint` reports: location, problem and fix."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.lint.linted_manifests import LintedManifests

#: The document that describes all lint rules.
RULES_DOCUMENT: Final = "docs/reference/lint.md"
#: The rule about Namespaces without a manifest.
UNKNOWN_NAMESPACE: Final = "unknown-namespace"


class Severity(StrEnum):
    """The severity of a lint finding."""

    #: The configuration can never work.
    ERROR = "error"
    #: The configuration behaves differently than written, or works only under a condition.
    WARNING = "warning"
    #: A part of the configuration has no effect, or the user should know something about it.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A problem that a lint rule found in a manifest: the field, what is wrong, and how to fix it."""

    manifest: Manifest
    #: The field, such as `spec.resourceGroups[0]`; '' for the object as a whole.
    path: str
    #: What is wrong, and its consequence.
    problem: str
    #: How to fix the problem.
    fix: str
    #: The fix as JSON merge patches (RFC 7386), each with the manifest it changes; empty if the fix is not automatic.
    patches: Sequence[tuple[Manifest, Mapping[str, Any]]] = ()
    #: A severity that replaces the rule's; None keeps it.
    severity: Severity | None = None


RuleCheck = Callable[[LintedManifests], Iterator[RuleResult]]


@dataclass(frozen=True, slots=True)
class LintRule:
    """A lint rule: its name, severity and check; `check` is None if the manifest reader itself detects the problem."""

    name: str
    severity: Severity
    #: A short description of the reported problem.
    summary: str
    check: RuleCheck | None = None


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A problem as reported to the user: the lint rule, the file and object, what is wrong, and how to fix it."""

    rule: str
    severity: Severity
    source: str
    #: The position of the document in the file, from 1; 0 for the whole file.
    document: int
    kind: str
    namespace: str
    name: str
    path: str
    problem: str
    fix: str
    #: Merge patches that fix the problem, each with the kind and name of its object.
    patches: Sequence[Mapping[str, Any]] = ()
    #: The line in the file, from 1; 0 if unknown.
    line: int = 0

    @property
    def link(self) -> str:
        """The link to the section of the documentation that describes the finding's rule."""
        return f"{RULES_DOCUMENT}#{self.rule}"


def make_finding(rule: LintRule, result: RuleResult) -> LintFinding:
    """Return a rule's result as a finding with the rule's name and severity, the file and the object."""
    manifest = result.manifest
    metadata = manifest.obj["metadata"]
    path = result.path.removeprefix(".")  # a pod is its own template: the path of its template is empty
    return LintFinding(
        rule=rule.name,
        severity=result.severity or rule.severity,
        source=manifest.source,
        document=manifest.document,
        kind=manifest.obj["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name") or metadata.get("generateName", ""),
        path=f"{manifest.item_path}.{path}" if manifest.item_path and path else manifest.item_path or path,
        problem=result.problem,
        fix=result.fix,
        patches=tuple(
            [_add_object_identity(patched_manifest.obj, patch) for patched_manifest, patch in result.patches]
        ),
    )


def _add_object_identity(obj: Obj, patch: Mapping[str, Any]) -> dict[str, Any]:
    obj_metadata = obj["metadata"]
    identity = {field: obj_metadata[field] for field in ("name", "namespace") if field in obj_metadata}
    metadata = {**identity, **(patch.get("metadata") or {})}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], **patch, "metadata": metadata}
