"""Access to a remote API server: kubeconfig files, in-cluster configuration, and credential plugins."""
