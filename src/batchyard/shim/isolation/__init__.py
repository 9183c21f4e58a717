"""The isolation of containers: namespaces, cgroups, seccomp, users and networks."""
