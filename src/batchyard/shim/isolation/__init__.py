"""Isolation of containers: bubblewrap, capabilities of the node, cgroups, mounts, networks, seccomp and users."""
