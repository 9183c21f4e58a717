"""Controllers of Deployments, ReplicaSets, StatefulSets, DaemonSets and CronJobs."""
