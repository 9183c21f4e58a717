"""Tests of the controllers of Deployments, ReplicaSets, StatefulSets, DaemonSets and CronJobs."""
