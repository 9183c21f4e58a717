"""ResourceQuotas: what is used of them, who is refused because of them, and what they tell of it."""
