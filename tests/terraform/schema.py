"""The schemas of the providers google and google-beta, as extracted by tools/provider_schema.py.

A body maps names to entries: `string optional computed` for an attribute. The entry of a block, or of an attribute with
objects, has its nesting (`nesting`, `max`), the flags required, optional or computed (`flags`), its kind (`is`), and
its body (`of`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class ProviderSchema:
    """The resources of the modules, the arguments of the provider, and the source of the schema."""

    made_from: Mapping[str, str]
    provider: Body
    resources: Mapping[str, Body]

    def body(self, resource: str) -> Body:
        """The body of a resource."""
        return self.resources[resource]


@cache
def provider_schema() -> ProviderSchema:
    """Return the schema of the provider google, which is beside this file."""
    return _read("provider_schema.json")


@cache
def beta_schema() -> ProviderSchema:
    """Return the schema of the provider google-beta: only the resources that google lacks."""
    return _read("provider_schema_beta.json")


def _read(name: str) -> ProviderSchema:
    document = json.loads(Path(__file__).with_name(name).read_text("utf-8"))
    made_from, provider = document.pop("made from"), document.pop("provider")
    return ProviderSchema(made_from, provider, document)


def is_computed(entry: Any) -> bool:
    """Whether the provider fills in an attribute that is not set."""
    return "computed" in (entry if isinstance(entry, str) else entry["flags"]).split()


def is_required(entry: Any) -> bool:
    """Whether an attribute or a block is required."""
    return "required" in (entry if isinstance(entry, str) else entry["flags"]).split()


def is_settable(entry: Any) -> bool:
    """Whether a configuration may set an attribute: it may not set computed-only attributes."""
    return bool({"required", "optional"} & set((entry if isinstance(entry, str) else entry["flags"]).split()))
