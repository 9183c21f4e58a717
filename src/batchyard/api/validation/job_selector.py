"""Rules of how a Job finds its pods: by labels made from its name and uid, or by a selector of its own.

Source: Kubernetes's pkg/apis/batch/validation (ValidateGeneratedSelector, ValidateJobSpec).
"""

from collections.abc import Iterator
from typing import Final

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.selectors import selector as parsed_selector
from batchyard.api.validation import faults, metadata, names

_LABELS: Final = "spec.template.metadata.labels"
_NO_MATCH: Final = "`selector` does not match template `labels`"


def selector_faults(job: Obj) -> Iterator[FieldError]:
    """Kubernetes makes the selector, unless asked not to; either way it selects the Job's own pods."""
    spec = job.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if spec.get("manualSelector"):
        yield from _own_faults(spec.get("selector"), labels)
    else:
        yield from _generated_faults(job["metadata"].get("name"), spec.get("selector"), labels)


def _own_faults(selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    """A selector that the Job brings."""
    if selector is None:
        yield faults.required("spec.selector", "", "give the selector, or drop manualSelector")
        return
    wrong = list(metadata.selector_faults(selector, "spec.selector"))
    yield from wrong
    selected = None if wrong else parsed_selector(selector)
    if selected is not None and not selected.matches(labels):
        yield faults.invalid(_LABELS, labels, _NO_MATCH, "give the template the labels of the selector")


def _generated_faults(name: str | None, selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    """The selector and the labels that Kubernetes makes; who says them already says what they will be."""
    if selector and (
        selector.get("matchExpressions") or set(selector.get("matchLabels") or ()) - set(well_known.POD_OWNER_LABELS)
    ):
        remedy = "drop the selector, or set manualSelector: true"
        yield faults.invalid("spec.selector", selector, "`selector` not auto-generated", remedy)
    elif selector and any(labels.get(k, value) != value for k, value in (selector.get("matchLabels") or {}).items()):
        yield faults.invalid(_LABELS, labels, _NO_MATCH, "drop the selector and these labels")
    if not name:
        return
    for message in names.label_value(name):
        yield faults.invalid(_LABELS, name, message, "shorten the name of the Job: its pods have it as a label")
    for key in (well_known.OLD_JOB_NAME, well_known.JOB_NAME):
        if labels.get(key) not in (None, name):
            yield faults.invalid(f"{_LABELS}[{key}]", labels[key], f"must be '{name}'", "drop the label")
