"""The release script: its checks, and a release of the parts that need no other programs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VERSION = "0.2.0"
PARTS_LEFT_OUT = [f"--without={part}" for part in ("compiled", "images", "chart", "sbom")]


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository as a test's user; return its output."""
    user = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.check_output(["git", *user, *arguments], cwd=folder, text=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this tree in one commit, whose changelog has the date of the release."""
    folder = tmp_path_factory.mktemp("repository")
    for name in git(ROOT, "ls-files", ":!tests", ":!benchmarks").splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    changelog = folder / "CHANGELOG.md"
    heading = rf"(?m)^## {re.escape(VERSION)}.*$"
    changelog.write_text(re.sub(heading, f"## {VERSION} - 2026-12-01", changelog.read_text("utf-8")), "utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all: one commit")
    return folder


def release(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the release script."""
    command = [sys.executable, "tools/release.py", *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_release_writes_distributions_and_checksums(repository: Path) -> None:
    done = release(repository, VERSION, *PARTS_LEFT_OUT)
    assert done.returncode == 0, done.stderr
    names = {f"batchyard-{VERSION}.tar.gz", f"batchyard-{VERSION}-py3-none-any.whl"}
    assert {path.name for path in (repository / "dist").iterdir()} == names | {"SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=repository / "dist", check=True)
    assert f"git push origin v{VERSION}" in done.stdout
    assert git(repository, "tag") == ""


def test_dry_run_reports_all_problems_and_changes_nothing(repository: Path) -> None:
    note = repository / "note.txt"
    note.write_text("uncommitted", "utf-8")
    try:
        done = release(repository, "9.9.9", "--dry-run", "--out", "new", *PARTS_LEFT_OUT)
    finally:
        note.unlink()
    assert done.returncode == 1
    problems = done.stderr.splitlines()
    assert "release: the tree has uncommitted changes (1), such as note.txt: commit them" in problems
    assert "release: CHANGELOG.md has no heading '## 9.9.9 - YYYY-MM-DD'" in done.stderr
    assert f"release: pyproject.toml states {VERSION}: set it to 9.9.9" in problems
    assert f"release: deploy/charts/batchyard/Chart.yaml states {VERSION}: set it to 9.9.9" in problems
    assert "hatchling build --target sdist" in done.stdout
    assert not (repository / "new").exists()


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "01.2.3", "1.2.3rc1"])
def test_other_versions_are_rejected(repository: Path, version: str) -> None:
    done = release(repository, version, "--dry-run", *PARTS_LEFT_OUT)
    assert f"release: {version!r} is not a version X.Y.Z" in done.stderr.splitlines()
