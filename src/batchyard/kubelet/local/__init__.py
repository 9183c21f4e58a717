"""Local kubelet: decides which containers to start or stop on this machine, and computes the statuses of its pods."""
