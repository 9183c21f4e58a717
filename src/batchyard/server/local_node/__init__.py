"""The platform's side of a local node: this machine, whose node programs are in `shim`."""
