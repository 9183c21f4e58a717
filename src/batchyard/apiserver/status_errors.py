"""API errors in Kubernetes' wording. Source: k8s.io/apimachinery, pkg/api/errors."""

from collections.abc import Sequence
from typing import Final

from batchyard.api.errors import ApiError, Conflict, FieldError, Forbidden, InvalidObject, NotFound
from batchyard.apiserver.request import StatusError, causes_of
from batchyard.apiserver.resources import ResourcePath
from batchyard.interfaces.client import Create, Write


def refusal(error: ApiError, write: Write, path: ResourcePath, name: str) -> StatusError:
    """Convert an error of a write to an API error."""
    match error:
        case NotFound() if isinstance(write, Create):  # the missing object is the Namespace
            about = {"name": write.obj["metadata"].get("namespace", ""), "kind": "namespaces"}
            return StatusError(404, "NotFound", str(error), about)
        case NotFound():
            return not_found(path)
        case Conflict() if isinstance(write, Create):
            return StatusError(
                409, "AlreadyExists", f'{path.resource.title} "{name}" already exists', details(path, name)
            )
        case Conflict():
            return conflict(path, name)
        case InvalidObject():
            return invalid(error, path, name)
        case Forbidden():
            return StatusError(403, "Forbidden", str(error), details(path, name))
    return StatusError(500, error.reason, str(error))


def not_found(path: ResourcePath) -> StatusError:
    """Return the 404 error of a missing object."""
    return StatusError(404, "NotFound", f'{path.resource.title} "{path.name}" not found', details(path, path.name))


_MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(path: ResourcePath, name: str, reported: str = _MODIFIED) -> StatusError:
    """Return the 409 error of a changed object or an unmet precondition."""
    message = f'Operation cannot be fulfilled on {path.resource.title} "{name}": {reported}'
    return StatusError(409, "Conflict", message, details(path, name))


def invalid(error: InvalidObject, path: ResourcePath, name: str) -> StatusError:
    """Return the error of an invalid object; errors of a webhook count only if the object is valid otherwise."""
    faults = tuple(fault for fault in error.faults if not fault.webhook)
    if error.faults and not faults:
        reported = _listed(error.faults)
        message = f'admission webhook "{error.faults[0].webhook}" denied the request: {reported}'
        return StatusError(403, "Forbidden", message)
    reported = _listed(faults)
    about = {"name": name, "group": path.info.group, "kind": path.info.kind, "causes": causes_of(faults)}
    message = f'{path.resource.group_kind} "{name}" is invalid: {reported}'
    return StatusError(422, "Invalid", message, {k: v for k, v in about.items() if v})


def _listed(faults: Sequence[FieldError]) -> str:
    return str(faults[0]) if len(faults) == 1 else f"[{', '.join(map(str, faults))}]"


def details(path: ResourcePath, name: str) -> dict[str, str]:
    """Return the details of a Status about an object."""
    reported = {"name": name, "group": path.info.group, "kind": path.info.plural}
    return {field: value for field, value in reported.items() if value}
