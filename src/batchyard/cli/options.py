"""The options that several commands share: choices, types, and the parsing of values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from batchyard.base.instant import Duration, parse_duration

#: The data directory of a platform without `--data-dir`.
DATA_DIR: Final = Path(".batchyard")
#: The highest speed: beyond it, the platform cannot do the work of a second of real time.
SPEED_MAX: Final = 3600


class Output(StrEnum):
    """Output formats of lists; `wide` is a table with all columns, as in kubectl."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class DocumentFormat(StrEnum):
    """Output formats of manifests and of documents for programs."""

    JSON = "json"
    YAML = "yaml"


class SyncMode(StrEnum):
    """What acknowledged writes survive: a power failure, or only a crash of the process."""

    FULL = "full"
    PROCESS = "process"


class LogLevel(StrEnum):
    """Log levels."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


class LogFormat(StrEnum):
    """Log formats."""

    TEXT = "text"
    JSON = "json"


class Scraped(StrEnum):
    """The object that configures the scraping of the cluster's Prometheus."""

    NONE = "none"
    POD_MONITORING = "PodMonitoring"
    SERVICE_MONITOR = "ServiceMonitor"


class LoopAction(StrEnum):
    """The action on an endless preemption loop."""

    CONTINUE = "continue"
    STOP = "stop"


class GuideStepName(StrEnum):
    """The steps of the reference architecture's guide that can be played."""

    LOW_PRIORITY = "low-priority"
    HIGH_PRIORITY = "high-priority"
    COMPACT_PLACEMENT = "compact-placement"
    JOBSET = "jobset"
    DWS = "dws"


class Severities(StrEnum):
    """The severities of findings."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class ProgressFormat(StrEnum):
    """Progress output: lines for people, or JSON lines for programs."""

    TEXT = "text"
    JSON = "json"


def speed(text: str | float) -> float:
    """Parse a factor, 60x or 60; BadParameter if malformed."""
    try:
        factor = float(str(text).removesuffix("x"))
    except ValueError:
        factor = 0.0
    if text == "max":
        message = "a platform needs a fixed speed"
        raise typer.BadParameter(
            f"{message}: give a factor, at most {SPEED_MAX}x; `batchyard simulate` runs as fast as it can"
        )
    if not 0 < factor <= SPEED_MAX:
        raise typer.BadParameter(f"{text!r} is not a speed; use 1x or 60x, at most {SPEED_MAX}x")
    return factor


def duration(text: str | int) -> Duration:
    """Parse a duration."""
    try:
        return text if isinstance(text, int) else parse_duration(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def collector(text: str) -> str:
    """Check the URL of a trace collector; BadParameter if malformed."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - only if a collector is given

    try:
        url = urlsplit(text)
        is_one = url.scheme in {"http", "https"} and bool(url.hostname)
    except ValueError:
        is_one = False
    if text and not is_one:
        raise typer.BadParameter(f"'{text}' is not a collector URL; use a form such as http://localhost:4318")
    return text


def cluster(context: typer.Context, kubeconfig: str, data_dir: Path | None) -> str:
    """The kubeconfig to use; '' if `--data-dir` is set, which overrides the environment variable."""
    if data_dir is None:
        return kubeconfig
    source = context.get_parameter_source("kubeconfig")
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("--data-dir and --kubeconfig name two clusters: leave out one")
    return ""


def chosen_of_platform(text: str) -> tuple[str, ...]:
    """The controller groups of a platform."""
    from batchyard.controller_groups import GROUPS  # noqa: PLC0415 - loads the platform

    return _chosen(text, GROUPS)


def chosen_of_operator(text: str) -> tuple[str, ...]:
    """The controller groups of an operator; by default those that Kubernetes lacks."""
    from batchyard.controller_groups import ON_KUBERNETES, REMOTE  # noqa: PLC0415 - loads the platform

    return _chosen(text, REMOTE) if text else ON_KUBERNETES


def _chosen(text: str, among: tuple[str, ...]) -> tuple[str, ...]:
    from batchyard.controller_groups import chosen  # noqa: PLC0415 - loads the platform

    try:
        return chosen(text, among)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


Kubeconfig: TypeAlias = Annotated[
    str,
    typer.Option(envvar="KUBECONFIG", metavar="FILE", help="The cluster; default: the platform of the data directory."),
]
Context: TypeAlias = Annotated[str, typer.Option("--context", metavar="NAME", help="The context of the kubeconfig.")]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory of a local platform; default: .batchyard."),
]
#: The data directory of a platform, with a default.
PlatformDir: TypeAlias = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")]
Report: TypeAlias = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report of the run.")
]
Until: TypeAlias = Annotated[
    Duration | None,
    typer.Option(parser=duration, metavar="DURATION", help="The horizon, such as 2h; default: a day."),
]
StateFile: TypeAlias = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="A state file instead of a cluster.")
]
FairSharing: TypeAlias = Annotated[
    bool, typer.Option("--fair-sharing", help="Use fair sharing, if the cluster's Kueue does.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of all random values.")]
OutputOption: TypeAlias = Annotated[Output, typer.Option("--output", "-o", help="How to print it.")]
LogLevelOption: TypeAlias = Annotated[
    LogLevel, typer.Option("--log-level", help="The log level; info logs each decision.")
]
LogFormatOption: TypeAlias = Annotated[LogFormat, typer.Option("--log-format", help="Text or JSON lines.")]
Otlp: TypeAlias = Annotated[
    str,
    typer.Option(
        "--otlp",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        parser=collector,
        metavar="URL",
        help="Send traces to this collector (OTLP over HTTP), such as http://localhost:4318.",
    ),
]
ConfigFile: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration.")]
Runtime: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        help="Run time of pods that set none.",
        show_default="from the Cluster, else 1m",
    ),
]
