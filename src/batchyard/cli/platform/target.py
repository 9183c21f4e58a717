"""Which cluster a folder's platform is on: found out once, written down, and never another by mistake."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchyard.cli.platform.journal import OWN_FOLDER, Journal
from batchyard.provision.model import Platform
from batchyard.provision.steps.cluster import Reached

_ASKED_WITHIN: Final = 60


class TargetError(Exception):
    """It is not known which cluster is meant, or it is another than before; says what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user says of the cluster: '' where nothing."""

    kubeconfig: str
    context: str


def reached_by(platform: Platform, wanted: Wanted) -> Reached:
    """How the steps reach the cluster, as far as it is known without asking anybody."""
    kubeconfig = str(Path(wanted.kubeconfig).expanduser().resolve()) if wanted.kubeconfig else ""
    if platform.google is not None:
        return Reached(kubeconfig or f"{OWN_FOLDER}/kubeconfig")
    return Reached(kubeconfig, wanted.context)


def settled(platform: Platform, wanted: Wanted, journal: Journal) -> Reached:
    """How the steps reach the cluster, with a context that does not change with kubectl's current one.

    TargetError where none is there, or where the platform of this folder was made elsewhere.
    """
    reached = reached_by(platform, wanted)
    if platform.google is not None:
        _same(journal, platform.name, f"project {platform.google.project}, {platform.region}")
        return reached
    before = journal.target()
    if before is not None and not wanted.context and not wanted.kubeconfig:
        reached = Reached(before.get("kubeconfig", ""), before.get("context", ""))
    view = _view(reached)
    context = str(view.get("current-context") or "")
    servers = [row["cluster"].get("server", "") for row in view.get("clusters") or ()]
    if not context or not servers:
        raise TargetError("kubectl knows no cluster: name one with --kubeconfig FILE or --context NAME")
    _same(journal, platform.name, f"{servers[0]}", kubeconfig=reached.kubeconfig, context=context)
    return Reached(reached.kubeconfig, context)


def _same(journal: Journal, name: str, place: str, **how: str) -> None:
    """Write down where the platform of this folder is, or see that it is still there."""
    before = journal.target()
    if before is None:
        journal.note(event="target", platform=name, place=place, **how)
        return
    if (before["platform"], before["place"]) != (name, place):
        was = f"{before['platform']} on {before['place']}"
        raise TargetError(f"this folder is that of {was}, not of {name} on {place}: name another with --out DIR")


def _view(reached: Reached) -> dict[str, Any]:
    """The part of the kubeconfig that is about the context, as kubectl merges it."""
    command = reached.kubectl("config", "view", "--minify", "--output=json")
    try:
        done = subprocess.run(  # noqa: S603 - kubectl with words of ours
            command.argv, capture_output=True, text=True, timeout=_ASKED_WITHIN, check=False
        )
    except FileNotFoundError:
        raise TargetError("kubectl: there is no such program on the PATH; install it first") from None
    except subprocess.TimeoutExpired:
        raise TargetError(f"kubectl did not say within {_ASKED_WITHIN} s which cluster is meant") from None
    if done.returncode:
        raise TargetError(f"{done.stderr.strip()}: name a cluster with --kubeconfig FILE or --context NAME")
    view: dict[str, Any] = json.loads(done.stdout)
    return view
