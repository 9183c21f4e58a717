"""Kinds that serve, in queues: Deployments, StatefulSets and LeaderWorkerSets.

admission       the webhooks: the labels and annotations of pod templates, and the rules of updates
"""
