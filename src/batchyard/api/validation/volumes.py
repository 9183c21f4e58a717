"""Rules of the volumes of pods: one source each, and paths that stay within the volume.

Source: Kubernetes's pkg/apis/core/validation (ValidateVolumes).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.api.validation import names
from batchyard.api.validation import names as paths

_HOST_PATH_TYPES: Final = (
    *("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
)
_PATH_REMEDY: Final = "name the file"
_TOKEN_SECONDS_MIN: Final = 600
_TOKEN_SECONDS_MAX: Final = 2**32


def volume_faults(volumes: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Volumes have unique names and one source each."""
    seen: dict[str, None] = {}
    for i, volume in enumerate(volumes):
        at, name = f"{path}[{i}]", volume.get("name") or ""
        if not name:
            yield faults.required(f"{at}.name", "", "name the volume")
        for message in names.dns_label(name) if name else ():
            yield faults.invalid(f"{at}.name", name, message, "use lower case letters, digits and '-'")
        if name in seen:
            yield faults.duplicate(f"{at}.name", name, "give each volume a name of its own")
        seen[name] = None
        sources = [field for field, source in volume.items() if field != "name" and source is not None]
        if not sources:
            yield faults.required(at, "must specify a volume type", "say what the volume is, such as emptyDir: {}")
        for field in sources[1:]:
            message = "may not specify more than 1 volume type"
            yield faults.forbidden(f"{at}.{field}", message, f"leave one of {', '.join(sources)}")
        for field in sources[:1]:
            yield from _source_faults(field, volume[field], f"{at}.{field}")


def _source_faults(field: str, source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    match field:
        case "hostPath":
            yield from _host_path_faults(source, path)
        case "secret" | "configMap":
            name = "secretName" if field == "secret" else "name"
            if not source.get(name):
                yield faults.required(
                    f"{path}.{name}", "", f"name the {'Secret' if field == 'secret' else 'ConfigMap'}"
                )
            yield from paths.mode_faults(source.get("defaultMode"), f"{path}.defaultMode")
            yield from _item_faults(source.get("items") or (), f"{path}.items")
        case "downwardAPI":
            yield from paths.mode_faults(source.get("defaultMode"), f"{path}.defaultMode")
            for item in source.get("items") or ():
                yield from _file_faults(item, path)
        case "projected":
            yield from paths.mode_faults(source.get("defaultMode"), f"{path}.defaultMode")
            yield from _projection_faults(source.get("sources") or (), path)
        case "persistentVolumeClaim" if not source.get("claimName"):
            yield faults.required(f"{path}.claimName", "", "name the claim")


def _host_path_faults(source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    folder, kind = source.get("path") or "", source.get("type") or ""
    if not folder:
        yield faults.required(f"{path}.path", "", "name the folder of the node")
        return
    yield from paths.step_faults(folder, f"{path}.path")
    if kind not in _HOST_PATH_TYPES:
        yield faults.unsupported(f"{path}.type", kind, _HOST_PATH_TYPES)


def _item_faults(items: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Items have keys and valid paths."""
    for i, item in enumerate(items):
        at = f"{path}[{i}]"
        if not item.get("key"):
            yield faults.required(f"{at}.key", "", "name the key")
        yield from _file_faults(item, at)


def _file_faults(item: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if not item.get("path"):
        yield faults.required(f"{path}.path", "", _PATH_REMEDY)
    yield from paths.file_faults(item.get("path") or "", f"{path}.path")
    yield from paths.mode_faults(item.get("mode"), f"{path}.mode")


def _projection_faults(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Each source has one type, and no two sources write the same file."""
    files: set[str] = set()
    for i, source in enumerate(sources):
        at = f"{path}.sources[{i}]"
        given = [field for field, part in source.items() if part is not None]
        for field in given[1:]:
            yield faults.forbidden(f"{at}.{field}", "may not specify more than 1 volume type", "use a source for each")
        for field in ("secret", "configMap", "downwardAPI"):
            part = source.get(field) or {}
            for j, item in enumerate(part.get("items") or ()):
                place = f"{at}.{field}" if field == "downwardAPI" else f"{at}.{field}.items[{j}]"
                if field != "downwardAPI" and not item.get("key"):
                    yield faults.required(f"{place}.key", "", "name the key")
                yield from _file_faults(item, place)
                if (file := item.get("path") or "") and file in files:
                    yield faults.invalid(path, part.get("name") or file, "conflicting duplicate paths", _PATH_REMEDY)
                files.add(file)
        if (token := source.get("serviceAccountToken")) is not None:
            yield from _token_faults(token, path, f"{at}.serviceAccountToken")


def _token_faults(token: Mapping[str, Any], path: str, at: str) -> Iterator[FieldError]:
    seconds = token.get("expirationSeconds")
    if seconds is not None and seconds < _TOKEN_SECONDS_MIN:
        message = "may not specify a duration less than 10 minutes"
        yield faults.invalid(f"{at}.expirationSeconds", seconds, message, "give 600 or more seconds")
    if seconds is not None and seconds > _TOKEN_SECONDS_MAX:
        message = "may not specify a duration larger than 2^32 seconds"
        yield faults.invalid(f"{at}.expirationSeconds", seconds, message, "give less")
    if not token.get("path"):
        yield faults.required(f"{path}.path", "", _PATH_REMEDY)
    yield from paths.file_faults(token.get("path") or "", f"{path}.path")
