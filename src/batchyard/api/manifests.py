"""Reads manifests, which are YAML or JSON files of objects, and reports each error with file, line and field.

An error prints as `file:line kind/name: field.path: problem; remedy`. Lines are counted from 1 in the file. The line is
that of the field, or of its closest parent that the file has.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import conversion, defaults, schema, scheme, validation, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, controller_of, group_kind, label
from batchyard.api.schema import validate_and_default
from batchyard.api.schema.violations import STRICT_EDIT_RATIO, find_nearest_name, format_value
from batchyard.api.scheme import CONFIGURATION, JOB, JOB_SET, KINDS, ServedKind, find_kind
from batchyard.api.validation import NO_DISABLED_GATES, DisabledGates
from batchyard.api.validation.rules import metadata_errors
from batchyard.api.yaml_documents import Document, DocumentLines, read_documents

# Decoding of user-supplied objects into stored form. All errors are reported at once.
#
# The steps, in order: look up the kind; validate the structure in the given version and fill in defaults; convert to
# the storage version and fill in its defaults; apply the webhooks' defaults; validate rules between fields.


DEFAULT_NAMESPACE: Final = "default"
#: Kinds that are read from files without metadata, each with the object name that it gets.
_DEFAULT_NAME_BY_KIND: Final = {CONFIGURATION: "kueue"}
#: The number of specs and annotations that are kept while manifests are read, for objects of equal content.
_SHARED_PARTS_MAX: Final = 65536


class DecodedObject(NamedTuple):
    """The result of decoding: the object in its storage version (None if there are errors), errors, and warnings."""

    obj: dict[str, Any] | None
    faults: list[FieldError]
    warnings: list[str]


def decode(
    obj: Any,
    namespace: str = DEFAULT_NAMESPACE,
    disabled_gates: DisabledGates = NO_DISABLED_GATES,
    job_kinds: Collection[ServedKind] = (),
) -> DecodedObject:
    """Decode and validate a new object; a namespaced object without a namespace gets `namespace`.

    `obj` is not changed. The decoded object has all defaults and is in its storage version. `disabled_gates` are the
    disabled feature gates of Kueue that validation obeys. `job_kinds` are custom kinds of jobs, whose objects have no
    schema here.
    """
    if job_kinds and (custom_kind := _custom_kind_of(obj, job_kinds)) is not None:
        return _decode_custom_job(obj, custom_kind, namespace)
    decoded_object = decode_unvalidated(obj, namespace)
    if decoded_object.obj is None:
        return decoded_object
    errors = validation.validate(decoded_object.obj, disabled_gates)
    return DecodedObject(None if errors else decoded_object.obj, errors, decoded_object.warnings)


def _custom_kind_of(obj: Any, job_kinds: Collection[ServedKind]) -> ServedKind | None:
    if not isinstance(obj, Mapping):
        return None
    names = obj.get("apiVersion"), obj.get("kind")
    return next((each for each in job_kinds if (each.api_version, each.kind) == names), None)


def _decode_custom_job(obj: dict[str, Any], custom_kind: ServedKind, namespace: str) -> DecodedObject:
    for name in ("metadata", "spec"):
        if not isinstance(obj.get(name), Mapping):
            return DecodedObject(None, [FieldError(name, "must be an object", f"write the fields of {name}")], [])
    job = _with_namespace_scope(custom_kind, obj, namespace, [])
    errors = schema.validate("ObjectMeta", job["metadata"])
    errors = [error._replace(path=f"metadata.{error.path}") for error in errors] or list(metadata_errors(job))
    return DecodedObject(None if errors else job, errors, [])


def decode_unvalidated(obj: Any, namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
    """Decode an object and check its schema, but not the rules of its kind, which differ between creation and update.

    `valid_obj` is an already validated object of the same kind in its storage version. Parts of `obj` that are the same
    Python objects in `valid_obj` are not validated again.
    """
    kind_or_faults = _served_kind_or_faults(obj)
    if isinstance(kind_or_faults, list):
        return DecodedObject(None, kind_or_faults, [])
    served_kind, version = kind_or_faults
    if served_kind.constant in _DEFAULT_NAME_BY_KIND and "metadata" not in obj:
        obj = {**obj, "metadata": {"name": _DEFAULT_NAME_BY_KIND[served_kind.constant]}}
    warnings = [served_kind.deprecation] if version in served_kind.deprecated_versions else []
    if served_kind.is_idle:
        warnings.append(f"{served_kind.kind} objects are stored, but batchyard has no controller that acts on them")
    schema_result = validate_and_default(served_kind, version, obj, valid_obj)
    if schema_result.obj is None:
        return DecodedObject(None, [*schema_result.faults, *_metadata_errors(obj, schema_result.faults)], warnings)
    stored_object = schema_result.obj
    if version != served_kind.storage_version:
        schema_result = validate_and_default(
            served_kind, served_kind.storage_version, conversion.to_storage(stored_object)
        )
        if schema_result.obj is None:
            return DecodedObject(None, schema_result.faults, warnings)
        stored_object = schema_result.obj
    stored_object = _with_namespace_scope(served_kind, stored_object, namespace, warnings)
    warnings += _queue_name_warnings(served_kind, stored_object)
    return DecodedObject(defaults.with_defaults(stored_object), [], warnings)


def _served_kind_or_faults(obj: Any) -> tuple[ServedKind, str] | list[FieldError]:
    if not isinstance(obj, Mapping):
        return [FieldError("", f"{format_value(obj)} is not an object", "write apiVersion, kind, metadata and spec")]
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str) or not api_version or not kind:
        return _kind_errors(api_version, kind)
    served_kind = find_kind(api_version, kind)
    return (served_kind, api_version.rpartition("/")[2]) if served_kind else [_unknown_kind_error(api_version, kind)]


def _kind_errors(api_version: object, kind: object) -> list[FieldError]:
    value_by_required_field = {
        "apiVersion": (api_version, _api_version_remedy(kind)),
        "kind": (kind, "set the field to the kind of the object, such as Job"),
    }
    errors = []
    for name, (value, remedy) in value_by_required_field.items():
        if value is None or value == "":
            errors.append(FieldError(name, "Required value", remedy))
        elif not isinstance(value, str):
            errors.append(FieldError(name, f"Invalid value: {format_value(value)}: must be a string", remedy))
    return errors


def _api_version_remedy(kind: object) -> str:
    served_kind = _served_kinds_by_name().get(str(kind))
    return (
        f"set the field to {served_kind.api_version}"
        if served_kind
        else "set the field to group/version, such as batch/v1"
    )


def _unknown_kind_error(api_version: str, kind: str) -> FieldError:
    served_kind = _served_kinds_by_name().get(kind)
    if served_kind is not None:
        remedy = "use " + " or ".join(
            served_kind.api_version_for(version) for version in reversed(served_kind.versions)
        )
        return FieldError("apiVersion", f"{format_value(api_version)} has no kind {format_value(kind)}", remedy)
    nearest_kind = find_nearest_name(kind, _served_kinds_by_name(), STRICT_EDIT_RATIO)
    if nearest_kind:
        remedy = f"did you mean {nearest_kind} ({_served_kinds_by_name()[nearest_kind].api_version})?"
    else:
        remedy = "check kind and apiVersion, or remove the document"
    return FieldError("kind", f"the kind {format_value(kind)} of {format_value(api_version)} is not known", remedy)


@cache
def _served_kinds_by_name() -> dict[str, ServedKind]:
    return {served_kind.kind: served_kind for served_kind in KINDS}


def _with_namespace_scope(
    served_kind: ServedKind, obj: dict[str, Any], namespace: str, warnings: list[str]
) -> dict[str, Any]:
    """Return the object with a missing namespace added or, if its kind is cluster-scoped, the namespace removed.

    For a removed namespace that is not empty, add a warning to `warnings`.
    """
    metadata = obj["metadata"]
    sent_namespace = metadata.get("namespace")
    if served_kind.namespaced:
        return obj if sent_namespace else {**obj, "metadata": {**metadata, "namespace": namespace}}
    if sent_namespace is None:
        return obj
    if sent_namespace:
        warnings.append(
            f"metadata.namespace: {served_kind.kind} is cluster-scoped; the namespace {sent_namespace} is ignored"
        )
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "namespace"}}


def _queue_name_warnings(served_kind: ServedKind, obj: Obj) -> Iterator[str]:
    queue = annotation(obj, well_known.QUEUE_NAME) if served_kind.constant in {JOB, JOB_SET} else None
    if queue and not label(obj, well_known.QUEUE_NAME):
        yield (
            f"metadata.annotations[{well_known.QUEUE_NAME}]: the annotation is ignored, so the {served_kind.kind} "
            f"has no queue; set the label {well_known.QUEUE_NAME}: {queue}"
        )


def _metadata_errors(obj: Obj, errors: list[FieldError]) -> list[FieldError]:
    if any(fault.path.startswith("metadata") for fault in errors):
        return []
    return list(metadata_errors(obj))


_KIND_LINE_PATTERN: Final = re.compile(r"^kind:[ \t]*[\"']?(\w+)", re.MULTILINE)
#: The pattern can match each line in one way only, which prevents catastrophic backtracking.
_NAME_LINE: Final = re.compile(r"(?m)^metadata:.*\n(?:[ \t]*\n|[ \t]+[^ \t\n].*\n)*?[ \t]+name:[ \t]*[\"']?([\w.-]+)")


class ManifestFault(NamedTuple):
    """An error or warning about a document of a manifest file. `kind` and `name` are empty if they are unknown."""

    source: str
    document: int
    kind: str
    name: str
    error: FieldError
    #: The line numbers of the document; None if its text is not known.
    lines: DocumentLines | None = None
    #: The path in the document if the object is an item of a List and the error's path is one in the item; else ''.
    item_path: str = ""

    def __str__(self) -> str:
        """Return `file:line kind/name: field.path: problem; remedy` on one line, without unknown parts."""
        words = "/".join(filter(_is_printable_word, (self.kind, self.name)))
        object_text = f" {words}" if words else ""
        if self.lines is None:
            return _text_on_one_line(f"{self.source}{object_text}: {self.error}")
        line, error = self.lines.locate(self.error, self.item_path)
        return _text_on_one_line(f"{self.source}:{line}{object_text}: {error}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid object with all defaults in its storage version, with its manifest's file name and document number."""

    obj: dict[str, Any]
    source: str
    document: int
    #: The path in the document if the object is an item of a List, such as `items[0]`; else ''.
    item_path: str = ""
    #: The line numbers of the document; None if its text is not known.
    lines: DocumentLines | None = field(default=None, compare=False)

    def location(self, path: str = "") -> str:
        """Return the `file:line` of the field at `path` (empty: the object); only the file if the line is unknown."""
        line = 0 if self.lines is None else self.lines.line_of(".".join(filter(None, (self.item_path, path))))
        return f"{self.source}:{line}" if line else self.source

    def fault(self, error: FieldError) -> ManifestFault:
        """Return the ManifestFault for an error in this object."""
        kind, name = self.obj["kind"], _name_text(self.obj)
        return ManifestFault(self.source, self.document, kind, name, error, self.lines, self.item_path)


class InvalidDocument(NamedTuple):
    """An invalid object as written, with its file name, its document number and its path in the document."""

    value: Any
    source: str
    document: int
    item_path: str


@dataclass(slots=True)
class Manifests:
    """The result of reading manifests: the valid objects in order, the invalid objects, the errors and the warnings."""

    objects: list[Manifest] = field(default_factory=list)
    faults: list[ManifestFault] = field(default_factory=list)
    #: The warnings, each with its file, line and object.
    located_warnings: list[ManifestFault] = field(default_factory=list)
    #: The invalid objects, as written.
    invalid_documents: list[InvalidDocument] = field(default_factory=list)
    #: The text and the first line number of each document, by file name and document number.
    texts: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    #: The disabled feature gates that the validation of the objects obeyed.
    disabled_gates: DisabledGates = NO_DISABLED_GATES
    #: The custom kinds of jobs in the manifests.
    job_kinds: Sequence[ServedKind] = ()

    @property
    def warnings(self) -> list[str]:
        """Return the warnings about the manifests, each as one line of text."""
        return list(map(str, self.located_warnings))


def is_deprecation(warning: str) -> bool:
    """Return whether a warning about a manifest reports that its API version is deprecated."""
    return warning.endswith(tuple(served_kind.deprecation for served_kind in KINDS if served_kind.deprecation))


def read_manifests(sources: Iterable[tuple[str, str]]) -> Manifests:
    """Read manifests from pairs of file name and text. Errors in the manifests are part of the result.

    A List is read as the objects in its items. The feature gates of a Configuration or a Scenario in the manifests
    apply to the validation of all objects.
    """
    texts = list(sources)
    manifests = Manifests(
        disabled_gates=_disabled_gates(text for _, text in texts),
        job_kinds=_custom_job_kinds([text for _, text in texts]),
    )
    shared_parts: dict[bytes, Obj] = {}
    for source, text in texts:
        for document in read_documents(text):
            _read_document(source, document, manifests, shared_parts)
    return manifests


def _custom_job_kinds(texts: Sequence[str]) -> Sequence[ServedKind]:
    """Return the custom kinds that the texts use: jobs that batchyard or JobKinds describe, and their references."""
    known_kinds = [*scheme.DESCRIBED_KINDS.values(), *scheme.REFERENCED_KINDS.values()]
    groups = {info.group for info in known_kinds}
    has_known_kinds = any(group in text for group in groups for text in texts)
    job_kinds = known_kinds if has_known_kinds else []
    for text in texts:
        if "JobKind" not in text:
            continue
        for document in read_documents(text):
            for obj, _ in objects_with_paths(document.value):
                if isinstance(obj, Mapping) and obj.get("kind") == "JobKind":
                    job_kinds += _described_kinds(obj.get("spec"))
    return job_kinds


def _described_kinds(spec: Any) -> Sequence[ServedKind]:
    values = [spec.get(name) for name in ("kind", "group", "version", "resource")] if isinstance(spec, Mapping) else []
    names = [value for value in values if isinstance(value, str) and value]
    return [scheme.custom_job_kind(*names)] if len(names) == 4 else []


def _disabled_gates(texts: Iterable[str]) -> DisabledGates:
    """Return the feature gates that validation obeys and that a Configuration or a Scenario disables."""
    gates: dict[str, Any] = {}
    for text in texts:
        if any(name in text for name in well_known.VALIDATION_GATES):
            values = [document.value for document in read_documents(text)]
            for obj, _ in chain.from_iterable(objects_with_paths(value) for value in values):
                kind = obj.get("kind") if isinstance(obj, Mapping) else None
                fields = obj if kind == "Configuration" else obj.get("spec") if kind == "Scenario" else None
                set_gates = fields.get("featureGates") if isinstance(fields, Mapping) else None
                gates |= set_gates if isinstance(set_gates, Mapping) else {}
    return frozenset([name for name in well_known.VALIDATION_GATES if gates.get(name) is False])


def _read_document(source: str, document: Document, manifests: Manifests, shared_parts: dict[bytes, Obj]) -> None:
    document_number = document.number
    manifests.texts[source, document_number] = document.text, document.line
    lines = DocumentLines(document.text, document.line)
    if document.faults:
        kind, name = _kind_and_name(document)
        manifests.faults += [
            ManifestFault(source, document_number, kind, name, error, lines) for error in document.faults
        ]
        if document.value is None:
            return
    for obj, item_path in objects_with_paths(document.value):
        decoded_object = decode(obj, disabled_gates=manifests.disabled_gates, job_kinds=manifests.job_kinds)
        if decoded_object.obj is not None and not document.faults:
            shared_obj = _with_shared_parts(decoded_object.obj, shared_parts)
            manifests.objects.append(Manifest(shared_obj, source, document_number, item_path, lines))
        else:
            manifests.invalid_documents.append(InvalidDocument(obj, source, document_number, item_path))
        if decoded_object.obj is not None and not decoded_object.warnings:
            continue
        kind, name = _kind_text(obj), _name_text(obj)
        for error in decoded_object.faults:
            located_error = error._replace(path=".".join(filter(None, (item_path, error.path))))
            manifests.faults.append(ManifestFault(source, document_number, kind, name, located_error, lines))
        for warning in decoded_object.warnings:
            error = FieldError(item_path, warning)
            manifests.located_warnings.append(ManifestFault(source, document_number, kind, name, error, lines))


def _with_shared_parts(obj: dict[str, Any], shared_parts: dict[bytes, Obj]) -> dict[str, Any]:
    """Return an object that shares its spec, its annotations and short texts with earlier objects of equal content.

    `shared_parts` holds specs and annotations by content. Loads of many Workloads differ in their names only, and these
    parts are more than half of their memory.
    """
    metadata = obj["metadata"]
    if len(shared_parts) >= _SHARED_PARTS_MAX:
        shared_parts.clear()
    if annotations := metadata.get("annotations"):
        metadata = {**metadata, "annotations": shared_parts.setdefault(msgspec.json.encode(annotations), annotations)}
    if namespace := metadata.get("namespace"):
        metadata = {**metadata, "namespace": sys.intern(namespace)}
    shared_obj = {**obj, "apiVersion": sys.intern(obj["apiVersion"]), "kind": sys.intern(obj["kind"])}
    shared_obj["metadata"] = metadata
    if spec := obj.get("spec"):
        shared_obj["spec"] = shared_parts.setdefault(msgspec.json.encode(spec), spec)
    return shared_obj


def objects_with_paths(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield the objects of a YAML document, each with its path: `items[0]` in a List, or '' for a single object."""
    if not _is_list_object(value):
        yield value, ""
        return
    kind = value["kind"]
    item_type = {"apiVersion": value["apiVersion"], "kind": kind.removesuffix("List")} if kind != "List" else {}
    for index, item in enumerate(value["items"]):
        yield {**item_type, **item} if isinstance(item, Mapping) else item, f"items[{index}]"


def _is_list_object(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("items"), list):
        return False
    kind, api_version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return False
    return kind == "List" or (kind.endswith("List") and find_kind(api_version, kind.removesuffix("List")) is not None)


def _kind_and_name(document: Document) -> tuple[str, str]:
    if document.value is not None:
        return _kind_text(document.value), _name_text(document.value)
    kind, name = _KIND_LINE_PATTERN.search(document.text), _NAME_LINE.search(document.text)
    return kind[1] if kind else "", name[1] if name else ""


def _kind_text(obj: Any) -> str:
    kind = obj.get("kind") if isinstance(obj, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _name_text(obj: Any) -> str:
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    if not isinstance(metadata, Mapping):
        return ""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return name
    if isinstance(name, int | float):
        return format_value(name)
    return f"{prefix}*" if isinstance(prefix, str) and prefix else ""


def _is_printable_word(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text


def _text_on_one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Conversion of objects that an API server stored to the manifests that users wrote.
#
# `kubectl get --output yaml` prints stored objects: with a status, and with fields of the server and of controllers.


#: kubectl's annotation with the manifest that it applied last.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KEPT_METADATA: Final = ("name", "namespace", "labels", "annotations")
#: The labels and annotations that the Job controller and Kueue add to pod templates.
_INJECTED_KEYS: Final = frozenset(
    {
        *("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
        *(well_known.POD_SET, well_known.LOCAL_QUEUE, well_known.CLUSTER_QUEUE, well_known.WORKLOAD),
    }
)


def as_user_manifest(obj: Obj) -> dict[str, Any]:
    """Return a stored object without its status (except a Node's) and without metadata that the server sets.

    A JobSet, and a Job without `manualSelector`, also lose `suspend` and the pod labels that controllers add.
    """
    kind = group_kind(obj)
    metadata = {field: obj["metadata"][field] for field in _KEPT_METADATA if obj["metadata"].get(field)}
    all_annotations: Mapping[str, str] = metadata.pop("annotations", None) or {}
    annotations = {name: text for name, text in all_annotations.items() if name != LAST_APPLIED}
    manifest = {field: value for field, value in obj.items() if field != "status" or kind == scheme.NODE}
    if kind == scheme.JOB:
        manifest["spec"] = _user_job_spec(obj["spec"])
    elif kind == scheme.JOB_SET:
        manifest["spec"] = _user_job_set_spec(obj["spec"])
    return {**manifest, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def as_user_manifests(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield manifests, with each stored object converted to the manifest that a user wrote.

    A stored object whose controller is in the manifests is left out, such as the Workload of a Job.
    """
    identities = {_identity_of(each.obj["kind"], each.obj, each.obj["metadata"].get("name")) for each in manifests}
    for manifest in manifests:
        obj = manifest.obj
        if not obj["metadata"].get("resourceVersion"):
            yield manifest
            continue
        owner = controller_of(obj)
        if owner is None or _identity_of(owner["kind"], obj, owner["name"]) not in identities:
            yield replace(manifest, obj=as_user_manifest(obj))


def _identity_of(kind: str, obj: Obj, name: str | None) -> tuple[str, str, str | None]:
    return kind, obj["metadata"].get("namespace") or "", name


def _user_job_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    if spec.get("manualSelector"):
        return dict(spec)
    kept_fields = {name: value for name, value in spec.items() if name not in {"selector", "suspend"}}
    return {**kept_fields, "template": _user_pod_template(spec["template"])}


def _user_job_set_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    replicated_jobs = []
    for replicated_job in spec.get("replicatedJobs") or ():
        job = replicated_job["template"]
        job_spec = {**job["spec"], "template": _user_pod_template(job["spec"]["template"])}
        replicated_jobs.append({**replicated_job, "template": {**job, "spec": job_spec}})
    return {**{name: value for name, value in spec.items() if name != "suspend"}, "replicatedJobs": replicated_jobs}


def _user_pod_template(template: Obj) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    for name in ("labels", "annotations"):
        if name in metadata:
            metadata[name] = {key: text for key, text in (metadata[name] or {}).items() if key not in _INJECTED_KEYS}
    return {**template, "metadata": metadata}
