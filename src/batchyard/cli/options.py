"""The choices of options. Imports little, so that help and usage errors are fast."""

from enum import StrEnum


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
