"""CustomResourceDefinitions: the kind that a definition declares, its names, and its conditions.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1 and pkg/apihelpers.
"""

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj, is_true
from batchyard.api.scheme import KINDS, ServedKind

DEFINITION: Final = "CustomResourceDefinition.apiextensions.k8s.io"
#: The finalizer that keeps a CustomResourceDefinition until all its custom objects are deleted.
FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"
ESTABLISHED: Final = "Established"
NAMES_ACCEPTED: Final = "NamesAccepted"
TERMINATING: Final = "Terminating"
#: The condition of a CustomResourceDefinition that declares a built-in kind again.
BUILT_IN: Final = "BuiltIn"
_API_VERSION_PATTERN: Final = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
_CERTIFICATE_PATTERN: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_LAST_CODE_POINT: Final = 0x10FFFF
_STABILITY_ORDER: Final = {"alpha": 0, "beta": 1, None: 2}


def kind_from_definition(definition: Obj) -> ServedKind:
    """Return the custom kind that a CustomResourceDefinition declares: its names, served versions and scope."""
    spec = definition["spec"]
    names, versions = spec["names"], spec["versions"]
    served_versions = sorted((version["name"] for version in versions if version["served"]), key=version_priority)
    return ServedKind(
        constant=f"{names['kind']}.{spec['group']}",
        kind=names["kind"],
        group=spec["group"],
        versions=tuple(served_versions),
        storage_version=next(version["name"] for version in versions if version["storage"]),
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames") or ()),
        namespaced=spec["scope"] == "Namespaced",
        has_status=any("status" in (version.get("subresources") or {}) for version in versions),
        categories=tuple(names.get("categories") or ()),
        selectable_fields=_selectable_field_paths(versions),
    )


def _selectable_field_paths(versions: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    fields = (field["jsonPath"] for version in versions for field in version.get("selectableFields") or ())
    return tuple(dict.fromkeys(path.removeprefix(".") for path in fields))


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return a sort key for API versions, least stable first: v1alpha1, v1beta1, v1beta2, v1; other names precede all.

    Source: k8s.io/apimachinery, pkg/version/helpers.go.
    """
    version_match = _API_VERSION_PATTERN.fullmatch(version)
    if version_match is None:  # of these, the alphabetically first name has the highest priority
        return -1, 0, 0, "".join(chr(_LAST_CODE_POINT - ord(letter)) for letter in version) + chr(_LAST_CODE_POINT)
    return _STABILITY_ORDER[version_match[2]], int(version_match[1]), int(version_match[3] or 0), ""


def built_in_kind(definition: Obj, custom_groups: Collection[str] = ()) -> ServedKind | None:
    """Return the built-in kind with the group and names of a CustomResourceDefinition, or None if there is none.

    `custom_groups` are the API groups whose built-in kinds the platform does not serve.
    """
    spec = definition["spec"]
    if spec["group"] in custom_groups:
        return None
    declared_identity = spec["group"], spec["names"]["plural"], spec["names"]["kind"]
    return next(
        (
            served_kind
            for served_kind in KINDS
            if (served_kind.group, served_kind.plural, served_kind.kind) == declared_identity
        ),
        None,
    )


def is_served(definition: Obj) -> bool:
    """Return whether the API server serves the custom kind that a CustomResourceDefinition declares."""
    return is_true(definition, ESTABLISHED) and not is_true(definition, BUILT_IN)


def is_definition_terminating(definition: Obj) -> bool:
    """Return whether a CustomResourceDefinition is being deleted."""
    return "deletionTimestamp" in definition["metadata"]


def accepted_names(definition: Obj) -> Mapping[str, Any]:
    """Return the `status.acceptedNames` of a CustomResourceDefinition, its reserved resource names; {} if absent."""
    names: Mapping[str, Any] = (definition.get("status") or {}).get("acceptedNames") or {}
    return names


def resource_names(names: Mapping[str, Any]) -> Sequence[str]:
    """Return the plural, singular and short names in `names`, such as `spec.names` of a CustomResourceDefinition."""
    return [*filter(None, (names.get("plural"), names.get("singular"))), *(names.get("shortNames") or ())]


def has_valid_ca_bundle(definition: Obj) -> bool:
    """Return whether the CA bundle of the conversion webhook is absent, or holds only certificates as PEM."""
    webhook = (definition["spec"].get("conversion") or {}).get("webhook") or {}
    bundle = (webhook.get("clientConfig") or {}).get("caBundle")
    if not bundle:
        return True
    try:
        text = base64.b64decode(bundle, validate=True)
        return not text.strip() or bool(_CERTIFICATE_PATTERN.search(text))
    except ValueError:
        return False
