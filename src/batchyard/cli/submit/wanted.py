"""The arguments of `batchyard submit`."""

from dataclasses import dataclass
from pathlib import Path

from batchyard.cli.options import Form
from batchyard.cli.submit.manifests import Asked


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments. `asked` may lack the namespace and the name."""

    asked: Asked
    folder: Path | None
    #: '' for the platform of the data directory.
    kubeconfig: str
    context: str
    data_dir: Path
    dry_run: bool
    detach: bool
    form: Form | None
