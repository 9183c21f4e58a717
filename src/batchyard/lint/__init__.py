"""What is wrong with a configuration before it is applied: rules over all objects of a set of manifests."""
