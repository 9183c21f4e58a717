"""The options of `batchyard monitoring`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.options import DocumentFormat


def monitoring(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The platform's data directory.")] = Path(
        ".batchyard"
    ),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port of Prometheus; 0: any free port.")
    ] = 9090,
    grafana_port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port of Grafana; 0: any free port.")
    ] = 3000,
    grafana: Annotated[
        bool, typer.Option("--grafana/--no-grafana", help="Also start Grafana, if it is installed.")
    ] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return once they are ready.")
    ] = False,
    end: Annotated[bool, typer.Option("--end", help="End the programs in the background.")] = False,
    output: Annotated[
        DocumentFormat | None, typer.Option("--output", "-o", help="Print URLs, folders and commands in this format.")
    ] = None,
) -> None:
    """Run the installed Prometheus and Grafana for a platform until a termination signal."""
    if end and detach:
        raise typer.BadParameter("--end and --detach exclude each other")
    from batchyard.cli.monitoring import command  # noqa: PLC0415 - loads the platform

    if end:
        command.end_monitoring(data_dir)
        return
    command.start_monitoring(command.MonitoringRequest(data_dir, port, grafana_port, grafana, detach, output))
