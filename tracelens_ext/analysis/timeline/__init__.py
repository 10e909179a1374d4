"""How each device spent its time."""
