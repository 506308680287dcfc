"""Training of the demonstration model: text, tokenizer, network, training loop, export, evaluation."""
