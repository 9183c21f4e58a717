"""The platform's side of a local node: this machine, whose programs are in `shim`."""
