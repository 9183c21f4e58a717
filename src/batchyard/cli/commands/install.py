"""`batchyard install`: the operator's manifests, printed or written as a kustomization."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from batchyard.api.meta import Obj
from batchyard.api.validation import rules
from batchyard.cli import output
from batchyard.cli.kueue_configuration import kept_in
from batchyard.cli.options import Scraped, chosen_of_operator
from batchyard.operator_manifests import InstallSettings, Scraping, manifests, parts

_KUSTOMIZATION: Final = "kustomization"


class _Plain(yaml.SafeDumper):
    """Dumps YAML without anchors, so that each manifest is readable on its own."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def faults_of(settings: InstallSettings) -> Iterator[tuple[str, Sequence[str]]]:
    """The problems of each option: invalid names, a missing image."""
    if problems := rules.dns_label(settings.namespace):
        yield "namespace", problems
    if problems := rules.dns1035_label(settings.name) or rules.dns1035_label(settings.webhook_service):
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


# --- install ---
#
# The options of `batchyard install`.


def install(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The operator's namespace.")
    ] = "batchyard-system",
    name: Annotated[str, typer.Option(metavar="NAME", help="The name of its objects.")] = "batchyard-operator",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="The image of its pods.")] = "batchyard:0.2.0",
    replicas: Annotated[int, typer.Option(min=1, help="The number of pods; one of them is the leader.")] = 2,
    controllers: Annotated[
        str,
        typer.Option(metavar="LIST", help="Controllers to run: *, name, -name; default: those that Kubernetes lacks."),
    ] = "",
    webhooks: Annotated[bool, typer.Option(help="Install the webhooks.")] = True,
    crds: Annotated[bool, typer.Option(help="Install the CRDs.")] = True,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration.")] = None,
    scraping: Annotated[Scraped, typer.Option(help="The object that configures Prometheus' scraping.")] = Scraped.NONE,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a kustomization to this folder instead of printing.")
    ] = None,
) -> None:
    """Print the manifests of the operator for a cluster: `batchyard install | kubectl apply --server-side -f -`."""
    settings = InstallSettings(
        image=image,
        namespace=namespace,
        name=name,
        replicas=replicas,
        controllers=chosen_of_operator(controllers),
        webhooks=webhooks,
        definitions=crds,
        configuration="" if config is None else text_of(config),
        scraping=Scraping(scraping.value),
    )
    for option, problems in faults_of(settings):
        raise typer.BadParameter("; ".join(problems), param_hint=f"--{option}")
    run(settings, out)
