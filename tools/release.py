"""Builds a release: `python tools/release.py VERSION [--dry-run] [--without PART]`, or `make release VERSION=X.Y.Z`.

Checks the tree first and reports all problems at once. Then writes to a folder: the sdist, the pure wheel and the
compiled wheel (both from the sdist), the images as OCI archives, the Helm chart, the SBOM (CycloneDX) and SHA256SUMS.
Then creates the git tag. It uploads nothing: it prints the commands that do.

The sdist and the pure wheel are the same for each build of a commit. Exits with 1 if a check or a command fails.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
#: The parts that can be left out; a release without a part gets no tag.
PARTS: Final = ("compiled", "images", "chart", "sbom")
#: The targets of deploy/image/Containerfile.
IMAGES: Final = ("platform", "operator")
#: Where files state the version; each match must be the version of the release.
VERSION_PATTERNS: Final[Mapping[str, str]] = {
    "pyproject.toml": r'^version = "(.+)"$',
    "deploy/charts/batchyard/Chart.yaml": r"^(?:version|appVersion): (.+)$",
    "deploy/operator/overlays/gke/kustomization.yaml": r"newTag: (.+)$",
    "deploy/operator/base/deployment.yaml": r"image: batchyard:(.+)$",
    "deploy/image/Containerfile": r"-t batchyard:(\S+)",
    "docs/how-to/operator.md": r" batchyard:(\d\S+)",
    "src/batchyard/cli/commands/install.py": r'"batchyard:(\d.+)"',
    "src/batchyard/operator_manifests/deployment.py": r'"batchyard:(\d.+)"',
}
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
#: The environment of the pinned release tools: `make release` creates it.
_TOOLS: Final = ROOT / ".release/bin"


class ReleaseSettings(NamedTuple):
    """The version and the parts of a release, and the programs that build it."""

    version: str
    #: The folder of the results.
    out: Path
    #: The parts to build, of PARTS.
    parts: Sequence[str]
    #: The image from which the images copy Python; '' for the default of the Containerfile.
    base_image: str
    #: podman or docker; '' if neither is installed.
    engine: str
    #: Path of helm; '' if it is not installed.
    helm: str

    @property
    def tag(self) -> str:
        """The git tag."""
        return f"v{self.version}"

    @property
    def sdist(self) -> Path:
        """The path of the sdist."""
        return self.out / f"batchyard-{self.version}.tar.gz"

    @property
    def compiled_folder(self) -> Path:
        """The folder of the compiled wheel before its platform tag is widened."""
        return self.out / "unrepaired"


class ReleaseCommand(NamedTuple):
    """A command, and its additional environment variables."""

    arguments: Sequence[str]
    variables: Mapping[str, str] = {}

    def __str__(self) -> str:
        """The command as a line for a shell."""
        return " ".join([*(f"{name}={value}" for name, value in self.variables.items()), shlex.join(self.arguments)])


def main() -> None:
    """Check, then build or print the commands."""
    options = _parse_options()
    settings = ReleaseSettings(
        options.version,
        Path(options.out).absolute(),
        [part for part in PARTS if part not in options.without],
        options.base,
        next((name for name in ("podman", "docker") if shutil.which(name)), ""),
        shutil.which("helm") or shutil.which("helm", path=str(ROOT / ".helm")) or "",
    )
    problems = list(find_problems(settings))
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if options.dry_run:
        for command in [*build_commands(settings), *tag_commands(settings), *upload_commands(settings)]:
            print(command)
    if problems:
        sys.exit(1)
    if not options.dry_run:
        _build(settings)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build a release of batchyard; upload nothing.")
    parser.add_argument("version", help="X.Y.Z")
    parser.add_argument("--dry-run", action="store_true", help="check, print the commands, and run none of them")
    parser.add_argument(
        "--without", action="append", default=[], choices=PARTS, help="leave a part out; creates no tag"
    )
    parser.add_argument("--out", default="dist", help="the folder of the results (default: dist)")
    parser.add_argument("--base", default="", help="the image from which the images copy Python, by digest")
    return parser.parse_args()


def find_problems(settings: ReleaseSettings) -> Iterator[str]:
    """Yield a message for each problem that prevents the release, with place, cause and remedy."""
    if not _VERSION.fullmatch(settings.version):
        yield f"{settings.version!r} is not a version X.Y.Z"
    if changed := _git("status", "--porcelain").splitlines():
        yield f"the tree has uncommitted changes ({len(changed)}), such as {changed[0].split()[-1]}: commit them"
    if _git("tag", "--list", settings.tag):
        yield f"the tag {settings.tag} exists: choose the next version"
    if settings.out.exists() and any(settings.out.iterdir()):
        yield f"{settings.out} is not empty: remove its files, or select another folder with --out"
    heading = rf"^## {re.escape(settings.version)} - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        yield f"CHANGELOG.md has no heading '## {settings.version} - YYYY-MM-DD': add it, with the date of the release"
    for name, pattern in VERSION_PATTERNS.items():
        stated = re.findall(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        if wrong := [version for version in stated if version != settings.version] or (
            [] if stated else ["no version"]
        ):
            yield f"{name} states {wrong[0]}: set it to {settings.version}"
    yield from _missing_programs(settings)


def _missing_programs(settings: ReleaseSettings) -> Iterator[str]:
    needs = {
        "compiled": (shutil.which("cc") and _TOOLS.is_dir(), "a C compiler, and the release tools (make release)"),
        "images": (settings.engine, "podman or docker"),
        "chart": (settings.helm, "helm (make helm)"),
        "sbom": (_TOOLS.is_dir(), "the release tools (make release)"),
    }
    for part in settings.parts:
        found, what = needs[part]
        if not found:
            yield f"the part {part} needs {what}: install it, or leave the part out with --without {part}"


def build_commands(settings: ReleaseSettings) -> Iterator[ReleaseCommand]:
    """Yield the commands that write the results, in order."""
    epoch = {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
    python, out = sys.executable, str(settings.out)
    yield ReleaseCommand([python, "-m", "hatchling", "build", "--target", "sdist", "--directory", out], epoch)
    wheel = [python, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    yield ReleaseCommand([*wheel, out, str(settings.sdist)], epoch)
    if "compiled" in settings.parts:
        path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
        variables = {**epoch, "HATCH_BUILD_HOOK_ENABLE_MYPYC": "1", "PATH": path}
        yield ReleaseCommand([*wheel, str(settings.compiled_folder), str(settings.sdist)], variables)
        repair = f"{shlex.quote(str(_TOOLS / 'auditwheel'))} repair --wheel-dir {shlex.quote(out)}"
        unrepaired = shlex.quote(str(settings.compiled_folder))
        tools_path = os.pathsep.join([str(_TOOLS), os.environ["PATH"]])
        yield ReleaseCommand(["sh", "-c", f"{repair} {unrepaired}/*.whl && rm -r {unrepaired}"], {"PATH": tools_path})
    if "images" in settings.parts:
        yield from _image_commands(settings, epoch)
    if "chart" in settings.parts:
        yield ReleaseCommand([settings.helm or "helm", "package", "deploy/charts/batchyard", "--destination", out])
    if "sbom" in settings.parts:
        sbom = str(settings.out / f"batchyard-{settings.version}.cdx.json")
        scan = ["requirements", "requirements-runtime.lock", "--pyproject", "pyproject.toml", "--output-reproducible"]
        yield ReleaseCommand([str(_TOOLS / "cyclonedx-py"), *scan, "--output-file", sbom], epoch)


def _image_commands(settings: ReleaseSettings, epoch: Mapping[str, str]) -> Iterator[ReleaseCommand]:
    base = ["--build-arg", f"BASE={settings.base_image}"] if settings.base_image else []
    timestamp = ["--timestamp", epoch["SOURCE_DATE_EPOCH"]] if settings.engine == "podman" else []
    archive_format = ["--format", "oci-archive"] if settings.engine == "podman" else []
    for target in IMAGES:
        reference = _image_reference(settings, target)
        build = [
            settings.engine,
            "build",
            "--file",
            "deploy/image/Containerfile",
            "--target",
            target,
            *base,
            *timestamp,
        ]
        yield ReleaseCommand([*build, "--tag", reference, "."], epoch)
        archive = str(settings.out / f"batchyard-{settings.version}-{target}.image.tar")
        yield ReleaseCommand([settings.engine or "podman", "save", *archive_format, "--output", archive, reference])


def _image_reference(settings: ReleaseSettings, target: str) -> str:
    return f"batchyard:{settings.version}" if target == "operator" else f"batchyard-{target}:{settings.version}"


def tag_commands(settings: ReleaseSettings) -> Iterator[ReleaseCommand]:
    """Yield the command that creates the git tag; none if a part is left out."""
    if len(settings.parts) == len(PARTS):
        message = f"batchyard {settings.version}"
        yield ReleaseCommand(["git", "tag", "--annotate", settings.tag, "--message", message])


def upload_commands(settings: ReleaseSettings) -> Iterator[ReleaseCommand]:
    """Yield the commands that publish the results; the user replaces REGISTRY. This script does not run them."""
    yield ReleaseCommand(["git", "push", "origin", settings.tag])
    yield ReleaseCommand(["twine", "upload", f"{settings.out}/*.whl", str(settings.sdist)])
    for target in IMAGES if "images" in settings.parts else ():
        reference = _image_reference(settings, target)
        yield ReleaseCommand([settings.engine or "podman", "push", reference, f"REGISTRY/{reference}"])
    if "chart" in settings.parts:
        chart = str(settings.out / f"batchyard-{settings.version}.tgz")
        yield ReleaseCommand([settings.helm or "helm", "push", chart, "oci://REGISTRY/charts"])


def _build(settings: ReleaseSettings) -> None:
    settings.out.mkdir(parents=True, exist_ok=True)
    for command in build_commands(settings):
        _run(command)
    write_checksums(settings.out)
    for command in tag_commands(settings):
        _run(command)
    print(f"release: the results are in {settings.out}; to publish them, run:")
    for command in upload_commands(settings):
        print(f"  {command}")


def _run(command: ReleaseCommand) -> None:
    print(f"release: {command}", flush=True)
    done = subprocess.run(command.arguments, cwd=ROOT, env={**os.environ, **command.variables}, check=False)
    if done.returncode:
        sys.exit(f"release: {command.arguments[0]} failed with exit code {done.returncode}; nothing was tagged")


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of a folder's files, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines), "utf-8")


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


if __name__ == "__main__":
    main()
