"""Rules of Instances and ResizeRequests: what was asked of the cloud is not changed, but given up."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, node_pool

_REMEDY: Final = "delete the object and create it anew"


def instance_faults(instance: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of an Instance."""
    spec = instance.get("spec") or {}
    yield from metadata.metadata_faults(instance)
    yield from node_pool.run_duration_faults(spec, "spec")
    if spec.get("resizeRequest") and spec.get("provisioning", "standard") != "queued":
        message = "only queued instances come with a ResizeRequest"
        yield faults.forbidden("spec.resizeRequest", message, "drop it, or set spec.provisioning to queued")


def resize_request_faults(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ResizeRequest."""
    spec = request.get("spec") or {}
    yield from metadata.metadata_faults(request)
    yield from node_pool.run_duration_faults({**spec, "provisioning": "queued"}, "spec")
    wanted = spec.get("provisioningRequest")
    if wanted is not None and not all(wanted.partition("/")):
        message = "must be the namespace and the name of a ProvisioningRequest"
        yield faults.invalid("spec.provisioningRequest", wanted, message, "write it as namespace/name")


def instance_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Instance: what it asks for stays."""
    yield from instance_faults(new)
    if new.get("spec") != old.get("spec"):
        yield faults.broken_rule("spec", "object", faults.IMMUTABLE, _REMEDY)


def resize_request_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ResizeRequest: what it asks for stays."""
    yield from resize_request_faults(new)
    if new.get("spec") != old.get("spec"):
        yield faults.broken_rule("spec", "object", faults.IMMUTABLE, _REMEDY)
