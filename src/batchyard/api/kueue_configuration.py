"""Reads Kueue's Configuration from a YAML file with one document, as strictly as Kueue does.

An error prints as `file:line: field.path: problem; remedy`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import CONFIGURATION, kind_info
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY
from batchyard.api.yaml_documents import DocumentLines, read_documents

_CONFIGURATION_KIND: Final = kind_info(CONFIGURATION)
_HEADER_REMEDY: Final = f"start the file with apiVersion: {_CONFIGURATION_KIND.api_version} and kind: Configuration"
#: Fields that enable features in v1beta1, each with the way to do it in v1beta2.
_REMEDY_BY_V1BETA1_FIELD: Final = {
    "waitForPodsReady.enable": f"waitForPodsReady is enabled by default; to disable it, set featureGates: "
    f"{{{DISABLE_WAIT_FOR_PODS_READY}: true}}",
    "fairSharing.enable": "for fair sharing, set fairSharing.preemptionStrategies; to disable it, remove fairSharing",
    "integrations.podOptions": "to select the Namespaces of pods, set managedJobsNamespaceSelector",
}


class InvalidConfiguration(Exception):  # noqa: N818 - named like the API's Invalid
    """A text or object is not a valid Kueue Configuration; the message lists the errors."""


def read_configuration(file_name: str, text: str) -> Obj:
    """Parse a Kueue Configuration and return it with all defaults, in its storage version (v1beta2).

    `file_name` is the file name in error messages. Raises InvalidConfiguration if the text is invalid.
    """
    documents = list(read_documents(text))
    if len(documents) != 1:
        problem = f"the file is empty; {_HEADER_REMEDY}"
        if documents:
            problem = f"the file has {len(documents)} YAML documents, not one; keep only the Configuration"
        raise InvalidConfiguration(f"{file_name}: {problem}")
    document = documents[0]
    configuration, errors = (None, document.faults) if document.faults else _decode_configuration(document.value)
    if configuration is None or errors:
        lines = DocumentLines(document.text, document.line)
        located_errors = map(lines.locate, errors)
        raise InvalidConfiguration("\n".join(f"{file_name}:{line}: {error}" for line, error in located_errors))
    return configuration


def has_pod_options(text: str) -> bool:
    """Return whether a Configuration of v1beta1 sets `integrations.podOptions`, which Kueue ignores since 0.15."""
    if "podOptions" not in text:
        return False
    values = [document.value for document in read_documents(text) if not document.faults]
    integrations = [value.get("integrations") for value in values if isinstance(value, dict)]
    return any(isinstance(each, dict) and each.get("podOptions") for each in integrations)


def complete_configuration(configuration: Obj) -> Obj:
    """Return a Kueue Configuration in its storage version with all defaults; raise InvalidConfiguration if invalid."""
    complete_obj, errors = _decode_configuration(configuration)
    if complete_obj is None:
        raise InvalidConfiguration("; ".join(map(str, errors)))
    return complete_obj


def _decode_configuration(configuration_value: Any) -> tuple[Obj | None, Sequence[FieldError]]:
    kind = configuration_value.get("kind") if isinstance(configuration_value, dict) else None
    if kind is not None and kind != _CONFIGURATION_KIND.kind:
        return None, [FieldError("kind", f"{kind} is not the kind of a Kueue Configuration", _HEADER_REMEDY)]
    decoded_object = decode(configuration_value)
    if decoded_object.obj is not None and group_kind(decoded_object.obj) != CONFIGURATION:
        return None, [FieldError("apiVersion", "this is not the apiVersion of a Kueue Configuration", _HEADER_REMEDY)]
    return decoded_object.obj, list(_with_v1beta1_remedies(decoded_object.faults))


def _with_v1beta1_remedies(errors: Sequence[FieldError]) -> Iterator[FieldError]:
    for fault in errors:
        remedy = _REMEDY_BY_V1BETA1_FIELD.get(fault.path)
        yield fault if remedy is None else fault._replace(remedy=f"v1beta2 does not have this field: {remedy}")
