"""The command `batchyard install`: prints the operator's manifests, or writes them as a kustomization."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import JOB_KIND
from batchyard.api.validation import rules
from batchyard.cli import output
from batchyard.cli.kueue_configuration import read_supported_configuration
from batchyard.cli.options import ScrapingChoice, parse_operator_controllers
from batchyard.operator_manifests import InstallSettings, Scraping, manifests, manifests_by_file
from batchyard.sim.scenario import FileFault, read_sources

_KUSTOMIZATION_NAME: Final = "kustomization"


class _AliasFreeDumper(yaml.SafeDumper):
    """A YAML dumper without anchors, so that each manifest is readable on its own."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def option_problems(settings: InstallSettings) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the names of invalid options with their problems: an invalid namespace, name or image."""
    if problems := rules.dns_label_errors(settings.namespace):
        yield "namespace", problems
    if problems := rules.dns1035_label_errors(settings.name) or rules.dns1035_label_errors(settings.webhook_service):
        yield "name", problems
    if not settings.image or any(letter.isspace() for letter in settings.image):
        yield "image", (f"{settings.image!r} is not a valid image: use the form REGISTRY/NAME:TAG",)


def run(settings: InstallSettings, out: Path | None) -> None:
    """Print the operator's manifests, or write them to a folder as a kustomization."""
    if out is None:
        output.write(_dump_objects(manifests(settings)))
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in kustomization_files(settings).items():
            (out / name).write_text(text, "utf-8")
    except OSError as error:
        message = f"batchyard: cannot write the manifests: {error.filename or out}: {error.strerror}"
        output.fail(f"{message}; choose another folder with --out")
    output.report_line(f"batchyard: manifests written to {out}; apply them with: kubectl apply --server-side -k {out}")


def read_configuration_text(file: Path) -> str:
    """Return the text of a Kueue Configuration file; exit if the operator does not support it."""
    read_supported_configuration(file)
    return file.read_text("utf-8")


def read_job_kinds(files: Sequence[Path]) -> Sequence[Obj]:
    """Return the JobKinds in manifest files; exit if a file cannot be read or is invalid."""
    file_faults: list[FileFault] = []
    sources = list(read_sources(files, file_faults))
    found_manifests = read_manifests(sources)
    problems = [str(fault) for fault in (*file_faults, *found_manifests.faults)]
    if problems:
        output.fail("\n".join(f"batchyard: {problem}" for problem in problems))
    return [each.obj for each in found_manifests.objects if group_kind(each.obj) == JOB_KIND]


def kustomization_files(settings: InstallSettings) -> dict[str, str]:
    """Return the texts of the operator's kustomization by file name."""
    objects_by_file = manifests_by_file(settings)
    texts_by_name = {f"{name}.yaml": _dump_objects(objects) for name, objects in objects_by_file.items()}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{name}.yaml" for name in objects_by_file],
    }
    return texts_by_name | {f"{_KUSTOMIZATION_NAME}.yaml": _dump_objects([kustomization])}


def _dump_objects(objects: Iterable[Obj]) -> str:
    return "---\n".join(yaml.dump(obj, Dumper=_AliasFreeDumper, sort_keys=False, width=120) for obj in objects)


def install(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The operator's namespace.")
    ] = "batchyard-system",
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the operator's objects.")] = "batchyard-operator",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="The image of the operator's pods.")] = "batchyard:0.2.0",
    replicas: Annotated[int, typer.Option(min=1, help="The number of pods; one of them is the leader.")] = 2,
    controllers: Annotated[
        str,
        typer.Option(metavar="LIST", help="Controllers to run: *, name, -name; default: those that Kubernetes lacks."),
    ] = "",
    webhooks: Annotated[bool, typer.Option(help="Install the webhooks.")] = True,
    crds: Annotated[bool, typer.Option(help="Install the CRDs.")] = True,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration.")] = None,
    job_kinds: Annotated[
        list[Path] | None,
        typer.Option("--job-kinds", metavar="FILE", help="JobKinds whose jobs the operator may manage; repeatable."),
    ] = None,
    scraping: Annotated[
        ScrapingChoice, typer.Option(help="The object that configures Prometheus' scraping.")
    ] = ScrapingChoice.NONE,
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
        controllers=parse_operator_controllers(controllers),
        webhooks=webhooks,
        definitions=crds,
        configuration="" if config is None else read_configuration_text(config),
        scraping=Scraping(scraping.value),
        job_kinds=read_job_kinds(job_kinds or ()),
    )
    for option, problems in option_problems(settings):
        raise typer.BadParameter("; ".join(problems), param_hint=f"--{option}")
    run(settings, out)
