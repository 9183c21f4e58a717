"""What a command line asks of `batchyard submit`."""

from dataclasses import dataclass
from pathlib import Path

from batchyard.cli.options import Form
from batchyard.cli.submit.manifests import Asked


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line says. The namespace and the name of what is asked may be missing."""

    asked: Asked
    folder: Path | None
    #: '' where the platform of the data directory is meant.
    kubeconfig: str
    context: str
    data_dir: Path
    dry_run: bool
    detach: bool
    form: Form | None
