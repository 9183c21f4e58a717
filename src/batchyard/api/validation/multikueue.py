"""Rules of MultiKueueConfigs and MultiKueueClusters. Source: the rules in Kueue's CRDs."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata


def multikueue_config_faults(config: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a MultiKueueConfig."""
    yield from metadata.metadata_faults(config)
    clusters = (config.get("spec") or {}).get("clusters") or ()
    if len(dict.fromkeys(clusters)) < len(clusters):
        yield faults.broken_rule("spec.clusters", "array", "must be unique", "name each cluster once")


def multikueue_cluster_faults(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a MultiKueueCluster."""
    yield from metadata.metadata_faults(cluster)
    source = (cluster.get("spec") or {}).get("clusterSource") or {}
    if (source.get("kubeConfig") is None) == (source.get("clusterProfileRef") is None):
        message = "exactly one of the fields in [kubeConfig clusterProfileRef] must be set"
        remedy = "say how to reach the cluster, in one way: kubeConfig, or clusterProfileRef"
        yield faults.broken_rule("spec.clusterSource", "object", message, remedy)
