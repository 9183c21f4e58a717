"""Plain pods and groups of pods in queues.

admission       the mutating webhook: the labels, gates and finalizer of new pods
group           the decisions about a pod or a group: pod sets, members to keep, completion
controller      the controller that keeps pods and their Workloads in sync
"""
