"""Findings: place, problem, consequence and fix; and rules."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.lint.configuration import Configuration

#: The document that describes the rules.
DOCUMENT: Final = "docs/lint.md"


class Severity(StrEnum):
    """The severity of a finding."""

    #: The configuration can never work.
    ERROR = "error"
    #: It behaves differently than written, or works only under a condition.
    WARNING = "warning"
    #: It has no effect, or is worth knowing.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A problem of one object, as a rule returns it."""

    manifest: Manifest
    #: The field, such as `spec.resourceGroups[0]`; '' for the object as a whole.
    path: str
    #: The problem and its consequence.
    problem: str
    #: The fix.
    fix: str
    #: The fix as merge patches (RFC 7386) of objects, if known.
    patches: Sequence[tuple[Manifest, Mapping[str, Any]]] = ()
    #: None: the severity of the rule.
    severity: Severity | None = None


Check = Callable[[Configuration], Iterator[RuleResult]]


@dataclass(frozen=True, slots=True)
class LintRule:
    """One rule. `check` is None for rules that are checked while documents are read."""

    name: str
    severity: Severity
    #: A short description.
    about: str
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A problem in a report, with its rule and place."""

    rule: str
    severity: Severity
    source: str
    #: From 1; 0 for the whole file.
    document: int
    kind: str
    namespace: str
    name: str
    path: str
    problem: str
    fix: str
    #: Merge patches that fix it, each with the name of its object.
    patches: Sequence[Mapping[str, Any]] = ()
    #: From 1; 0 if unknown.
    line: int = 0

    @property
    def link(self) -> str:
        """The link to the rule's description."""
        return f"{DOCUMENT}#{self.rule}"


def finding_of(rule: LintRule, found: RuleResult) -> LintFinding:
    """The finding for a rule's result."""
    manifest = found.manifest
    metadata = manifest.obj["metadata"]
    return LintFinding(
        rule=rule.name,
        severity=found.severity or rule.severity,
        source=manifest.source,
        document=manifest.document,
        kind=manifest.obj["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name") or metadata.get("generateName", ""),
        path=f"{manifest.at}.{found.path}" if manifest.at and found.path else manifest.at or found.path,
        problem=found.problem,
        fix=found.fix,
        patches=tuple([_addressed(whose.obj, patch) for whose, patch in found.patches]),
    )


def _addressed(obj: Obj, patch: Mapping[str, Any]) -> dict[str, Any]:
    """A patch with the kind and name of its object, so that it can be applied directly."""
    own = obj["metadata"]
    who = {field: own[field] for field in ("name", "namespace") if field in own}
    metadata = {**who, **(patch.get("metadata") or {})}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], **patch, "metadata": metadata}
