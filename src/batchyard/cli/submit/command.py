"""`batchyard submit`: creates a Job, reports its progress, and exits with its exit code."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj
from batchyard.base.ids import uid_for
from batchyard.cli import output
from batchyard.cli.options import DocumentFormat
from batchyard.cli.submit import packing
from batchyard.cli.submit.manifests import JobRequest, job_of, parts_of, stem_of
from batchyard.cli.submit.telling import SubmitOutput
from batchyard.cli.submit.wanted import SubmitRequest
from batchyard.cli.tables import render_json, render_yaml
from batchyard.server.clocks.wall import wall_clock

#: The length of the suffix of generated names, as in Kubernetes.
_LETTERS: Final = 5


def submit(request: SubmitRequest) -> int:
    """Run the command; return the exit code of the Job's command once it has ended."""
    asked = _named(request.asked)
    packed = _packed(request)
    archive = None if packed is None else packed.content
    job = job_of(asked, archive)
    parts = [] if archive is None else parts_of(asked, archive)
    faults = read_manifests([("submit", json.dumps(job))]).faults
    if faults:
        output.fail("\n".join(f"batchyard: {fault.error}" for fault in faults))
    if request.dry_run:
        output.write(_written([*parts, job], request.form or DocumentFormat.YAML))
        return 0
    from batchyard.cli.submit import sending  # noqa: PLC0415 - loads the HTTP client

    reported = SubmitOutput(is_json=request.form is DocumentFormat.JSON)
    try:
        return asyncio.run(sending.submit_job(request, asked, packed, reported))
    except sending.REFUSALS as error:
        output.fail(f"batchyard: {error}")


def _named(asked: JobRequest) -> JobRequest:
    """Set a generated name if none is given."""
    if asked.name:
        return asked
    letters = uid_for(wall_clock(), str(os.getpid()), *asked.argv)[:_LETTERS]
    return replace(asked, name=f"{stem_of(asked.argv)}-{letters}")


def _packed(request: SubmitRequest) -> packing.PackedFolder | None:
    if request.folder is None:
        return None
    try:
        return packing.pack(request.folder)
    except packing.PackingError as error:
        output.fail(f"batchyard: {error}")


def _written(objects: Sequence[Obj], form: DocumentFormat) -> str:
    """Format the objects as manifests for kubectl."""
    if form is DocumentFormat.YAML:
        return "---\n".join(map(render_yaml, objects))
    if len(objects) == 1:
        return render_json(objects[0])
    return render_json({"apiVersion": "v1", "kind": "List", "items": objects})
