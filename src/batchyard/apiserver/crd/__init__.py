"""Kinds that users define: CustomResourceDefinitions, and the objects of the kinds they define."""
