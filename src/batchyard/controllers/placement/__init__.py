"""kube-scheduler's part: pods to nodes, and Hotswap."""
