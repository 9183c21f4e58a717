"""The options of `batchyard operator --shadow`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.base.instant import Duration
from batchyard.cli.commands import forks as of
from batchyard.cli.options import Telling

Shadow: TypeAlias = Annotated[
    bool,
    typer.Option("--shadow", help="Write nothing: tell where the cluster's Kueue decides otherwise than we would."),
]
Lasts: TypeAlias = Annotated[
    Duration | None,
    typer.Option("--for", parser=of.duration, metavar="DURATION", help="With --shadow: end after so long."),
]
Patience: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=of.duration,
        metavar="DURATION",
        help="With --shadow: how long one may take to do what the other has done; 15s by default.",
    ),
]

Output: TypeAlias = Annotated[
    Telling | None,
    typer.Option("--output", "-o", help="With --shadow: partings as JSON, a line each (the default), or for people."),
]


def looks_on(shadow: bool, lasts: Duration | None, patience: Duration | None, form: Telling | None) -> bool:
    """Whether it is a shadow; what is for one alone is refused without."""
    if not shadow and any(each is not None for each in (lasts, patience, form)):
        raise typer.BadParameter("--for, --patience and --output go with --shadow")
    return shadow


def look_on(
    where: tuple[str, str],
    listens: tuple[str, int],
    lasts: Duration | None,
    patience: Duration | None,
    *,
    kueue: tuple[Path | None, bool],
    form: Telling | None,
) -> None:
    """Look on beside the Kueue of a kubeconfig and a context; `kueue`: its Configuration, and whether it is fair."""
    from batchyard.cli import shadow as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.kueue_file import beside  # noqa: PLC0415 - as above
    from batchyard.server.kubeconfig.access import Source  # noqa: PLC0415 - as above
    from batchyard.server.operator.shadow import Wanted  # noqa: PLC0415 - as above
    from batchyard.shadow.state import Terms  # noqa: PLC0415 - as above

    terms = Terms() if patience is None else Terms(min(Terms().settle, patience // 2), patience)
    config, fair_sharing = kueue
    said = None if config is None else beside(config)
    command.shadow(Wanted(Source(*where), said, fair_sharing, terms, lasts, *listens), form or Telling.JSON)
