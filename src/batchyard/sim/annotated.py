"""What annotations say of simulated pods: how long they run, how they end, how often they save their work.

They may stand on a Pod, a Job, a JobSet or a Workload, and on the templates within.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.annotations import whole_number
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.base.instant import parse_duration

_EXIT_CODE_MAX: Final = 255


def annotation_faults(obj: Obj) -> Iterator[FieldError]:
    """What is wrong with such annotations of an object and its templates."""
    for path, metadata in _annotated(obj, ""):
        for name, text in (metadata.get("annotations") or {}).items():
            place = f"{path}metadata.annotations[{name}]"
            if name in {well_known.RUNTIME, well_known.CHECKPOINT_EVERY}:
                yield from _duration_faults(place, text, can_be_zero=name == well_known.RUNTIME)
            elif name == well_known.EXIT_CODE and not 0 <= _number(text) <= _EXIT_CODE_MAX:
                yield FieldError(place, f"{text!r} is not an exit code", f"give a number from 0 to {_EXIT_CODE_MAX}")


def _annotated(obj: Obj, path: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The metadata of an object and of the templates within, each with the path before it."""
    yield path, obj.get("metadata") or {}
    spec = obj.get("spec") or {}
    if isinstance(spec.get("template"), dict):
        yield from _annotated(spec["template"], f"{path}spec.template.")
    for number, replicated in enumerate(spec.get("replicatedJobs") or ()):
        yield from _annotated(replicated["template"], f"{path}spec.replicatedJobs[{number}].template.")


def _duration_faults(place: str, text: str, *, can_be_zero: bool) -> Iterator[FieldError]:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        yield FieldError(place, problem, remedy)
        return
    if not duration and not can_be_zero:
        yield FieldError(place, "work cannot be saved all the time", "give a duration such as 5m, or leave it out")


def _number(text: str) -> int:
    value = whole_number(text)
    return -1 if value is None else value
