"""What is wrong with one line, raised where it is found and reported with the line's number by the reader."""


class Problem(Exception):
    """code: as in OpenAI's batch API, such as invalid_request. message: a sentence without the line number."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
