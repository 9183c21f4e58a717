"""ResourceQuotas: usage accounting, the admission plugin, and the status controller."""
