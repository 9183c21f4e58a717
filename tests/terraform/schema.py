"""What the providers google and google-beta take, as tools/provider_schema.py has distilled it.

A body maps names to entries: `string optional computed` for an attribute, and for a block, or an attribute that holds
objects, how it nests (`nesting`, `max`), whether it must be there (`said`), what it `is`, and the body `of` it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    """The resources that our modules use, the provider's own arguments, and where all that is from."""

    made_from: Mapping[str, str]
    provider: Body
    resources: Mapping[str, Body]

    def body(self, resource: str) -> Body:
        """What a resource takes."""
        return self.resources[resource]


@cache
def provider_schema() -> Schema:
    """Return the schema of the provider google, which is beside this file."""
    return _read("provider_schema.json")


@cache
def beta_schema() -> Schema:
    """Return the schema of the provider google-beta: only the resources that google lacks."""
    return _read("provider_schema_beta.json")


def _read(name: str) -> Schema:
    document = json.loads(Path(__file__).with_name(name).read_text("utf-8"))
    made_from, provider = document.pop("made from"), document.pop("provider")
    return Schema(made_from, provider, document)


def is_computed(entry: Any) -> bool:
    """Whether the provider fills an attribute in where nobody has said it."""
    return "computed" in (entry if isinstance(entry, str) else entry["said"]).split()


def is_required(entry: Any) -> bool:
    """Whether an attribute or a block has to be there."""
    return "required" in (entry if isinstance(entry, str) else entry["said"]).split()


def is_settable(entry: Any) -> bool:
    """Whether a configuration may say it: what is computed only is the provider's."""
    return bool({"required", "optional"} & set((entry if isinstance(entry, str) else entry["said"]).split()))
