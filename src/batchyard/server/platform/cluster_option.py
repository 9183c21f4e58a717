"""Check of the Cluster of `batchyard up --cluster` for a data directory that already has a Cluster."""

from collections.abc import Sequence

from batchyard.api.meta import Obj
from batchyard.api.validation.cluster import cluster_update_errors
from batchyard.server.platform.data_dir import PlatformOptions


class ClusterConflictError(Exception):
    """The stored Cluster cannot be updated to that of `--cluster`. The message contains the reason and the remedy."""


def check_cluster_option(cluster: Obj | None, stored_clusters: Sequence[Obj], options: PlatformOptions) -> None:
    """Raise ClusterConflictError if the stored Cluster has another name than `cluster`, or cannot be updated to it."""
    if cluster is None or not stored_clusters:
        return
    stored_cluster, name = stored_clusters[0], cluster["metadata"]["name"]
    stored_name = stored_cluster["metadata"]["name"]
    problem = (
        f"{options.folder}: the platform has Cluster {stored_name}, which cannot become Cluster {name} (--cluster)"
    )
    if name != stored_name:
        remedy = f"rename Cluster {name} to {stored_name}, or set another folder with --data-dir"
        raise ClusterConflictError(f"{problem}: metadata.name differs; {remedy}")
    errors = list(cluster_update_errors(with_spec_of(stored_cluster, cluster), stored_cluster))
    if errors:
        remedy = "keep the stored value, or set another folder with --data-dir"
        raise ClusterConflictError("\n".join(f"{problem}: {error}; {remedy}" for error in errors))


def with_spec_of(stored_cluster: Obj, cluster: Obj) -> Obj:
    """Return the stored Cluster with the spec of `cluster`."""
    return {**stored_cluster, "spec": cluster["spec"]}
