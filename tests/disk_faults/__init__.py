"""A simulated disk below the store of objects, with faults that follow from a seed."""
