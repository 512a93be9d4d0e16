"""Datasets in, results out: prompts are read and checked line by line, answers are written in several formats."""
