"""The images of containers: engines, pulls, unpacking and the store of root folders."""
