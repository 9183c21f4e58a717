"""Kueue's part: who is in line, who is admitted where, what becomes of Workloads, and what queues say."""
