"""Kinds of jobs that a JobKind describes: any custom kind that can be suspended gets Workloads, without code."""
