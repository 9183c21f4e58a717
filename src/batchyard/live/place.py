"""Where an embedded platform lives. Known without loading it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchyard.base.instant import Duration
from batchyard.controllers.groups import GROUPS
from batchyard.store.journal import Sync

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an embedded platform lives: its data directory, its port (0: any that is free), and how it is spoken to."""

    folder: Path
    port: int = 0
    #: Without TLS and credentials, for whoever can reach the loopback.
    is_insecure: bool = False
    #: The address it listens at, for others than this machine to reach it.
    address: str = LOOPBACK
    #: Where it is written down who did what.
    audit_log: Path | None = None
    sync: Sync = Sync.FULL
    #: Go on from a journal that has lost what was acknowledged.
    accept_loss: bool = False
    #: Which controllers run, by group; an operator beside it may do the rest.
    controllers: Sequence[str] = GROUPS
    #: The collector that traces are sent to, as OTLP over HTTP; '' for none.
    traces_to: str = ""
    #: Kueue's Configuration, where one is given.
    configuration: Mapping[str, Any] | None = None
    #: How long simulated pods run for which nothing else gives a run time; None: as the Cluster has it.
    runtime: Duration | None = None
