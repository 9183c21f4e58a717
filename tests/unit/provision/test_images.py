"""The operator's image: its sources as an archive, and the commands that build it."""

import io
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from batchyard.package_data import read_folder
from batchyard.provision.images import SOURCES_FILE, builds_operator_image, image_recipes, source_archive
from batchyard.provision.loading import PlatformSource, read_platform

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
REFARCH = read_folder("examples/platforms", ".yaml")["refarch.yaml"]
#: Records its arguments, and whether the sources are in the build folder.
ENGINE = """#!/bin/sh
for last in "$@"; do :; done
found=; [ -f "$last/src/batchyard/__main__.py" ] && [ -f "$last/deploy/image/Containerfile" ] && found=" found"
echo "$1 $last$found" >> calls
"""


def test_source_archive_is_complete_and_reproducible() -> None:
    first = source_archive()
    assert source_archive() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        names = set(archive.getnames())
        containerfile = archive.extractfile("deploy/image/Containerfile")
        assert containerfile is not None
        lines = containerfile.read().decode().splitlines()
    copied = [
        source for line in lines if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    ]
    for source in copied:
        assert source in names or any(name.startswith(f"{source}/") for name in names), source
    assert not any("__pycache__" in name for name in names)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    created = [line.removeprefix("RUN mkdir ") for line in lines if line.startswith("RUN mkdir ")]
    assert set(wheel["shared-data"]) <= {*copied, *created}


def test_image_commands_build_from_archive_and_push(tmp_path: Path) -> None:
    (recipe,) = image_recipes(read_platform(PlatformSource("p", REFARCH)))
    (tmp_path / SOURCES_FILE).parent.mkdir(parents=True)
    (tmp_path / SOURCES_FILE).write_bytes(source_archive())
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    script = "\n".join(["engine=./engine", *recipe.lines])
    subprocess.run(["sh", "-ceu", script], cwd=tmp_path, check=True)
    reference = "us-central1-docker.pkg.dev/my-project/gke-batch-refarch/batchyard:0.2.0"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["build build/.operator-image found", f"push {reference}"]
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["operator-image.tar.gz"]


def test_no_image_is_built_for_kueue_or_named_image() -> None:
    for old, new in (
        ("  engine: batchyard\n", "  engine: kueue\n"),
        ("  engine: batchyard\n", "  operator: {image: registry.example/batchyard:v1}\n"),
    ):
        platform = read_platform(PlatformSource("p", REFARCH.replace(old, new)))
        assert not builds_operator_image(platform)
        assert not image_recipes(platform)
