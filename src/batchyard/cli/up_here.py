"""`batchyard up` in the foreground: runs the embedded platform in this process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, with_path
from batchyard.api.scheme import CLUSTER, kind_info
from batchyard.cli import output
from batchyard.cli.kueue_file import kept_in
from batchyard.cli.up import UpOptions
from batchyard.scheduling.kueue_configuration import parse_kueue_settings
from batchyard.server.forecasting.service import ForecastFunctions
from batchyard.server.platform.credentials import CredentialsError
from batchyard.server.platform.data_dir import PlatformOptions
from batchyard.server.platform.serve import PortError, serve
from batchyard.sim.forecasting.service import ForecastAnswers
from batchyard.store.commit_mark import JournalError

_ENGINES: Final = ("podman", "docker")
#: The options of `up` that need this machine as a node.
_OF_PODS: Final = "--image, --host-path and --host-network"
#: The value of `--cluster` for a Cluster whose only node is this machine.
_LOCAL: Final = Path("local")
_LOCAL_CLUSTER: Final = """\
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: local}
spec: {zones: [local], local: {}}
"""


def run(place: PlatformOptions, cluster: Obj | None, speed: float, ready: Callable[[str], None]) -> None:
    """Run a platform until a termination signal; call `ready` with its URL once it listens."""
    answering = (
        ForecastAnswers() if place.configuration is None else ForecastAnswers(parse_kueue_settings(place.configuration))
    )
    foresight = ForecastFunctions(answering.forecast_of, answering.samples_of, answering.warnings_for)
    try:
        uvloop.run(serve(place, cluster, speed, ready, foresight))
    except (JournalError, PortError, CredentialsError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"{error.filename or place.folder}: {error.strerror}"
        output.fail(f"batchyard: {message}; check its free disk space and permissions")
    output.report_line("batchyard: ended, its data is kept")


def configured(wanted: UpOptions) -> PlatformOptions:
    """The place with Kueue's Configuration added; ends the command if the file is invalid."""
    return wanted.place if wanted.config is None else replace(wanted.place, configuration=kept_in(wanted.config))


def cluster_of(wanted: UpOptions) -> Obj | None:
    """The requested Cluster, None if none was requested; ends the command if it is invalid."""
    is_about_pods = bool(wanted.images or wanted.host_paths or wanted.host_network)
    if wanted.cluster is None:
        if is_about_pods:
            output.fail(f"batchyard: {_OF_PODS} are for pods of this machine: add --cluster local")
        return None
    cluster = _read(wanted.cluster)
    local = cluster["spec"].get("local")
    if local is None:
        if is_about_pods:
            message = f"batchyard: {wanted.cluster}: {_OF_PODS} are for pods of this machine"
            output.fail(f"{message}, which is not a node of this Cluster; add spec.local to it")
        return cluster
    if wanted.speed != 1:
        output.fail("batchyard: real processes cannot be sped up: leave out --speed if this machine is a node")
    images = [*map(_image, wanted.images), *(local.get("images") or ())]
    paths = [*(str(path.expanduser().resolve()) for path in wanted.host_paths), *(local.get("hostPaths") or ())]
    own = {**local, "images": images, "hostPaths": paths}
    return with_path(cluster, ("spec", "local"), {**own, "hostNetwork": True} if wanted.host_network else own)


def _image(text: str) -> dict[str, object]:
    """A row of `spec.local.images`."""
    name, equals, place = text.partition("=")
    if not equals or not name or not place:
        examples = "such as 'pytorch/*=.venv' or 'busybox=/', or as NAME=podman: or NAME=docker:"
        output.fail(f"batchyard: --image {text}: use NAME=DIRECTORY, {examples}")
    engine, colon, image = place.partition(":")
    if colon and engine in _ENGINES:
        return {"match": name, "engine": engine, **({"image": image} if image else {})}
    path = Path(place).expanduser().resolve()
    if path == Path("/"):
        return {"match": name, "machine": True}
    if not path.is_dir():
        output.fail(f"batchyard: --image {text}: {path} is not a folder; give a virtualenv, a root folder, or /")
    return {"match": name, "environment" if (path / "pyvenv.cfg").exists() else "root": str(path)}


def _read(path: Path) -> Obj:
    """The Cluster of a file, or for `local` the built-in Cluster of this machine."""
    try:
        text = _LOCAL_CLUSTER if path == _LOCAL else path.read_text("utf-8")
        manifests = read_manifests([(str(path), text)])
    except OSError as error:
        output.fail(f"batchyard: {path}: {error.strerror}; give a file with a Cluster to --cluster")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {path}: {error}")
    clusters = [manifest.obj for manifest in manifests.objects if manifest.obj["kind"] == kind_info(CLUSTER).kind]
    if manifests.faults:
        output.fail("\n".join(map(str, manifests.faults)))
    if len(clusters) != 1:
        output.fail(f"batchyard: {path}: contains {len(clusters)} Clusters; give a file with exactly one")
    return clusters[0]
