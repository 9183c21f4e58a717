"""Parsed views of API objects: Python objects with the fields that controllers need, parsed once per revision."""
