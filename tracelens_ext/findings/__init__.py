"""What would save the most time, how much, why, and what to do about it."""
