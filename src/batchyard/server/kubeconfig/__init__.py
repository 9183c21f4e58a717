"""How an API server elsewhere is reached: kubeconfig files and their credentials."""
