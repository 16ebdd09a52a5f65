"""Training a detector: which prediction answers for which box, and the loss of all of them."""
