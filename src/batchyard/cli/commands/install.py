"""The options of `batchyard install`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.chosen import chosen_of_operator
from batchyard.cli.options import Scraped


def install(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="Where the operator is.")
    ] = "batchyard-system",
    name: Annotated[str, typer.Option(metavar="NAME", help="What its objects are called.")] = "batchyard-operator",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="What its pods run.")] = "batchyard:0.1.0",
    replicas: Annotated[int, typer.Option(min=1, help="How many pods; one of them decides.")] = 2,
    controllers: Annotated[
        str, typer.Option(metavar="LIST", help="Which run: *, name, -name; by default what Kubernetes does not do.")
    ] = "",
    webhooks: Annotated[bool, typer.Option(help="Whether the API server asks the operator about objects.")] = True,
    crds: Annotated[bool, typer.Option(help="Whether the kinds are installed with it.")] = True,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration, to decide by.")
    ] = None,
    scraping: Annotated[Scraped, typer.Option(help="How Prometheus is told of the metrics.")] = Scraped.NONE,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write files with a kustomization there; else all is printed.")
    ] = None,
) -> None:
    """Print the manifests of the operator for a cluster: `batchyard install | kubectl apply --server-side -f -`."""
    from batchyard.cli.install import faults_of, run, text_of  # noqa: PLC0415 - loads the platform
    from batchyard.operator_manifests import Scraping, Settings  # noqa: PLC0415 - as the rest

    settings = Settings(
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
