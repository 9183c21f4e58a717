"""The choices that options offer. Imports next to nothing, so that help and usage errors come at once."""

from enum import StrEnum


class Output(StrEnum):
    """The forms of whatever is listed; `wide` is a table with all columns, as kubectl has it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class Form(StrEnum):
    """The forms of manifests, and of what programs are told."""

    JSON = "json"
    YAML = "yaml"


class Sync(StrEnum):
    """What an answered change survives: the loss of power, or the end of the process alone."""

    FULL = "full"
    PROCESS = "process"


class LogLevel(StrEnum):
    """How much is logged."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


class LogForm(StrEnum):
    """The forms of what is logged."""

    TEXT = "text"
    JSON = "json"


class Scraped(StrEnum):
    """By which object a cluster's Prometheus is told what to scrape."""

    NONE = "none"
    POD_MONITORING = "PodMonitoring"
    SERVICE_MONITOR = "ServiceMonitor"


class OnLoop(StrEnum):
    """What to do when Workloads preempt each other for ever."""

    CONTINUE = "continue"
    STOP = "stop"


class Step(StrEnum):
    """The steps of the reference architecture's guide that can be played."""

    LOW_PRIORITY = "low-priority"
    HIGH_PRIORITY = "high-priority"
    COMPACT_PLACEMENT = "compact-placement"
    JOBSET = "jobset"
    DWS = "dws"


class Severities(StrEnum):
    """How bad findings are."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Telling(StrEnum):
    """How what happens is told: lines for people, or JSON lines for programs."""

    TEXT = "text"
    JSON = "json"
