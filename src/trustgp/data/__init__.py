"""Reading, batching, fingerprinting and storing of rows and tensors."""
