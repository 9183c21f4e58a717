"""Kinds that serve, in queues: Deployments, StatefulSets and LeaderWorkerSets.

admission           the webhooks: the labels and annotations of pod templates, and the rules of updates
stateful_set        the controller of StatefulSets: one Workload for all pods
leader_worker_set   the controller of LeaderWorkerSets: one Workload for each group
"""
