"""Container images of a platform on GKE, the shell commands that build or copy them, and the source archive.

The operator's image is built from the sources of this version, which are rendered as an archive. `spec.google.images`
adds images of Jobs: copied from another registry, or built from a git repository. Cloud Build and `batchyard platform
create` run the same commands.
"""

import errno
import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchyard.package_data import find_file, find_folder
from batchyard.provision.engine import operator_image
from batchyard.provision.model import GoogleSettings, PlatformEngine, PlatformModel

#: The source archive, below the rendered folder.
SOURCES_FILE: Final = "build/operator-image.tar.gz"
#: The folder of the unpacked archive, below the rendered folder.
_SOURCE_FOLDER: Final = "build/.operator-image"
#: The platform of GKE's nodes; the build machine may differ.
_NODE_PLATFORM: Final = "--platform=linux/amd64"


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """A container image, and the shell lines that build or copy the image and push it.

    In the lines, `$engine` is docker or podman.
    """

    reference: str
    #: What the shell lines do, in the imperative.
    summary: str
    lines: Sequence[str]

    @property
    def short_name(self) -> str:
        """The last part of the image's name, without registry, repository, tag and digest."""
        return self.reference.rpartition("/")[2].partition(":")[0].partition("@")[0]

    @property
    def registry(self) -> str:
        """The host name of the image's registry."""
        return self.reference.partition("/")[0]


def image_recipes(platform: PlatformModel) -> list[ImageRecipe]:
    """Return a recipe for each image that the platform must build or copy; empty if the cluster is not on GKE."""
    google = platform.google
    if google is None:
        return []
    recipes = [_operator_recipe(operator_image(platform))] if builds_operator_image(platform) else []
    return recipes + [_job_image_recipe(platform, google, index) for index in range(len(google.images))]


def builds_operator_image(platform: PlatformModel) -> bool:
    """Return whether the platform builds the operator's image.

    It does so on GKE with the engine batchyard, unless the platform file sets an image.
    """
    return platform.google is not None and platform.engine is PlatformEngine.BATCHYARD and not platform.operator.image


def _operator_recipe(reference: str) -> ImageRecipe:
    recipe_file = f"{_SOURCE_FOLDER}/deploy/image/Containerfile"
    lines = [
        f"rm -rf {_SOURCE_FOLDER}",
        f"mkdir -p {_SOURCE_FOLDER}",
        f"tar -xzf {SOURCES_FILE} -C {_SOURCE_FOLDER}",
        f'"$engine" build {_NODE_PLATFORM} --file {recipe_file} --tag {reference} {_SOURCE_FOLDER}',
        f"rm -rf {_SOURCE_FOLDER}",
        f'"$engine" push {reference}',
    ]
    return ImageRecipe(reference, f"build {reference} from {SOURCES_FILE}, and push it", lines)


def _job_image_recipe(platform: PlatformModel, google: GoogleSettings, index: int) -> ImageRecipe:
    image = google.images[index]
    location = image.location or platform.region
    repository = image.repository or google.repository
    reference = f"{location}-docker.pkg.dev/{google.project}/{repository}/{image.name}"
    if image.copy_from:
        lines = [
            f'"$engine" pull {_NODE_PLATFORM} {image.copy_from}',
            f'"$engine" tag {image.copy_from} {reference}',
            f'"$engine" push {reference}',
        ]
        return ImageRecipe(reference, f"copy {image.copy_from} to {reference}", lines)
    build_command = f"\"$engine\" build {_NODE_PLATFORM} --tag {reference} '{image.build_from}'"
    lines = [build_command, f'"$engine" push {reference}']
    return ImageRecipe(reference, f"build {reference} from {image.build_from}, and push it", lines)


# Source archive for the operator's image.
#
# The repository and an installed package produce the same archive: the package's files, and the files installed beside
# it.


_ARCHIVED_FILES: Final = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "requirements-build.lock",
    "requirements-runtime.lock",
)
_ARCHIVED_FOLDERS: Final = ("deploy/image", "deploy/monitoring", "examples/refarch", "examples/platforms")
#: Suffixes of compiled files, which can be for another machine.
_EXCLUDED_SUFFIXES: Final = frozenset({".pyc", ".so", ".pyd"})


def source_archive() -> bytes:
    """Return a reproducible .tar.gz of the sources that the operator's image is built from.

    Raises FileNotFoundError if this installation lacks a file.
    """
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as gzip_file,
        tarfile.open(fileobj=gzip_file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(_archive_members()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _archive_members() -> Iterator[tuple[str, Path]]:
    for name in _ARCHIVED_FILES:
        yield name, _require_path(name, find_file(name))
    yield from _files_below("src/batchyard", Path(__file__).parents[1])
    for name in _ARCHIVED_FOLDERS:
        yield from _files_below(name, _require_path(name, find_folder(name)))


def _require_path(name: str, path: Path | None) -> Path:
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "not installed with this version of batchyard; reinstall batchyard", name)
    return path


def _files_below(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in _EXCLUDED_SUFFIXES:
            yield f"{name}/{path.relative_to(folder).as_posix()}", path
