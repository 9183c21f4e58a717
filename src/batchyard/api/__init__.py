"""The object model: kinds, quantities, selectors, defaults, validation, conditions, API versions."""
