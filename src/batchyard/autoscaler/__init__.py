"""Cluster autoscaler: requests machines for unschedulable pods, and removes machines that are not needed."""
