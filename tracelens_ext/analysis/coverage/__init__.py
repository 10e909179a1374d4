"""What a recording holds: lost GPU work, work of before it, start-up, and what was left out."""
