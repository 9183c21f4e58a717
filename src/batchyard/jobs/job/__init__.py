"""Controller of batch/v1 Jobs, as in Kubernetes.

- spec: the spec of a Job with defaults, the pods of the Job, and its observed state
- plan: the next changes of the pods and the status of a Job
- controller: applies the plans of all Jobs
- integration: Kueue integration, which makes Jobs wait in queues
"""
