"""Other libraries' interfaces, on gossamer's engine: a program changes an import."""
