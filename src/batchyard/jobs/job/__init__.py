"""Job controller for batch/v1 Jobs, as in Kubernetes; decisions are pure functions of a Job and its pods.

- spec: the spec with defaults, the pods, and the observed state of a Job
- plan: the next changes of pods and status, from completion, parallelism and finalizer tracking
- controller: runs the decisions for all Jobs
- integration: queues Jobs in Kueue
"""
