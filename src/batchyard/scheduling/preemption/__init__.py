"""Preemption of Workloads: the search for a small set of admitted Workloads whose eviction frees enough quota."""
