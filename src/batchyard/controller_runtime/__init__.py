"""Runtime for controllers: event loop, work queues, the runner of reconciles, and the recorder of Kubernetes Events."""
