"""The guide on a platform whose controllers are separate operators with their installed permissions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from batchyard.cli.commands.live_guide import StartedPlatform, run_platform_process
from batchyard.controller_groups import GROUPS, KUBERNETES_GROUPS
from batchyard.operator_manifests import InstallSettings
from batchyard.sim.guide import Guide
from e2e_platform.operator_account import install_account
from e2e_platform.operator_process import OperatorRun

SETTINGS = InstallSettings(webhooks=False, page=False)
SPEED = 60.0


class GuidePlatform(NamedTuple):
    """A platform without these controllers, and the kubeconfig of the operators."""

    started: StartedPlatform
    kubeconfig: Path
    audit_log: Path

    def operator(self, *options: str) -> OperatorRun:
        """Another operator."""
        return OperatorRun(self.kubeconfig, "--leader-elect-resource-name", SETTINGS.name, *options)


@contextmanager
def guide_platform(guide: Guide, folder: Path, speed: float = SPEED) -> Iterator[GuidePlatform]:
    """A platform for the guide, with permissions for the account of the operators."""
    others = [group for group in GROUPS if group not in KUBERNETES_GROUPS]
    audit_log = folder / "audit.log"
    with run_platform_process(guide.cluster, speed, others, audit_log) as started:
        yield GuidePlatform(started, install_account(started.folder / "kubeconfig", folder, SETTINGS), audit_log)
