"""Storage of objects with revisions and watches, independent of their kinds."""
