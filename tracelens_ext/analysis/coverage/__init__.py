"""What a recording holds: lost GPU work, work of before it, warm-up, and what was left out."""
