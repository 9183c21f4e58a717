"""Job controller for batch/v1 Jobs, as in Kubernetes; decisions are pure functions of a Job and its pods.

spec, observed       the spec with defaults, and the state of the Job and its pods
completion           whether the Job is to end, and why
parallelism          how many pods it should have, and which are surplus
finalizer_tracking   counts each terminated pod exactly once
plan                 combines all of these
"""
