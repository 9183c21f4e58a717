"""A folder with the Terraform files of a platform, and the real Terraform with a stub provider."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.terraform.files import terraform_files
from terraform.schema import beta_schema, provider_schema
from terraform.stub_provider import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "platforms"
#: The path of the binary from `make terraform`.
LIBRARY = ROOT / ".terraform-library" / "bin" / "python"


def terraform_command() -> Sequence[str]:
    """The command of Terraform or OpenTofu; empty if both are missing."""
    result = shutil.which("terraform") or shutil.which("tofu")
    if result:
        return [result]
    return [str(LIBRARY), str(Path(__file__).with_name("as_a_library.py"))] if LIBRARY.exists() else []


needs_terraform = pytest.mark.skipif(not terraform_command(), reason="Terraform is not installed: run make terraform")


def example(name: str) -> PlatformModel:
    """A platform of examples/platforms."""
    return read_platform(PlatformSource(name, (EXAMPLES / f"{name}.yaml").read_text("utf-8")))


def render_platform(platform: PlatformModel, folder: Path) -> Path:
    """Write the files of a platform below a folder."""
    for path, text in terraform_files(platform).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    return folder


@dataclass(frozen=True)
class TerraformFolder:
    """A working folder of Terraform."""

    folder: Path
    provider: str

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command; it may fail."""
        return self._ran([*terraform_command(), *words])

    def run_script(self, script: str) -> str:
        """Run a script of a build with the local `terraform`; it must succeed. Return the output."""
        tools = self.folder.parent / "tools"
        tools.mkdir(exist_ok=True)
        (tools / "terraform").write_text(f'#!/bin/sh\nexec {shlex.join(terraform_command())} "$@"\n', "utf-8")
        (tools / "terraform").chmod(0o755)
        done = self._ran(["sh", "-ceu", script], PATH=f"{tools}:{os.environ['PATH']}")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def _ran(self, command: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TF_")},
            "CHECKPOINT_DISABLE": "1",
            "TF_CLI_CONFIG_FILE": os.devnull,
            "TF_IN_AUTOMATION": "1",
            "TF_REATTACH_PROVIDERS": self.provider,
            **more,
        }
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    def must(self, *words: str) -> str:
        """Run a command; it must succeed. Return the output."""
        done = self.run(*words)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def planned(self) -> Mapping[str, Mapping[str, Any]]:
        """All planned resources by address, with their known values."""
        self.must("plan", "-input=false", "-no-color", "-out=made.tfplan")
        root = json.loads(self.must("show", "-json", "made.tfplan"))["planned_values"]["root_module"]
        return dict(_resources(root))


def _resources(module: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((row["address"], row["values"]) for row in module.get("resources", ()))
    for child in module.get("child_modules", ()):
        yield from _resources(child)


@contextmanager
def workplace(platform: PlatformModel, folder: Path, configuration: str = "terraform") -> Iterator[TerraformFolder]:
    """The initialized Terraform of a platform, with its state in the folder instead of a bucket."""
    place = render_platform(platform, folder) / configuration
    (place / "override.tf").write_text('terraform {\n  backend "local" {}\n}\n', "utf-8")
    with serving([provider_schema(), beta_schema()], folder) as provider:
        opened = TerraformFolder(place, provider)
        opened.must("init", "-input=false", "-no-color")
        yield opened
