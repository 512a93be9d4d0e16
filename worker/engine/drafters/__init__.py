"""Drafters: sources of guesses for the next tokens, all behind the protocol of `protocol`."""
