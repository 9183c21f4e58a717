"""The integrations of described kinds of jobs, by kind: from batchyard's descriptions and users' JobKinds."""

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec

from batchyard.admission_plugins.built_in import JOB_KINDS_MAX
from batchyard.api.meta import Obj
from batchyard.base.primitives import LruCache
from batchyard.jobs.described import description
from batchyard.jobs.described.integration import DescribedJobIntegration

#: The compiled descriptions of users' JobKinds, by their spec as JSON.
_COMPILED: Final[LruCache[bytes, DescribedJobIntegration]] = LruCache(JOB_KINDS_MAX)


def find_integration(kind: str, job_kinds: Mapping[str, Obj]) -> DescribedJobIntegration | None:
    """Return the integration of a kind such as `PyTorchJob.kubeflow.org`; None if nothing describes the kind.

    `job_kinds` are the users' JobKinds, by the kind that they describe. Raises InvalidJobKind if one is invalid.
    """
    job_kind = job_kinds.get(kind)
    if job_kind is None:
        return _find_built_in(kind)
    cache_key = msgspec.json.encode(job_kind["spec"])
    integration = _COMPILED.get(cache_key)
    if integration is None:
        integration = DescribedJobIntegration(description.parse_job_kind(job_kind))
        _COMPILED.put(cache_key, integration)
    return integration


@cache
def _find_built_in(kind: str) -> DescribedJobIntegration | None:
    spec = description.built_in_descriptions().get(kind)
    return None if spec is None else _integration_class(kind)(spec)


def _integration_class(kind: str) -> type[DescribedJobIntegration]:
    if kind == "TrainJob.trainer.kubeflow.org":
        from batchyard.jobs.described.train_jobs import TrainJobIntegration  # noqa: PLC0415 - few users have TrainJobs

        return TrainJobIntegration
    if kind == "AppWrapper.workload.codeflare.dev":
        from batchyard.jobs.described.app_wrappers import AppWrapperIntegration  # noqa: PLC0415 - as above

        return AppWrapperIntegration
    if kind == "SparkApplication.sparkoperator.k8s.io":
        from batchyard.jobs.described.spark_applications import SparkApplicationIntegration  # noqa: PLC0415 - as above

        return SparkApplicationIntegration
    return DescribedJobIntegration
