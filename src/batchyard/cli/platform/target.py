"""The connection to a platform's cluster, which is recorded in the platform's folder; and reading of platform files."""

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
from batchyard.provision.loading import InvalidPlatformError, PlatformFault, PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.steps.cluster import ClusterConnection

_KUBECTL_TIMEOUT: Final = 60


class TargetError(Exception):
    """Raised if the cluster is unknown, or not the one recorded in the platform's folder; the message has a remedy."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options --kubeconfig and --context; '' if not set."""

    kubeconfig: str
    context: str


def requested_connection(platform: PlatformModel, options: ClusterOptions) -> ClusterConnection:
    """Return the kubeconfig and context that kubectl gets for the cluster, as far as known without running kubectl."""
    kubeconfig = str(Path(options.kubeconfig).expanduser().resolve()) if options.kubeconfig else ""
    if platform.google is not None:
        return ClusterConnection(kubeconfig or f"{OWN_FOLDER}/kubeconfig")
    return ClusterConnection(kubeconfig, options.context)


def resolve_connection(platform: PlatformModel, options: ClusterOptions, journal: StepJournal) -> ClusterConnection:
    """Return the kubeconfig and context that kubectl gets for the cluster, and record the cluster in the journal.

    Except on GKE, the context is fixed, whatever kubectl's current context becomes. Raises TargetError if kubectl has
    no cluster, or if the platform of this folder was created in another cluster.
    """
    connection = requested_connection(platform, options)
    if platform.google is not None:
        _record_target(journal, platform.name, f"project {platform.google.project}, {platform.region}")
        return connection
    recorded_target = journal.target()
    if recorded_target is not None and not options.context and not options.kubeconfig:
        connection = ClusterConnection(recorded_target.get("kubeconfig", ""), recorded_target.get("context", ""))
    kubeconfig_view = _read_kubeconfig_view(connection)
    context = str(kubeconfig_view.get("current-context") or "")
    server_urls = [row["cluster"].get("server", "") for row in kubeconfig_view.get("clusters") or ()]
    if not context or not server_urls:
        raise TargetError("kubectl has no current cluster: select one with --kubeconfig FILE or --context NAME")
    _record_target(journal, platform.name, f"{server_urls[0]}", kubeconfig=connection.kubeconfig, context=context)
    return ClusterConnection(connection.kubeconfig, context)


def _record_target(journal: StepJournal, name: str, location: str, **details: str) -> None:
    recorded_target = journal.target()
    if recorded_target is None:
        journal.note(event="target", platform=name, place=location, **details)
        return
    if (recorded_target["platform"], recorded_target["place"]) != (name, location):
        owner = f"platform {recorded_target['platform']} on {recorded_target['place']}"
        message = f"the rendered folder belongs to {owner}, not to {name} on {location}"
        raise TargetError(f"{message}: choose another folder with --out DIR, or select that cluster")


def _read_kubeconfig_view(connection: ClusterConnection) -> dict[str, Any]:
    command = connection.kubectl("config", "view", "--minify", "--output=json")
    try:
        result = subprocess.run(  # noqa: S603 - kubectl with fixed arguments
            command.argv, capture_output=True, text=True, timeout=_KUBECTL_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise TargetError("kubectl: program not found on the PATH; install it first") from None
    except subprocess.TimeoutExpired:
        raise TargetError(f"kubectl reported no cluster within {_KUBECTL_TIMEOUT} s: check your kubeconfig") from None
    if result.returncode:
        reason = result.stderr.strip() or f"kubectl failed with exit code {result.returncode}"
        raise TargetError(f"{reason}: select a cluster with --kubeconfig FILE or --context NAME")
    kubeconfig_view: dict[str, Any] = json.loads(result.stdout)
    return kubeconfig_view


STANDARD_INPUT = "-"


def read_source(file: str) -> PlatformSource:
    """Return the text of a platform file or of standard input; exit with 1 if it cannot be read."""
    content = _read_bytes(file)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        _fail_with_fault(file, f"not a text file: byte {error.start} is not valid UTF-8", "save the file as UTF-8")
    return PlatformSource("<stdin>" if file == STANDARD_INPUT else file, text)


def read_valid_platform(source: PlatformSource, project: str) -> PlatformModel:
    """Return the platform in a platform file's text; exit with 1 and print the errors if it is invalid."""
    try:
        return read_platform(source, project)
    except InvalidPlatformError as invalid:
        output.fail(f"{invalid}\nbatchyard: {source.name} is not a valid platform")


def document_lines(source: PlatformSource) -> DocumentLines:
    """Return the line numbers of the fields in a platform file's text."""
    document = next(read_documents(source.text))
    return DocumentLines(document.text, document.line)


def _read_bytes(file: str) -> bytes:
    if file == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _fail_with_fault(
            file, f"cannot be read: {reason}", "choose another, or create one with `batchyard platform init`"
        )


def _fail_with_fault(file: str, problem: str, remedy: str) -> NoReturn:
    output.fail(str(PlatformFault(file, 0, FieldError("", problem, remedy))))
