"""Facts: what is read of the host and of the model, as frozen values."""
