"""The local node, in which this machine runs pods: its container runtime, network, sessions and usage.

The programs that start and supervise the containers are in `batchyard.shim`.
"""
