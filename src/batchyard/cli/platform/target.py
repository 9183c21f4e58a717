"""The cluster of a folder's platform: determined once, recorded, and checked on later runs."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from batchyard.api.errors import FieldError
from batchyard.api.yaml_documents import DocumentLines, read_documents
from batchyard.cli import output
from batchyard.cli.platform.journal import OWN_FOLDER, StepJournal
from batchyard.provision.loading import InvalidPlatform, PlatformFault, PlatformSource, read_platform
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


# --- files ---
#
# Reading of the platform.yaml that is named on the command line.


STANDARD_INPUT = "-"


def read_source(file: str) -> PlatformSource:
    """The text of a file or of standard input; ends the command with 1 if it cannot be read."""
    raw = _bytes_of(file)
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        _refuse(file, f"not a text file: byte {wrong.start} is not UTF-8", "save it as UTF-8")
    return PlatformSource("<stdin>" if file == STANDARD_INPUT else file, text)


def sound_platform(source: PlatformSource, project: str) -> PlatformModel:
    """The platform of a text; ends the command with 1 and all faults if it is invalid."""
    try:
        return read_platform(source, project)
    except InvalidPlatform as invalid:
        output.fail(f"{invalid}\nbatchyard: {source.name} is not a valid platform")


def lines_of(source: PlatformSource) -> DocumentLines:
    """The line numbers of the fields in a platform's text."""
    document = next(read_documents(source.text))
    return DocumentLines(document.text, document.line)


def _bytes_of(file: str) -> bytes:
    if file == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as wrong:
        reported = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
        _refuse(
            file, f"cannot be read: {reported}", "choose another file, or create one with `batchyard platform init`"
        )


def _refuse(file: str, problem: str, remedy: str) -> NoReturn:
    output.fail(str(PlatformFault(file, 0, FieldError("", problem, remedy))))
