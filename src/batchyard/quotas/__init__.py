"""ResourceQuotas: accounting of their usage, the admission plugin, and the status controller."""
