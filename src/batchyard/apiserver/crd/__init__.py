"""Custom resources: CustomResourceDefinitions, and the objects of the kinds that they define."""
