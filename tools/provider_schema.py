"""Extracts the schema of a Terraform provider to a small file: `python tools/provider_schema.py WHEEL...`.

WHEEL is `cdktn-provider-google` (`pip download --no-deps cdktn-provider-google==21.1.0`), or
`cdktn-provider-google-beta` for google-beta. The classes in these packages are generated from the schema of the
provider. Each wheel gives one file, which only the tests read. A file has the resources that batchyard's Terraform
modules use. It contains names, nesting, types, and whether a field is required, optional or computed.
"""

import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODULES = ROOT / "src" / "batchyard" / "provision" / "terraform"
OUT = ROOT / "tests" / "terraform"
#: By wheel name: the provider, the output file, and the prefix of the folders of its resources.
PROVIDERS = {
    "cdktn_provider_google": ("google", "provider_schema.json", ""),
    "cdktn_provider_google_beta": ("google-beta", "provider_schema_beta.json", "google-"),
}

#: A resource with another provider than google has `provider` as its first argument.
RESOURCE = re.compile(r'^(?:resource|data) "google_(\w+)" "\w+" \{\n(?:  provider += ([\w-]+)$)?', re.MULTILINE)
CLASS = re.compile(r"^class (\w+) extends cdktn\.(\w+) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(
    r"^    // (\w+) - computed: (\w+), optional: (\w+), required: (\w+)$(.*?)(?=^    // |\Z)", re.MULTILINE | re.DOTALL
)
VERSION = re.compile(r"providerVersion: '([\d.]+)'")
NESTED = re.compile(r"= new (?:\w+\.)?(\w+?)(OutputReference|List|Map)\(this, ")
GETTER = re.compile(r"this\.get(\w+?)Attribute\(|new cdktn\.(\w+Map)\(")
HCL_FIELD = re.compile(
    r'^            (\w+): \{\n.*?isBlock: (\w+),\n\s+type: "(\w+)",\n\s+storageClassType: "(\w+)"',
    re.MULTILINE | re.DOTALL,
)
HCL_FIELD_OF_STRUCT = re.compile(HCL_FIELD.pattern.replace("^            ", "^        "), re.MULTILINE | re.DOTALL)

SCALAR_TYPES = {"string": "string", "number": "number", "boolean": "bool"}
GETTER_TYPES = {
    "String": "string",
    "Number": "number",
    "Boolean": "bool",
    "List": "list(string)",
    "StringMap": "map(string)",
}
GETTER_TYPES |= {"NumberList": "list(number)", "BooleanMap": "map(bool)", "NumberMap": "map(number)"}


@dataclass(frozen=True)
class ResourceClasses:
    """The classes of one resource: their base classes and bodies, and the HCL form of each field."""

    bodies: dict[str, tuple[str, str]] = field(default_factory=dict)
    hcl_fields: dict[str, dict[str, tuple[bool, str, str]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "ResourceClasses":
        """Parse the modules of a resource."""
        classes = cls()
        for text in texts:
            for name, base, body in CLASS.findall(text):
                classes.bodies[name] = (base, body)
                classes.hcl_fields[name] = parse_hcl_fields(HCL_FIELD, body)
            for name, body in FUNCTION.findall(text):
                classes.hcl_fields[name[0].upper() + name[1:]] = parse_hcl_fields(HCL_FIELD_OF_STRUCT, body)
        return classes

    def root(self) -> str:
        """Return the name of the class of the resource, data source or provider."""
        return next(name for name, (base, _) in self.bodies.items() if base.startswith("Terraform"))

    def block(self, name: str) -> dict[str, Any]:
        """Return the fields of a class: an attribute as text, a block as an object with its fields."""
        body = self.bodies.get(name, ("", ""))[1] or self.bodies.get(f"{name}OutputReference", ("", ""))[1]
        rows = sorted(row for row in FIELD.findall(body) if not self.is_ignored(name, row[0]))
        return {row[0]: self.entry(name, row) for row in rows}

    def is_ignored(self, owner: str, name: str) -> bool:
        """Return whether a field of the provider is left out: the endpoint of a service, or a block."""
        if self.bodies.get(owner, ("", ""))[0] != "TerraformProvider":
            return False
        return name.endswith("_custom_endpoint") or self.hcl_fields[owner][name][0]

    def entry(self, owner: str, row: tuple[str, ...]) -> Any:
        """Return one attribute or block of a class; `row` is a match of FIELD."""
        name, computed, optional, required, code = row
        is_block, shape, kind = self.hcl_fields.get(owner, {}).get(name, (False, "", ""))
        flags = [
            flag
            for flag, value in zip(("required", "optional", "computed"), (required, optional, computed), strict=True)
            if value == "true"
        ]
        nested = NESTED.search(code)
        if nested and self.is_class(nested[1]):
            single = {"max": 1} if nested[2] == "OutputReference" and shape != "struct" else {}
            nesting = "single" if shape == "struct" else shape or "list"
            facts = {"nesting": nesting, **single, "flags": " ".join(flags)}
            return {**facts, "is": "block" if is_block else "attribute", "of": self.block(nested[1])}
        return " ".join([type_of(shape, kind, code), *flags])

    def is_class(self, name: str) -> bool:
        """Return whether `name` is a class of the resource: then the resource also has a class for references to it."""
        return f"{name}OutputReference" in self.bodies


def parse_hcl_fields(pattern: re.Pattern[str], body: str) -> dict[str, tuple[bool, str, str]]:
    """Return for each field whether it is a block, its nesting, and its element type."""
    return {name: (block == "true", shape, kind) for name, block, shape, kind in pattern.findall(body)}


def type_of(shape: str, kind: str, code: str) -> str:
    """Return the Terraform type of an attribute."""
    if shape == "simple":
        return SCALAR_TYPES[kind]
    if shape:
        element = re.sub(r"(List|Map)$", "", kind)
        return f"{shape}({SCALAR_TYPES[element]})"
    getter = GETTER.search(code)
    return GETTER_TYPES[getter[1] or getter[2]] if getter else "string"


def resources_used(provider: str) -> list[str]:
    """Return the resources of a provider that batchyard's modules use, without the prefix `google_`."""
    rows = [row for path in MODULES.rglob("*.tf") for row in RESOURCE.findall(path.read_text("utf-8"))]
    return sorted({name for name, explicit in rows if (explicit or "google") == provider})


def read_modules(wheel: str, folders: set[str]) -> dict[str, list[str]]:
    """Return the texts of a wheel's JavaScript modules, by folder."""
    texts: dict[str, list[str]] = {}
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        content = io.BytesIO(outer.read(inner))
    with tarfile.open(fileobj=content, mode="r:gz") as package:
        for member in package:
            parts = member.name.split("/")
            if len(parts) > 2 and parts[2] in folders and member.name.endswith(".js"):
                file = package.extractfile(member)
                assert file is not None, member.name
                texts.setdefault(parts[2], []).append(file.read().decode().split("//# sourceMappingURL")[0])
    return texts


def main(wheels: list[str]) -> int:
    """Write the schema of each wheel."""
    for wheel in wheels:
        write_schema(wheel)
    return 0


def write_schema(wheel: str) -> None:
    """Write the schema of a wheel."""
    provider, out, prefix = PROVIDERS[Path(wheel).name.partition("-")[0]]
    folders = {f"google_{name}": prefix + name.replace("_", "-") for name in resources_used(provider)}
    all_folders = {"provider": "provider", **folders}
    texts = read_modules(wheel, set(all_folders.values()))
    version = next(filter(None, (VERSION.search(text) for folder in folders.values() for text in texts[folder])), None)
    assert version is not None, "the package does not state the version of its provider"
    classes = {name: ResourceClasses.parse(texts[folder]) for name, folder in all_folders.items()}
    schema = {name: classes[name].block(classes[name].root()) for name in sorted(classes)}
    head = {"package": Path(wheel).name.split("-py3")[0], "provider": f"hashicorp/{provider} {version[1]}"}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(block)}" for name, block in schema.items())
    (OUT / out).write_text(f'{{\n "made from": {json.dumps(head)},\n{lines}\n}}\n', "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
