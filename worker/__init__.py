"""The queue worker, and under worker/engine/ the speculative decoding engine that it keeps in memory."""
