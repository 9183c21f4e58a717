"""Kueue's Configuration as a file: one document, decoded as strictly as Kueue does.

A fault prints as `file:line: field.path: problem; remedy`. All faults are reported at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import CONFIGURATION, kind_info
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY
from batchyard.api.yaml_documents import DocumentLines, read_documents

_INFO: Final = kind_info(CONFIGURATION)
_EXAMPLE: Final = f"write apiVersion: {_INFO.api_version} and kind: Configuration first"
#: Fields that enable features in v1beta1, each with its replacement.
_SWITCHES: Final = {
    "waitForPodsReady.enable": f"it is on without a word; featureGates: {{{DISABLE_WAIT_FOR_PODS_READY}: true}} turns "
    "it off",
    "fairSharing.enable": "fairSharing with its preemptionStrategies is on, and without fairSharing it is off",
}


class InvalidConfiguration(Exception):  # noqa: N818 - named like the API's Invalid
    """The text is not a valid Configuration; the message has one line for each fault."""


def read_configuration(name: str, text: str) -> Obj:
    """Return the Configuration in a text, in its storage version with all defaults; `name` is shown in errors.

    InvalidConfiguration with every fault.
    """
    documents = list(read_documents(text))
    if len(documents) != 1:
        problem = "the file is empty" if not documents else f"it has {len(documents)} documents"
        raise InvalidConfiguration(f"{name}: {problem}; {_EXAMPLE}, in one document")
    document = documents[0]
    found, errors = (None, document.faults) if document.faults else _decoded(document.value)
    if found is None or errors:
        lines = DocumentLines(document.text, document.line)
        raise InvalidConfiguration("\n".join(f"{name}:{lines.of(error.path)}: {error}" for error in errors))
    return found


def completed(configuration: Obj) -> Obj:
    """Return a valid partial Configuration with all defaults."""
    found, errors = _decoded(configuration)
    if found is None:
        raise InvalidConfiguration("; ".join(map(str, errors)))
    return found


def _decoded(value: Any) -> tuple[Obj | None, Sequence[FieldError]]:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind is not None and kind != _INFO.kind:
        return None, [FieldError("kind", f"this is a {kind}, and no Configuration of Kueue", _EXAMPLE)]
    decoded = decode(value)
    if decoded.obj is not None and group_kind(decoded.obj) != CONFIGURATION:
        return None, [FieldError("apiVersion", "this is no Configuration of Kueue", _EXAMPLE)]
    return decoded.obj, list(_in_words(decoded.faults))


def _in_words(faults: Sequence[FieldError]) -> Iterator[FieldError]:
    """Replace the remedies of fields that v1beta1 had: they are not misspellings."""
    for fault in faults:
        remedy = _SWITCHES.get(fault.path)
        yield fault if remedy is None else fault._replace(remedy=f"v1beta2 has no such switch: {remedy}")
