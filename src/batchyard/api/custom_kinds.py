"""CustomResourceDefinitions: the kind that one defines, and its state.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1 and pkg/apihelpers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj, is_true
from batchyard.api.scheme import KINDS, ServedKind

DEFINITION: Final = "CustomResourceDefinition.apiextensions.k8s.io"
#: Keeps a definition until its objects are deleted.
FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"
ESTABLISHED: Final = "Established"
NAMES_ACCEPTED: Final = "NamesAccepted"
TERMINATING: Final = "Terminating"
#: True if the kind is built in.
BUILT_IN: Final = "BuiltIn"
_VERSION: Final = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
_LAST: Final = 0x10FFFF  # the highest code point
_STAGES: Final = {"alpha": 0, "beta": 1, None: 2}


def kind_of(definition: Obj) -> ServedKind:
    """Return the kind that a definition defines."""
    spec = definition["spec"]
    names, versions = spec["names"], spec["versions"]
    served = sorted((each["name"] for each in versions if each["served"]), key=version_priority)
    return ServedKind(
        constant=f"{names['kind']}.{spec['group']}",
        kind=names["kind"],
        group=spec["group"],
        versions=tuple(served),
        storage_version=next(each["name"] for each in versions if each["storage"]),
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames") or ()),
        namespaced=spec["scope"] == "Namespaced",
        has_status=any("status" in (each.get("subresources") or {}) for each in versions),
        categories=tuple(names.get("categories") or ()),
        selectable_fields=_selectable(versions),
    )


def _selectable(versions: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    fields = (field["jsonPath"] for each in versions for field in each.get("selectableFields") or ())
    return tuple(dict.fromkeys(path.removeprefix(".") for path in fields))


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return a sort key that grows with the version: v1beta1, v1beta2, v1; other names come first.

    Source: k8s.io/apimachinery, pkg/version/helpers.go.
    """
    found = _VERSION.fullmatch(version)
    if found is None:  # of these, the alphabetically first name has the highest priority
        return -1, 0, 0, "".join(chr(_LAST - ord(letter)) for letter in version) + chr(_LAST)
    return _STAGES[found[2]], int(found[1]), int(found[3] or 0), ""


def built_in_kind(definition: Obj) -> ServedKind | None:
    """Return the built-in kind that a definition repeats; None if it defines another kind."""
    spec = definition["spec"]
    wanted = spec["group"], spec["names"]["plural"], spec["names"]["kind"]
    return next((info for info in KINDS if (info.group, info.plural, info.kind) == wanted), None)


def is_served(definition: Obj) -> bool:
    """Report whether a kind is served from its definition."""
    return is_true(definition, ESTABLISHED) and built_in_kind(definition) is None


def is_leaving(definition: Obj) -> bool:
    """Report whether a definition is being deleted."""
    return "deletionTimestamp" in definition["metadata"]


def accepted_names(definition: Obj) -> Mapping[str, Any]:
    """Return the names that are reserved for a definition."""
    names: Mapping[str, Any] = (definition.get("status") or {}).get("acceptedNames") or {}
    return names


def taken_resources(names: Mapping[str, Any]) -> Sequence[str]:
    """Return all resource names of a kind: plural, singular and short names."""
    return [*filter(None, (names.get("plural"), names.get("singular"))), *(names.get("shortNames") or ())]
