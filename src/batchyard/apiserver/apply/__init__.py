"""Which client cares for which field, and server-side apply, which rests on that."""
