"""The attributes of a write request that admission webhooks and policies see."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.apiserver.request import StatusError, UserInfo
from batchyard.apiserver.resources import ResourcePath

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
CONNECT: Final = "CONNECT"


class AdmissionAttributes(NamedTuple):
    """One write request. Source: k8s.io/apiserver, pkg/admission/attributes.go."""

    operation: str
    #: The resource, its requested version, the subresource, the Namespace ("" if none), and the name ("" if generated).
    path: ResourcePath
    #: The new object in the version of the request; None for DELETE.
    obj: Mapping[str, Any] | None
    #: The stored object in the version of the request; None for CREATE.
    old_object: Mapping[str, Any] | None
    #: CreateOptions, UpdateOptions, PatchOptions or DeleteOptions with their kind and apiVersion.
    options: Mapping[str, Any]
    user: UserInfo
    dry_run: bool


class PolicyVerdict(NamedTuple):
    """What the ValidatingAdmissionPolicies decide about a request."""

    #: The error that denies the request; None if it is allowed.
    error: StatusError | None
    warnings: tuple[str, ...] = ()
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = {}
