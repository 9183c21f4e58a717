"""What a pod and the objects it names become for its containers, as a kubelet works it out: no I/O, no clock."""
