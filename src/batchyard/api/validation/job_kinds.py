"""Validation of JobKinds, except for their expressions, which `jobs.described` compiles."""

import re
from collections.abc import Iterator
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import rules

_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*){0,15}")
_KIND_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_RESOURCE: Final = re.compile(r"[a-z][a-z0-9-]{0,61}[a-z0-9]")
_VERSION: Final = re.compile(r"v[1-9][0-9]{0,2}((alpha|beta)[1-9][0-9]{0,2})?")


def job_kind_errors(job_kind: Obj) -> Iterator[FieldError]:
    """Validate a JobKind: its name, the names of the kind, paths of fields, and the names of pod sets."""
    spec = job_kind["spec"]
    yield from rules.metadata_errors(job_kind)
    yield from _name_errors(job_kind, spec)
    yield from _path_errors("spec.suspend", spec["suspend"], "spec.suspend")
    yield from _items_path_errors(spec)
    for index, pod_set in enumerate(spec["podSets"]):
        field = f"spec.podSets[{index}]"
        yield from _path_errors(f"{field}.path", pod_set["path"], "spec.workers")
        yield from _path_errors(f"{field}.template", pod_set["template"], "template")
        if bool(pod_set.get("name")) == bool(pod_set.get("nameExpression")):
            remedy = "set name, or nameExpression for a list of pod sets"
            yield FieldError(field, "must have either name or nameExpression", remedy)
        elif pod_set.get("name") and (problems := rules.dns_label_errors(pod_set["name"])):
            yield rules.invalid(f"{field}.name", pod_set["name"], ", ".join(problems), "use a name such as workers")


def _items_path_errors(spec: Any) -> Iterator[FieldError]:
    for index, validation in enumerate(spec.get("validations") or ()):
        if validation.get("items"):
            yield from _path_errors(f"spec.validations[{index}].items", validation["items"], "spec.workers")


def job_kind_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a JobKind: the kind that it describes does not change."""
    for field in ("group", "kind", "version"):
        if new["spec"][field] != old["spec"][field]:
            remedy = "create another JobKind, and delete this one"
            yield rules.immutable(f"spec.{field}", new["spec"][field], remedy)
    yield from job_kind_errors(new)


def _name_errors(job_kind: Obj, spec: Any) -> Iterator[FieldError]:
    patterns = {
        "kind": (_KIND_NAME, "TrainingJob"),
        "resource": (_RESOURCE, "trainingjobs"),
        "version": (_VERSION, "v1"),
    }
    for field, (pattern, example) in patterns.items():
        if not pattern.fullmatch(spec[field]):
            yield rules.invalid(f"spec.{field}", spec[field], "is not a valid name", f"use a name such as {example}")
    group_problems = rules.dns_subdomain_errors(spec["group"])
    if group_problems or "." not in spec["group"]:
        message = ", ".join(group_problems) or "must be the group of a custom kind"
        yield rules.invalid("spec.group", spec["group"], message, "use a group such as ml.example.com")
    kind, expected_name = f"{spec['kind']}.{spec['group']}", f"{spec['resource']}.{spec['group']}"
    if scheme.is_built_in(kind) or kind in scheme.JOB_FRAMEWORKS.values():
        message = f"batchyard knows the kind {kind} without a JobKind"
        yield rules.invalid("spec.kind", spec["kind"], message, "remove the JobKind")
    if job_kind["metadata"].get("name") != expected_name:
        remedy = f"set the name to {expected_name}"
        name = job_kind["metadata"].get("name", "")
        yield rules.invalid("metadata.name", name, "must be the resource and the group of the kind", remedy)


def _path_errors(field: str, path: str, example: str) -> Iterator[FieldError]:
    if not _PATH.fullmatch(path):
        message = "must be names of fields, separated by dots"
        yield rules.invalid(field, path, message, f"write a path such as {example}")
