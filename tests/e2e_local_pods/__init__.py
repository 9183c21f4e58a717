"""Pods that are processes of this machine, with kubectl."""
