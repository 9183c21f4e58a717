"""The cluster of a folder's platform: determined once, recorded, and checked on later runs."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchyard.cli.platform.journal import OWN_FOLDER, StepJournal
from batchyard.provision.model import PlatformModel
from batchyard.provision.steps.cluster import ClusterConnection

_ASKED_WITHIN: Final = 60


class TargetError(Exception):
    """The cluster is unknown, or differs from the recorded one; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The kubeconfig and context options; '' if not given."""

    kubeconfig: str
    context: str


def reached_by(platform: PlatformModel, wanted: ClusterOptions) -> ClusterConnection:
    """How the steps reach the cluster, as far as known without running kubectl."""
    kubeconfig = str(Path(wanted.kubeconfig).expanduser().resolve()) if wanted.kubeconfig else ""
    if platform.google is not None:
        return ClusterConnection(kubeconfig or f"{OWN_FOLDER}/kubeconfig")
    return ClusterConnection(kubeconfig, wanted.context)


def settled(platform: PlatformModel, wanted: ClusterOptions, journal: StepJournal) -> ClusterConnection:
    """How the steps reach the cluster, with a fixed context that is independent of kubectl's current one.

    TargetError if kubectl has no cluster, or if the platform of this folder was created elsewhere.
    """
    reached = reached_by(platform, wanted)
    if platform.google is not None:
        _same(journal, platform.name, f"project {platform.google.project}, {platform.region}")
        return reached
    before = journal.target()
    if before is not None and not wanted.context and not wanted.kubeconfig:
        reached = ClusterConnection(before.get("kubeconfig", ""), before.get("context", ""))
    view = _view(reached)
    context = str(view.get("current-context") or "")
    servers = [row["cluster"].get("server", "") for row in view.get("clusters") or ()]
    if not context or not servers:
        raise TargetError("kubectl has no current cluster: select one with --kubeconfig FILE or --context NAME")
    _same(journal, platform.name, f"{servers[0]}", kubeconfig=reached.kubeconfig, context=context)
    return ClusterConnection(reached.kubeconfig, context)


def _same(journal: StepJournal, name: str, place: str, **how: str) -> None:
    """Record where the platform of this folder is, or check that it is unchanged."""
    before = journal.target()
    if before is None:
        journal.note(event="target", platform=name, place=place, **how)
        return
    if (before["platform"], before["place"]) != (name, place):
        was = f"{before['platform']} on {before['place']}"
        raise TargetError(f"this folder belongs to {was}, not to {name} on {place}: choose another with --out DIR")


def _view(reached: ClusterConnection) -> dict[str, Any]:
    """The part of the kubeconfig for the context, as merged by kubectl."""
    command = reached.kubectl("config", "view", "--minify", "--output=json")
    try:
        done = subprocess.run(  # noqa: S603 - kubectl with fixed arguments
            command.argv, capture_output=True, text=True, timeout=_ASKED_WITHIN, check=False
        )
    except FileNotFoundError:
        raise TargetError("kubectl: program not found on the PATH; install it first") from None
    except subprocess.TimeoutExpired:
        raise TargetError(f"kubectl did not report the current cluster within {_ASKED_WITHIN} s") from None
    if done.returncode:
        raise TargetError(f"{done.stderr.strip()}: select a cluster with --kubeconfig FILE or --context NAME")
    view: dict[str, Any] = json.loads(done.stdout)
    return view
