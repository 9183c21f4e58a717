"""The reference architecture's guide on a platform.yaml: it is rendered, and played on what comes of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from batchyard.cli import guide
from batchyard.cli.options import Output
from batchyard.cli.platform.files import read_source, sound_platform
from batchyard.cli.platform.render import write
from batchyard.provision.model import Platform
from batchyard.provision.render import render


def run(
    file: str, manifests: Path | None, step: str | None, form: Output, live: float | None, report: Path | None
) -> None:
    """Play it on a platform, or, where none is named, on that of the folder; exits with 1 where it goes wrong."""
    if not file:
        guide.run(manifests, step, form, live, report)
        return
    with _rendered(sound_platform(read_source(file), "")) as folder:
        guide.run(manifests, step, form, live, report, folder)


def play(platform: Platform, form: Output) -> None:
    """Play the whole guide on a platform, simulated."""
    with _rendered(platform) as folder:
        guide.run(None, None, form, None, rendered=folder)


@contextmanager
def _rendered(platform: Platform) -> Iterator[Path]:
    """A folder with all that the platform comes to, for as long as it is needed."""
    with TemporaryDirectory(prefix="batchyard-platform-") as name:
        write(render(platform), Path(name), overwrite=False)
        yield Path(name)
