"""The iterations of a program: where they are, which GPU work belongs to them, their times."""
