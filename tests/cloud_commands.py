"""Stand-ins for terraform, gcloud and kubectl: programs on the PATH with their resources in a folder (cloud.sh)."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parent / "cloud.sh"
TOOLS = ("terraform", "gcloud", "kubectl", "gke-gcloud-auth-plugin", "podman")
#: The programs that the stand-ins call.
_BESIDES = ("cat", "cmp", "env", "grep", "mkdir", "rm", "sh")

PLATFORM = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: small}
spec:
  engine: kueue
  google:
    project: project-1
    images: [{name: "trainer:v1", copyFrom: "registry.example/trainer:v7"}]
  cluster:
    region: us-central1
    zones: [us-central1-a]
    nodePools:
      - {name: fixed, machineType: e2-medium, nodeCount: 2}
      - {name: spot, machineType: e2-standard-8, provisioning: spot, autoscaling: {totalMin: 0, totalMax: 4}}
  monitoring: {collector: None}
  flavors: [{name: spot, pools: [spot]}]
  queueClasses:
    - name: lp
      flavors: [{name: spot, resources: {cpu: {nominalQuota: 4}}}]
  teams:
    - {name: team-a, queues: [{class: lp}]}
"""


class CloudProject:
    """A separate project, and the stand-ins for its tools."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        tools = folder / "bin"
        tools.mkdir()
        text = _SCRIPT.read_text("utf-8").replace("@STATE@", str(self.state))
        for name in TOOLS:
            (tools / name).write_text(text, "utf-8")
            (tools / name).chmod(0o755)
        for name in ("count", "calls", "effects", "apis"):
            (self.state / name).write_text("0\n" if name == "count" else "", "utf-8")
        for name in _BESIDES:
            result = shutil.which(name)
            assert result is not None, f"{name} is on every machine"
            (tools / name).symlink_to(result)
        patch.setenv("PATH", str(tools))
        self.tools = tools
        self.file = folder / "platform.yaml"
        self.file.write_text(PLATFORM, "utf-8")
        self.out = folder / "out"
        (self.out / "terraform").mkdir(parents=True)
        #: The output of our processes.
        self.reported = folder / "told"

    def inject_fault(self, call: int, how: str) -> None:
        """Inject a fault at this call from now: `kill` us, `orphan` (kill us and continue), `fail` or `hang`."""
        (self.state / "fault").write_text(f"{self.count + call} {how}\n", "utf-8")

    def clear_fault(self) -> None:
        """Remove the injected fault."""
        (self.state / "fault").unlink(missing_ok=True)

    @property
    def count(self) -> int:
        """The number of calls."""
        return int((self.state / "count").read_text("utf-8"))

    @property
    def failable(self) -> list[int]:
        """The numbers of the calls that change resources."""
        return [int(line) for line in (self.state / "failable").read_text("utf-8").splitlines()]

    @property
    def calls(self) -> list[str]:
        """All calls, oldest first."""
        return (self.state / "calls").read_text("utf-8").splitlines()

    @property
    def effects(self) -> list[str]:
        """The changes of resources, oldest first."""
        return (self.state / "effects").read_text("utf-8").splitlines()

    def world(self) -> dict[str, str]:
        """The existing resources."""
        apart = {"count", "calls", "effects", "fault", "failable", "registry"}
        on_this_machine = "built."
        files = [path for path in sorted(self.state.rglob("*")) if path.is_file() and path.name not in apart]
        files = [path for path in files if not path.name.startswith(on_this_machine)]
        return {str(path.relative_to(self.state)): path.read_text("utf-8") for path in files}


def run_in_process(work: Callable[[], None], reported: Path, printed: Path | None = None) -> int:
    """Run work in a new process; return its exit code, or the negative number of its signal. Output goes to files."""
    return wait_for_exit(start_process(work, reported, printed))


def start_process(work: Callable[[], None], reported: Path, printed: Path | None = None) -> int:
    """Start the work in a new process; return its id."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream, path in ((1, printed or reported), (2, reported)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
            sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
            sys.stdin = os.fdopen(0, closefd=False)
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            os._exit(code)
    return child


def wait_for_exit(child: int) -> int:
    """Wait for a process; return its exit code, or the negative number of its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
