"""New objects of the controllers in this package: schema, defaults and rules as for objects of clients.

The definitions accept any pod template, and the client of the controllers checks no schemas.
"""

from typing import Any, Final

import msgspec

from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.manifests import decode
from batchyard.api.meta import Obj, controller_of, group_kind
from batchyard.api.schema import validate
from batchyard.interfaces.client import Reader

#: The most pods of one job that one reconcile creates: their environment may contain the addresses of all pods.
CREATED_MAX: Final = 100


def complete_object(manifest: Obj) -> Obj:
    """Return a new object with the defaults of its kind. Raises InvalidObject if it violates the rules of its kind."""
    decoded = decode(manifest, manifest["metadata"]["namespace"])
    if decoded.obj is None:
        raise InvalidObject(decoded.faults)
    return decoded.obj


def convert_fields(value: Any, expected_type: type[Any], path: str, error_type: type[Exception]) -> Any:
    """Return a value as a structure of `expected_type`. Raises `error_type`, whose message begins with `path`."""
    try:
        return msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        message, _, field = str(error).partition(" - at `$")
        raise error_type(f"{path}{field.rstrip('`')}: Invalid value: {message}") from error


def template_errors(template: Obj, path: str) -> list[FieldError]:
    """Return the structural errors of a pod template at the path `path` of a job."""
    return [error._replace(path=f"{path}.{error.path}") for error in validate("PodTemplateSpec", template)]


def controlled_by(owner: Obj, kind: str, reader: Reader) -> list[Obj]:
    """Return the objects of a kind, such as POD, that `owner` controls, sorted by name."""
    uid = owner["metadata"]["uid"]
    dependents = reader.owned_by(uid, owner["metadata"].get("namespace", ""))
    return [obj for obj in dependents if group_kind(obj) == kind and (controller_of(obj) or {}).get("uid") == uid]
