"""Options that several commands share: their allowed values, their types, and the parsers of their values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from batchyard.base.instant import HOUR, MINUTE, Duration, parse_duration

#: The data directory of a platform without `--data-dir`.
DATA_DIR: Final = Path(".batchyard")
#: The maximum speed of a platform's clock: beyond it, the platform cannot keep up with the virtual time.
SPEED_MAX: Final = 3600
_DAY: Final = 24 * HOUR
_RETENTION_MAX: Final = 36_500 * _DAY


class Output(StrEnum):
    """Output formats of object lists; `wide` is a table with all columns, as in kubectl."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_table(self) -> bool:
        """Whether the format is a table for people, and not JSON or YAML for programs."""
        return self in (Output.TABLE, Output.WIDE)


class DocumentFormat(StrEnum):
    """Output formats of manifests and of machine-readable documents."""

    JSON = "json"
    YAML = "yaml"


class SyncMode(StrEnum):
    """The failures that acknowledged writes survive: a power failure (`full`), or only a process crash (`process`)."""

    FULL = "full"
    PROCESS = "process"


class StandbyChoice(StrEnum):
    """Whether a write is acknowledged after the standby has stored it (`sync`), or before (`async`)."""

    SYNC = "sync"
    ASYNC = "async"


class LogLevel(StrEnum):
    """The log levels, from the least to the most verbose."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


class LogFormat(StrEnum):
    """The formats of log lines."""

    TEXT = "text"
    JSON = "json"


class ScrapingChoice(StrEnum):
    """The kind of object that makes the cluster's Prometheus scrape the operator's metrics."""

    NONE = "none"
    POD_MONITORING = "PodMonitoring"
    SERVICE_MONITOR = "ServiceMonitor"


class KueueVersionChoice(StrEnum):
    """The versions of Kueue whose decision rules a command can follow."""

    V0_19 = "0.19"
    V0_20 = "0.20"


class LoopAction(StrEnum):
    """The action of a simulation after it detects an endless preemption loop."""

    CONTINUE = "continue"
    STOP = "stop"


class GuideStepName(StrEnum):
    """The steps of the reference architecture's guide that `batchyard guide` can play."""

    LOW_PRIORITY = "low-priority"
    HIGH_PRIORITY = "high-priority"
    COMPACT_PLACEMENT = "compact-placement"
    JOBSET = "jobset"
    DWS = "dws"


class SeverityChoice(StrEnum):
    """The severities of lint findings, the most severe first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class ProgressFormat(StrEnum):
    """Formats of progress output: text lines for people, or JSON lines for programs."""

    TEXT = "text"
    JSON = "json"


def parse_retention(text: str) -> Duration:
    """Parse a retention time, such as 7d or 36h; raise BadParameter if it is malformed or below a minute."""
    days = text.removesuffix("d")
    try:
        retention = int(days) * _DAY if days != text and days.isascii() and days.isdigit() else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or in days as 7d") from error
    if not MINUTE <= retention <= _RETENTION_MAX:
        raise typer.BadParameter(f"{text}: use a retention time between 1m and 36500d")
    return retention


def parse_speed(text: str | float) -> float:
    """Parse the speed of virtual time, such as 60x or 60; raise BadParameter if it is malformed or above SPEED_MAX."""
    try:
        speed_factor = float(str(text).removesuffix("x"))
    except ValueError:
        speed_factor = 0.0
    if text == "max":
        message = "a platform needs a fixed speed, not 'max'"
        raise typer.BadParameter(f"{message}: use at most {SPEED_MAX}x; `batchyard simulate` runs as fast as it can")
    if not 0 < speed_factor <= SPEED_MAX:
        raise typer.BadParameter(f"{text!r} is not a speed; use 1x or 60x, at most {SPEED_MAX}x")
    return speed_factor


def to_duration(text: str | int) -> Duration:
    """Parse a duration such as 1h30m; raise BadParameter if it is malformed."""
    try:
        return text if isinstance(text, int) else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_collector_url(text: str) -> str:
    """Return the URL of a trace collector, or ''; raise BadParameter if the text is not an http or https URL."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - only if a collector is set

    try:
        url = urlsplit(text)
        is_valid = url.scheme in {"http", "https"} and bool(url.hostname)
    except ValueError:
        is_valid = False
    if text and not is_valid:
        raise typer.BadParameter(f"'{text}' is not a collector URL; use a form such as http://localhost:4318")
    return text


def is_on_command_line(context: typer.Context, parameter: str) -> bool:
    """Return whether the command line, and not a variable or default, sets a parameter of a command."""
    parameter_source = context.get_parameter_source(parameter)
    return parameter_source is not None and parameter_source.name == "COMMANDLINE"


def select_kubeconfig(context: typer.Context, kubeconfig: str, data_dir: Path | None) -> str:
    """Return the kubeconfig to use; '' if `--data-dir` is set, because it overrides the variable KUBECONFIG.

    Raises BadParameter if the command line sets both `--data-dir` and `--kubeconfig`.
    """
    if data_dir is None:
        return kubeconfig
    if is_on_command_line(context, "kubeconfig"):
        raise typer.BadParameter("--data-dir and --kubeconfig select two different clusters: remove one of the options")
    return ""


def parse_platform_controllers(text: str) -> tuple[str, ...]:
    """Parse a `--controllers` list to the groups that a platform runs; raise BadParameter for an unknown group."""
    from batchyard.controller_groups import GROUPS  # noqa: PLC0415 - loads the platform

    return _parse_controllers(text, GROUPS)


def parse_upstream_projects(text: str) -> tuple[str, ...]:
    """Parse an `--upstream` list, such as `kueue,jobset`; raise BadParameter for an unknown project."""
    from batchyard.controller_groups import UPSTREAM_PROJECTS  # noqa: PLC0415 - loads the platform

    return _parse_names(text, tuple(UPSTREAM_PROJECTS))


def parse_job_controllers(text: str) -> tuple[str, ...]:
    """Parse a `--job-controllers` list, such as `kubeflow,ray`; raise BadParameter for an unknown name."""
    from batchyard.controller_groups import JOB_CONTROLLERS  # noqa: PLC0415 - loads the platform

    return _parse_names(text, tuple(JOB_CONTROLLERS))


def _parse_names(text: str, known_names: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in map(str.strip, text.split(",")) if name))
    for name in names:
        if name not in known_names:
            raise typer.BadParameter(f"'{name}' is not one of {', '.join(known_names)}")
    return names


def check_service_cidr(text: str) -> str:
    """Return a range of cluster IPs; raise BadParameter unless it is an IPv4 network of a supported size."""
    from batchyard.services.addresses import ServiceAddresses  # noqa: PLC0415 - loads the platform

    try:
        ServiceAddresses(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; use a range such as 10.96.0.0/16") from error
    return text


def parse_operator_controllers(text: str) -> tuple[str, ...]:
    """Parse a `--controllers` list to the groups that an operator runs; '' selects KUBERNETES_GROUPS.

    Raises BadParameter for a group that is unknown or cannot run in an operator.
    """
    from batchyard.controller_groups import KUBERNETES_GROUPS, REMOTE_GROUPS  # noqa: PLC0415 - loads the platform

    return _parse_controllers(text, REMOTE_GROUPS) if text else KUBERNETES_GROUPS


def _parse_controllers(text: str, available_groups: tuple[str, ...]) -> tuple[str, ...]:
    from batchyard.controller_groups import select_groups  # noqa: PLC0415 - loads the platform

    try:
        return select_groups(text, available_groups)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--controllers") from None


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
    typer.Option(parser=to_duration, metavar="DURATION", help="The horizon, such as 2h; default: a day."),
]
StateFile: TypeAlias = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="A state file instead of a cluster.")
]
FairSharing: TypeAlias = Annotated[
    bool, typer.Option("--fair-sharing", help="Use fair sharing; set this if the cluster's Kueue does.")
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
        parser=parse_collector_url,
        metavar="URL",
        help="Send traces to this collector (OTLP over HTTP), such as http://localhost:4318.",
    ),
]
KueueVersionOption: TypeAlias = Annotated[
    KueueVersionChoice, typer.Option("--kueue-version", help="Decide by the rules of this version of Kueue.")
]
#: The option of commands that read a state: without it, the version that the state records applies.
RecordedVersionOption: TypeAlias = Annotated[
    KueueVersionChoice | None,
    typer.Option(
        "--kueue-version", help="Decide by the rules of this version of Kueue.", show_default="as recorded, else 0.19"
    ),
]
ConfigFile: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Kueue's Configuration.")]
Runtime: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=to_duration,
        metavar="DURATION",
        help="Run time of pods without a run time of their own.",
        show_default="from the Cluster, else 1m",
    ),
]
