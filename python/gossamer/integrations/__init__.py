"""gossamer as a part of libraries that have a training loop of their own."""
