"""The queue of requests in Redis: how they get in, what happens when a worker dies, how results come home."""
