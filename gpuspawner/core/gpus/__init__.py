"""GPU kinds, slots and the fleet at one instant."""
