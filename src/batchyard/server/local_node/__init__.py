"""The local machine as a node of the cluster: its container runtime, pod network, exec sessions and usage metrics.

The programs that start and supervise the containers are in `batchyard.shim`.
"""
