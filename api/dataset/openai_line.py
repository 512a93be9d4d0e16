"""A finished request as a line of OpenAI's batch output."""

import math
from typing import Any

from api.ledger.records import RecordedRequest
from api.schemas import Choice, GenerationResult, RequestError, TokenLogprob, TopLogprob, Usage
from api.states import RequestState

# What OpenAI writes for a token too unlikely to have a finite log probability; JSON has no infinity.
_NO_LOGPROB = -9999.0
_CUT_OFF = {
    RequestState.CANCELLED: RequestError(
        code="batch_cancelled", message="The batch was cancelled before this request had finished."
    ),
    RequestState.EXPIRED: RequestError(
        code="batch_expired", message="The batch expired before this request had finished."
    ),
}
_NOT_FINISHED = RequestError(code="request_not_finished", message="This request has not finished yet.")
_UNEXPLAINED = RequestError(code="internal_error", message="This request failed without a recorded reason.", status=500)


def openai_line(row: RecordedRequest) -> dict[str, Any]:
    """The output object: a response with the answer or with the request's own error; no response without a result."""
    error = None if row.state in (RequestState.COMPLETED, RequestState.FAILED) else error_of(row)
    return {
        "id": f"batch_req_{_suffix(row)}",
        "custom_id": row.custom_id,
        "response": _response(row) if error is None else None,
        "error": None if error is None else {"code": error.code, "message": error.message},
    }


def error_of(row: RecordedRequest) -> RequestError | None:
    """Why a request has no answer; None for a completed one."""
    if row.state is RequestState.COMPLETED:
        return None
    if row.state is RequestState.FAILED:
        return (row.result and row.result.error) or _UNEXPLAINED
    return _CUT_OFF.get(row.state, _NOT_FINISHED)


def _suffix(row: RecordedRequest) -> str:
    return row.request_id.removeprefix("batch_")


def _response(row: RecordedRequest) -> dict[str, Any]:
    error = error_of(row)
    if error is not None:
        return {"status_code": error.status, "request_id": row.request_id, "body": {"error": _error_body(error)}}
    assert row.result is not None, "a completed request has a result"
    return {"status_code": 200, "request_id": row.request_id, "body": _answer(row, row.result)}


def _error_body(error: RequestError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"message": error.message, "type": kind, "param": None, "code": error.code}


def _answer(row: RecordedRequest, result: GenerationResult) -> dict[str, Any]:
    raw = row.body.raw
    as_choice = _text_choice if raw else _chat_choice
    return {
        "id": f"{'cmpl' if raw else 'chatcmpl'}-{_suffix(row)}",
        "object": "text_completion" if raw else "chat.completion",
        "created": int(row.finished_at or row.started_at or row.queued_at or 0),
        "model": (row.stats and row.stats.model) or row.body.model or "",
        "choices": [as_choice(index, choice) for index, choice in enumerate(result.choices)],
        "usage": None if result.usage is None else _usage(result.usage),
    }


def _chat_choice(index: int, choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    logprobs = None if choice.logprobs is None else _chat_logprobs(choice.logprobs)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}


def _text_choice(index: int, choice: Choice) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else _text_logprobs(choice.logprobs)
    return {"index": index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish_reason}


def _chat_logprobs(tokens: list[TokenLogprob]) -> dict[str, Any]:
    return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}


def _chat_logprob(token: TokenLogprob) -> dict[str, Any]:
    return {**_one_logprob(token), "top_logprobs": [_one_logprob(other) for other in token.top]}


def _one_logprob(token: TopLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": list(token.token.encode())}


def _text_logprobs(tokens: list[TokenLogprob]) -> dict[str, Any]:
    """The older shape of /v1/completions: parallel lists, offsets in characters of the text."""
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [{other.token: _finite(other.logprob) for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NO_LOGPROB


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
