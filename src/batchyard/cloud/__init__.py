"""The simulated cloud: controllers that provision machines for Instance objects and register Nodes, as GCE and GKE do.

Clients create an Instance to request a machine, and delete it to release the machine. Controllers of a real cloud could
replace this package.
"""
