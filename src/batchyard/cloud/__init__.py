"""The simulated cloud: controllers that provision machines for Instances and register Nodes, like GCE and GKE.

The rest of batchyard does not depend on it: clients create an Instance to request a machine, and delete it to release
it. A real cloud would be other controllers for the same objects.
"""
