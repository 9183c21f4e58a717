"""The reference architecture's guide on a platform.yaml: renders the platform and plays the guide on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from batchyard.cli import guide
from batchyard.cli.options import Output
from batchyard.cli.platform.files import read_source, sound_platform
from batchyard.cli.platform.render import write
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render


def run(
    file: str, manifests: Path | None, step: str | None, form: Output, live: float | None, report: Path | None
) -> None:
    """Play the guide on a platform.yaml, or on the platform of the manifests folder; exits with 1 on failure."""
    if not file:
        guide.run(manifests, step, form, live, report)
        return
    with _rendered(sound_platform(read_source(file), "")) as folder:
        guide.run(manifests, step, form, live, report, folder)


def play(platform: PlatformModel, form: Output) -> None:
    """Simulate the whole guide on a platform."""
    with _rendered(platform) as folder:
        guide.run(None, None, form, None, rendered=folder)


@contextmanager
def _rendered(platform: PlatformModel) -> Iterator[Path]:
    """A temporary folder with the rendered platform."""
    with TemporaryDirectory(prefix="batchyard-platform-") as name:
        write(render(platform), Path(name), overwrite=False)
        yield Path(name)
