"""One small file a method: from groups to what each token is to learn, and from log-probabilities to its loss."""
