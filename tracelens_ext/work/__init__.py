"""What all rooms share: the GPU events, and how columns are summed, united and looked up."""
