"""The kinds of jobs that get a Workload, with the Kueue integration of each kind."""

from collections.abc import Mapping
from typing import Final

from batchyard.api import scheme
from batchyard.jobframework.workloads import GenericJob
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration

INTEGRATIONS: Final[Mapping[str, GenericJob]] = {scheme.JOB: JobIntegration(), scheme.JOB_SET: JobSetIntegration()}
