"""What every layer rests on: instants, ids, invariants."""
