"""The API objects: kinds and versions, schemas, defaults, validation, conversion, quantities, selectors, conditions."""
