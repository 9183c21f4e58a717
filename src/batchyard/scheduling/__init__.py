"""Kueue's scheduler: queues, admission cycles, preemption, the Workload lifecycle and queue status."""
