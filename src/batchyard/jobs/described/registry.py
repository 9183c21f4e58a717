"""The described kinds of jobs that batchyard knows: the files in `built_in`, read when such a job is first seen."""

import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Final

from batchyard.api.yaml_documents import read_documents
from batchyard.jobs.described.description import JobKindSpec, parse_job_kind
from batchyard.jobs.described.integration import DescribedJobIntegration

_FILES: Final = ("kubeflow.yaml", "ray.yaml")


@cache
def find_described_kind(kind: str) -> DescribedJobIntegration:
    """Return the integration of a kind such as `PyTorchJob.kubeflow.org`. Raises KeyError if no file describes it."""
    return DescribedJobIntegration(built_in_descriptions()[kind])


@cache
def built_in_descriptions() -> Mapping[str, JobKindSpec]:
    """Return the descriptions in batchyard's files, by the kind of their jobs."""
    texts = [(pkgutil.get_data(__package__, f"built_in/{name}") or b"").decode() for name in _FILES]
    specs = [parse_job_kind(document.value) for text in texts for document in read_documents(text)]
    return {spec.group_kind: spec for spec in specs}
