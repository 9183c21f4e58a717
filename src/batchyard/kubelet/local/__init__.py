"""Local kubelet: computes run requests (containers to start or stop) and pod statuses from pods and their runs."""
