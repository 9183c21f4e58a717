"""Steps that create a platform, in order: on GKE, or on an existing Kubernetes cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from batchyard.provision.model import PlatformEngine, PlatformModel
from batchyard.provision.render import ENGINE
from batchyard.provision.steps import cluster, google, pruning
from batchyard.provision.steps.cluster import ClusterConnection
from batchyard.provision.steps.manifests import ManifestPart, parts
from batchyard.provision.steps.model import Consent, PlatformStep
from batchyard.provision.steps.tools import KUBECTL


def create(
    platform: PlatformModel, files: Mapping[str, str], reached: ClusterConnection, *, is_pruning: bool = False
) -> list[PlatformStep]:
    """Return the steps that create a platform from rendered files (text by path); `reached`: access to its cluster.

    Objects of earlier files that this one no longer defines are reported, and with `is_pruning` removed.
    """
    all_parts = parts(platform, files)
    old = (
        pruning.removed(reached, platform, all_parts)
        if is_pruning
        else pruning.report_step(reached, platform, all_parts, "; --prune removes it")
    )
    steps = [*_on_cluster(platform, all_parts, reached), old, *_last(platform, reached)]
    made = platform.google
    if made is None:
        consent = Consent(f"This applies {platform.name} to {where(reached)}.")
        rights = cluster.may_write(reached, platform.name)
        return [KUBECTL.step(), cluster.api_server(reached), rights, *_confirm_first(steps, consent)]
    return [
        *google.tools(),
        *google.account_steps(made.project),
        *google.project_is_ready(made.project),
        *google.bucket_steps(platform, made),
        google.initialized(),
        google.applied(),
        google.credentials(platform, made, reached.kubeconfig, reached.ask),
        cluster.api_server(reached),
        *google.images(platform, made, all_parts),
        *steps,
    ]


def _on_cluster(
    platform: PlatformModel, all_parts: Sequence[ManifestPart], reached: ClusterConnection
) -> Iterator[PlatformStep]:
    """Yield the steps on the cluster once it is reachable."""
    flavor = next((found for part in all_parts if (found := part.first("ResourceFlavor"))), None)
    for part in all_parts:
        if part.path == ENGINE:
            engine = cluster.installed(reached, part, platform, flavor)
            yield from engine if platform.google else _unless_embedded(platform, engine, reached)
        else:
            yield cluster.applied(reached, part)
    yield from cluster.queues_active(reached, platform.queues)


def _last(platform: PlatformModel, reached: ClusterConnection) -> Iterator[PlatformStep]:
    """Yield the final check."""
    local_queues = [row for queue in platform.queues for row in queue.local_queues]
    if local_queues:
        yield cluster.job_would_queue(reached, local_queues[0].namespace, local_queues[0].name)


def _unless_embedded(
    platform: PlatformModel, steps: Iterator[PlatformStep], reached: ClusterConnection
) -> Iterator[PlatformStep]:
    """Skip the operator's steps if the cluster is a `batchyard up`, which has its own engine."""
    if platform.engine is PlatformEngine.KUEUE:
        return steps
    return (replace(step, only_if=cluster.runs_batchyard(reached)) for step in steps)


def _confirm_first(steps: Sequence[PlatformStep], consent: Consent) -> list[PlatformStep]:
    """Ask before the first step that writes."""
    first = next(index for index, step in enumerate(steps) if step.commands)
    return [replace(step, consent=consent) if index == first else step for index, step in enumerate(steps)]


def where(reached: ClusterConnection) -> str:
    """Describe the cluster."""
    return f"the cluster of context {reached.context}" if reached.context else "the cluster of kubectl's own context"
