"""Memory: levels, blocks, and who allocated them."""
