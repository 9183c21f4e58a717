"""Explains for `batchyard why` why a Workload is pending or how it runs, from quotas, queues and nodes."""
