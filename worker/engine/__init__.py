"""The speculative decoding engine: one target model, a drafter, a draft tree verified in one pass.

It imports no queue and no database, so it is used, tested and benchmarked alone.
"""
