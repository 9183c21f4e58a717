"""Distils what a provider of Terraform takes into one small file: `python tools/provider_schema.py WHEEL...`.

A wheel is `cdktn-provider-google` (`pip download --no-deps cdktn-provider-google==21.1.0`), or
`cdktn-provider-google-beta` for google-beta: their classes were generated from the provider's own schema. Each makes a
file of its own. Only facts are taken, and only of the resources that our modules use: names, nesting, types, what must
be given, what the provider itself fills in. The tests read the files; nothing else does.
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
MODULES = ROOT / "src" / "batchyard" / "plan" / "terraform"
OUT = ROOT / "tests" / "terraform"
#: By the name of a wheel: the provider, the file, and how the folders of its resources begin.
PROVIDERS = {
    "cdktn_provider_google": ("google", "provider_schema.json", ""),
    "cdktn_provider_google_beta": ("google-beta", "provider_schema_beta.json", "google-"),
}

#: A resource that is not of the provider google says so first.
USED = re.compile(r'^(?:resource|data) "google_(\w+)" "\w+" \{\n(?:  provider += ([\w-]+)$)?', re.MULTILINE)
CLASS = re.compile(r"^class (\w+) extends cdktn\.(\w+) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(
    r"^    // (\w+) - computed: (\w+), optional: (\w+), required: (\w+)$(.*?)(?=^    // |\Z)", re.MULTILINE | re.DOTALL
)
VERSION = re.compile(r"providerVersion: '([\d.]+)'")
NESTED = re.compile(r"= new (?:\w+\.)?(\w+?)(OutputReference|List|Map)\(this, ")
GETTER = re.compile(r"this\.get(\w+?)Attribute\(|new cdktn\.(\w+Map)\(")
WRITTEN = re.compile(
    r'^            (\w+): \{\n.*?isBlock: (\w+),\n\s+type: "(\w+)",\n\s+storageClassType: "(\w+)"',
    re.MULTILINE | re.DOTALL,
)
WRITTEN_OF_STRUCT = re.compile(WRITTEN.pattern.replace("^            ", "^        "), re.MULTILINE | re.DOTALL)

SIMPLE = {"string": "string", "number": "number", "boolean": "bool"}
READ = {"String": "string", "Number": "number", "Boolean": "bool", "List": "list(string)", "StringMap": "map(string)"}
READ |= {"NumberList": "list(number)", "BooleanMap": "map(bool)", "NumberMap": "map(number)"}


@dataclass(frozen=True)
class Sources:
    """The classes of one resource: of each its body, and of each field how it is written in HCL."""

    bodies: dict[str, tuple[str, str]] = field(default_factory=dict)
    written: dict[str, dict[str, tuple[bool, str, str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Sources":
        """From the texts of a resource's modules."""
        sources = cls()
        for text in texts:
            for name, base, body in CLASS.findall(text):
                sources.bodies[name] = (base, body)
                sources.written[name] = written_fields(WRITTEN, body)
            for name, body in FUNCTION.findall(text):
                sources.written[name[0].upper() + name[1:]] = written_fields(WRITTEN_OF_STRUCT, body)
        return sources

    def root(self) -> str:
        """The class that is the resource, the data source or the provider itself."""
        return next(name for name, (base, _) in self.bodies.items() if base.startswith("Terraform"))

    def block(self, name: str) -> dict[str, Any]:
        """What one class takes: attributes as short phrases, blocks as what they nest."""
        body = self.bodies.get(name, ("", ""))[1] or self.bodies.get(f"{name}OutputReference", ("", ""))[1]
        rows = sorted(row for row in FIELD.findall(body) if not self.is_left_out(name, row[0]))
        return {row[0]: self.entry(name, row) for row in rows}

    def is_left_out(self, owner: str, name: str) -> bool:
        """Whether a field of the provider itself is not taken: the endpoints of each service, and its blocks."""
        if self.bodies.get(owner, ("", ""))[0] != "TerraformProvider":
            return False
        return name.endswith("_custom_endpoint") or self.written[owner][name][0]

    def entry(self, owner: str, row: tuple[str, ...]) -> Any:
        """One attribute or block of a class."""
        name, computed, optional, required, code = row
        is_block, shape, kind = self.written.get(owner, {}).get(name, (False, "", ""))
        flags = [
            word
            for word, stated in zip(("required", "optional", "computed"), (required, optional, computed), strict=True)
            if stated == "true"
        ]
        nested = NESTED.search(code)
        if nested and self.is_class(nested[1]):
            single = {"max": 1} if nested[2] == "OutputReference" and shape != "struct" else {}
            nesting = "single" if shape == "struct" else shape or "list"
            kept = {"nesting": nesting, **single, "said": " ".join(flags)}
            return {**kept, "is": "block" if is_block else "attribute", "of": self.block(nested[1])}
        return " ".join([type_of(shape, kind, code), *flags])

    def is_class(self, name: str) -> bool:
        """Whether there is a class of that name, or of its references."""
        return f"{name}OutputReference" in self.bodies


def written_fields(pattern: re.Pattern[str], body: str) -> dict[str, tuple[bool, str, str]]:
    """Of each field whether it is a block, its nesting, and what it holds."""
    return {name: (block == "true", shape, kind) for name, block, shape, kind in pattern.findall(body)}


def type_of(shape: str, kind: str, code: str) -> str:
    """The type of an attribute, in Terraform's words."""
    if shape == "simple":
        return SIMPLE[kind]
    if shape:
        element = re.sub(r"(List|Map)$", "", kind)
        return f"{shape}({SIMPLE[element]})"
    getter = GETTER.search(code)
    return READ[getter[1] or getter[2]] if getter else "string"


def resources_used(provider: str) -> list[str]:
    """The resources of a provider that our modules use, without their prefix."""
    found = [row for path in MODULES.rglob("*.tf") for row in USED.findall(path.read_text("utf-8"))]
    return sorted({name for name, stated in found if (stated or "google") == provider})


def texts_of(wheel: str, places: set[str]) -> dict[str, list[str]]:
    """The texts of the wheel's modules in some folders, by folder."""
    found: dict[str, list[str]] = {}
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        content = io.BytesIO(outer.read(inner))
    with tarfile.open(fileobj=content, mode="r:gz") as package:
        for member in package:
            parts = member.name.split("/")
            if len(parts) > 2 and parts[2] in places and member.name.endswith(".js"):
                file = package.extractfile(member)
                assert file is not None, member.name
                found.setdefault(parts[2], []).append(file.read().decode().split("//# sourceMappingURL")[0])
    return found


def main(wheels: list[str]) -> int:
    """Write the file of each wheel."""
    for wheel in wheels:
        write_schema(wheel)
    return 0


def write_schema(wheel: str) -> None:
    """Write the file of one wheel."""
    provider, out, prefix = PROVIDERS[Path(wheel).name.partition("-")[0]]
    places = {f"google_{name}": prefix + name.replace("_", "-") for name in resources_used(provider)}
    wanted = {"provider": "provider", **places}
    texts = texts_of(wheel, set(wanted.values()))
    version = next(filter(None, (VERSION.search(text) for place in places.values() for text in texts[place])), None)
    assert version is not None, "the package says which provider it was made of"
    sources = {name: Sources.of(texts[place]) for name, place in wanted.items()}
    schema = {name: sources[name].block(sources[name].root()) for name in sorted(sources)}
    head = {"package": Path(wheel).name.split("-py3")[0], "provider": f"hashicorp/{provider} {version[1]}"}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(block)}" for name, block in schema.items())
    (OUT / out).write_text(f'{{\n "made from": {json.dumps(head)},\n{lines}\n}}\n', "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
