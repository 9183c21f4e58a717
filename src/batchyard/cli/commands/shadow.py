"""The options of `batchyard operator --shadow`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.base.instant import Duration
from batchyard.cli.commands import forks as of
from batchyard.cli.options import Telling

Shadow: TypeAlias = Annotated[
    bool,
    typer.Option("--shadow", help="Observe only: report where the cluster's Kueue decides differently."),
]
Lasts: TypeAlias = Annotated[
    Duration | None,
    typer.Option("--for", parser=of.duration, metavar="DURATION", help="With --shadow: end after this duration."),
]
Patience: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=of.duration,
        metavar="DURATION",
        help="With --shadow: longest delay between both decisions; default: 15s.",
    ),
]

Output: TypeAlias = Annotated[
    Telling | None,
    typer.Option("--output", "-o", help="With --shadow: divergences as JSON lines (default) or text."),
]


def looks_on(shadow: bool, lasts: Duration | None, patience: Duration | None, form: Telling | None) -> bool:
    """Whether shadow mode is on; BadParameter if its options are given without it."""
    if not shadow and any(each is not None for each in (lasts, patience, form)):
        raise typer.BadParameter("--for, --patience and --output require --shadow")
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
    """Run shadow mode beside a Kueue; `kueue`: its Configuration, and whether it uses fair sharing."""
    from batchyard.cli import shadow as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.kueue_file import beside  # noqa: PLC0415 - loads the platform
    from batchyard.server.kubeconfig.access import Source  # noqa: PLC0415 - loads the platform
    from batchyard.server.operator.shadow import Wanted  # noqa: PLC0415 - loads the platform
    from batchyard.shadow.state import Terms  # noqa: PLC0415 - loads the platform

    terms = Terms() if patience is None else Terms(min(Terms().settle, patience // 2), patience)
    config, fair_sharing = kueue
    said = None if config is None else beside(config)
    command.shadow(Wanted(Source(*where), said, fair_sharing, terms, lasts, *listens), form or Telling.JSON)
