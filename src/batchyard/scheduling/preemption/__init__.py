"""Preemption of Workloads: finds candidates, and a small set of them that frees enough quota."""
