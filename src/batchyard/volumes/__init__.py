"""PersistentVolumeClaims: binding, volumes that are folders of the local node, and protection while they are in use."""
