"""`batchyard install`: the operator's manifests, printed or written as a kustomization."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from batchyard.api.meta import Obj
from batchyard.api.validation import names
from batchyard.cli import output
from batchyard.cli.kueue_file import kept_in
from batchyard.operator_manifests import InstallSettings, manifests, parts

_KUSTOMIZATION: Final = "kustomization"


class _Plain(yaml.SafeDumper):
    """Dumps YAML without anchors, so that each manifest is readable on its own."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def faults_of(settings: InstallSettings) -> Iterator[tuple[str, Sequence[str]]]:
    """The problems of each option: invalid names, a missing image."""
    if problems := names.dns_label(settings.namespace):
        yield "namespace", problems
    if problems := names.dns1035_label(settings.name) or names.dns1035_label(settings.webhook_service):
        yield "name", problems
    if not settings.image or any(letter.isspace() for letter in settings.image):
        yield "image", ("use the form REGISTRY/NAME:TAG",)


def run(settings: InstallSettings, out: Path | None) -> None:
    """Print the manifests, or write the files."""
    if out is None:
        output.write(_text(manifests(settings)))
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files(settings).items():
        (out / name).write_text(text, "utf-8")
    output.report_line(f"batchyard: written to {out}: kubectl apply --server-side -k {out}")


def text_of(file: Path) -> str:
    """The text of a Configuration; ends the command if an operator does not support it."""
    kept_in(file)
    return file.read_text("utf-8")


def files(settings: InstallSettings) -> dict[str, str]:
    """The files of a kustomization by name."""
    found = parts(settings)
    texts = {f"{name}.yaml": _text(objects) for name, objects in found.items()}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{name}.yaml" for name in found],
    }
    return texts | {f"{_KUSTOMIZATION}.yaml": _text([kustomization])}


def _text(objects: Iterable[Obj]) -> str:
    return "---\n".join(yaml.dump(obj, Dumper=_Plain, sort_keys=False, width=120) for obj in objects)
