"""The options of `batchyard install`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.chosen import chosen_of_operator
from batchyard.cli.options import Scraped


def install(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The operator's namespace.")
    ] = "batchyard-system",
    name: Annotated[str, typer.Option(metavar="NAME", help="The name of its objects.")] = "batchyard-operator",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="The image of its pods.")] = "batchyard:0.1.0",
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
    from batchyard.cli.install import faults_of, run, text_of  # noqa: PLC0415 - loads the platform
    from batchyard.operator_manifests import InstallSettings, Scraping  # noqa: PLC0415 - loads the platform

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
