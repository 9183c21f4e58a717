"""Functions from a view of the objects to intended writes, and the runner that executes them."""
