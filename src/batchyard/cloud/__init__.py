"""The simulated cloud: controllers that make Instances out of wishes, and Nodes out of Instances, as GCE and GKE do.

Nothing else in batchyard knows it. Whoever wants a machine creates an Instance, whoever gives one up deletes it; a
real cloud would be other controllers over the same objects.
"""
