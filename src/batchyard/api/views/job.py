"""What is asked of a Job's spec in more than one layer."""

from batchyard.api.meta import Obj


def pods_at_once(spec: Obj) -> int:
    """How many pods of a Job run at a time: its parallelism, but never more than there are completions to reach."""
    parallelism: int = spec.get("parallelism", 1)
    completions: int | None = spec.get("completions")
    return parallelism if completions is None else min(parallelism, completions)
