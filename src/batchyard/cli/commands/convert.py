"""The command `batchyard convert`: prints manifests with objects of Kueue's v1beta1 converted to v1beta2."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from batchyard.api import conversion, scheme
from batchyard.api.manifests import objects_with_paths
from batchyard.api.meta import Obj, with_path
from batchyard.api.schema import validate_and_default
from batchyard.api.yaml_documents import Document, read_documents
from batchyard.cli import output
from batchyard.cli.output import render_yaml
from batchyard.sim.scenario import FileFault, read_sources

#: The converted API versions, each with the one that Kueue 0.20 serves.
_CONVERTED_VERSIONS: Final = {
    conversion.OLD_API_VERSION: conversion.STORAGE_API_VERSION,
    conversion.CONFIGURATION_OLD_API_VERSION: conversion.CONFIGURATION_STORAGE_API_VERSION,
}
_COMMENT_PATTERN: Final = re.compile(r"^[ \t]*#|\s#\s", re.MULTILINE)
_DROPPED_CONFIGURATION_FIELDS: Final = ("queueVisibility", "integrations.podOptions")


class ConvertedDocument(NamedTuple):
    """The text of a document in v1beta2, remarks about what the conversion lost, and errors."""

    text: str
    remarks: Sequence[str] = ()
    errors: Sequence[str] = ()


def convert_text(source: str, text: str) -> Iterator[ConvertedDocument]:
    """Convert each document of a file; documents without objects of v1beta1 keep their text, with its comments.

    A document with errors keeps its text too.
    """
    for document in read_documents(text):
        if document.faults:
            errors = [f"{source}:{document.line}: {error}" for error in document.faults]
            yield ConvertedDocument(document.text, errors=errors)
        elif any(_converted_version(obj) for obj, _ in objects_with_paths(document.value)):
            yield _convert_document(source, document)
        else:
            yield ConvertedDocument(document.text)


def _convert_document(source: str, document: Document) -> ConvertedDocument:
    remarks: list[str] = []
    errors: list[str] = []
    value = document.value
    for obj, path in objects_with_paths(document.value):
        if not _converted_version(obj):
            continue
        name = f"{source}:{document.line}: {obj.get('kind')}/{(obj.get('metadata') or {}).get('name', '')}"
        served_kind = scheme.find_kind(obj["apiVersion"], obj.get("kind") or "")
        if served_kind is None:
            errors.append(f"{name}: {obj['apiVersion']} has no kind {obj.get('kind')}; correct kind or apiVersion")
            continue
        named_obj = {"metadata": {"name": "kueue"}, **obj} if served_kind.constant == scheme.CONFIGURATION else obj
        faults = validate_and_default(served_kind, obj["apiVersion"].rpartition("/")[2], named_obj).faults
        errors += [f"{name}: {fault}" for fault in faults]
        if not faults:
            new, lost_fields = _convert_object(obj)
            remarks += [f"{name}: v1beta2 has no field {field}: its value is lost" for field in lost_fields]
            value = new if not path else _with_item(value, path, new)
    if errors:
        return ConvertedDocument(document.text, errors=errors)
    if _COMMENT_PATTERN.search(document.text):
        remarks.append(f"{source}:{document.line}: the comments of this document are lost")
    return ConvertedDocument(render_yaml(value), remarks)


def _converted_version(obj: Any) -> str:
    api_version = obj.get("apiVersion") if isinstance(obj, Mapping) else None
    return _CONVERTED_VERSIONS.get(api_version, "") if isinstance(api_version, str) else ""


def _convert_object(obj: Obj) -> tuple[Obj, list[str]]:
    """Return the object in v1beta2, and the paths of the fields that v1beta2 cannot represent."""
    if obj["apiVersion"] == conversion.CONFIGURATION_OLD_API_VERSION:
        new = conversion.to_storage(obj)
        return new, [
            path for path in _DROPPED_CONFIGURATION_FIELDS if _has_field(obj, path) and not _has_field(new, path)
        ]
    new = conversion.to_storage(obj)
    annotations = dict((new.get("metadata") or {}).get("annotations") or {})
    if annotations.pop(conversion.OLD_ONLY_ANNOTATION, None) is not None:  # for a conversion back by batchyard
        new = with_path(new, ("metadata", "annotations"), annotations or None)
    return new, conversion.lost_fields(obj)


def _has_field(obj: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(obj, Mapping) or name not in obj:
            return False
        obj = obj[name]
    return True


def _with_item(value: Obj, path: str, new: Obj) -> Obj:
    """Return a List in which the item at a path such as `items[0]` is replaced."""
    index = int(path.partition("[")[2].partition("]")[0])
    items = list(value["items"])
    items[index] = new
    return {**value, "items": items}


def _without_blank_ends(text: str) -> str:
    return text.strip("\n").rstrip()


def convert(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ],
) -> None:
    """Print manifests with Kueue's v1beta1, which Kueue 0.20 refuses, converted to v1beta2.

    Converted documents lose their comments; the other documents are printed unchanged. Messages on standard error name
    the lost fields. Exits with 1 if a document is invalid.
    """
    file_faults: list[FileFault] = []
    documents = [each for source, text in read_sources(paths, file_faults) for each in convert_text(source, text)]
    output.write("---\n".join(f"{_without_blank_ends(document.text)}\n" for document in documents))
    for line in [remark for document in documents for remark in document.remarks]:
        output.report_line(f"batchyard: {line}")
    errors = [*map(str, file_faults), *(error for document in documents for error in document.errors)]
    if errors:
        output.fail("\n".join(errors))
