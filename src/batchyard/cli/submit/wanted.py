"""The arguments of `batchyard submit`."""

from dataclasses import dataclass
from pathlib import Path

from batchyard.cli.options import DocumentFormat
from batchyard.cli.submit.manifests import JobRequest


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The arguments. `asked` may lack the namespace and the name."""

    asked: JobRequest
    folder: Path | None
    #: '' for the platform of the data directory.
    kubeconfig: str
    context: str
    data_dir: Path
    dry_run: bool
    detach: bool
    form: DocumentFormat | None
