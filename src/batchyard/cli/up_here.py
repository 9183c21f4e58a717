"""The embedded platform in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj
from batchyard.api.scheme import CLUSTER, kind_info
from batchyard.cli import output
from batchyard.live.place import Place
from batchyard.live.serving import PortError, serve
from batchyard.store.mark import JournalError

#: What `--cluster` means by this machine as the one node.
_LOCAL: Final = Path("local")
_LOCAL_CLUSTER: Final = """\
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: local}
spec: {zones: [local], local: {}}
"""


def run(place: Place, cluster: Obj | None, speed: float, ready: Callable[[str], None]) -> None:
    """Run a platform until it is told to end; `ready` is told its address once it listens."""
    try:
        uvloop.run(serve(place, cluster, speed, ready))
    except (JournalError, PortError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        told = f"{error.filename or place.folder}: {error.strerror}"
        output.fail(f"batchyard: {told}; see that there is room in its folder and that it may be written")
    output.tell("batchyard: ended, all is kept")


def cluster_of(path: Path) -> Obj:
    """The Cluster of a file; ends the command where there is none."""
    try:
        text = _LOCAL_CLUSTER if path == _LOCAL else path.read_text("utf-8")
        manifests = read_manifests([(str(path), text)])
    except OSError as error:
        output.fail(f"batchyard: {path}: {error.strerror}; name a file that holds a Cluster with --cluster")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {path}: {error}")
    clusters = [manifest.obj for manifest in manifests.objects if manifest.obj["kind"] == kind_info(CLUSTER).kind]
    if manifests.faults:
        output.fail("\n".join(map(str, manifests.faults)))
    if len(clusters) != 1:
        output.fail(f"batchyard: {path}: holds {len(clusters)} Clusters; give a file with one")
    return clusters[0]
