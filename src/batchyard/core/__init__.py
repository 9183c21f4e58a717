"""Decisions as pure functions of a snapshot: quota, flavors, preemption, fair sharing, the cycle."""
