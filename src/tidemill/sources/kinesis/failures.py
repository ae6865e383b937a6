"""Errors of Kinesis: what the service answers, and what that means for a source."""

from __future__ import annotations

import json
from typing import Any, cast

from tidemill.cdcv2.wording import sentence
from tidemill.sources.contract import Forgotten, UpstreamError, UpstreamLost

AGAIN = "Drop the source and create it again to read the stream as it is now."
_BY_ITSELF = "It is tried again by itself."


class NoStream(UpstreamError):
    """The stream does not exist, or is being created."""

    sqlstate = "42704"


class Throttled(UpstreamError):
    """The shard, or the account, is asked too often: later again."""

    transient = True
    sqlstate = "53400"


class Expired(UpstreamError):
    """A place in a shard is not valid (any more): an iterator after five minutes, a number of another
    stream."""


# What the service calls its errors.
_MISSING = frozenset({"ResourceNotFoundException"})
_LATER = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "ThrottlingException",
        "KMSThrottlingException",
        "RequestLimitExceeded",
    }
)
_PLACE = frozenset({"ExpiredIteratorException", "InvalidArgumentException", "ValidationException"})
_KEYS = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "InvalidClientTokenId",
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "ExpiredTokenException",
        "ExpiredToken",
    }
)
_DENIED = frozenset({"AccessDeniedException", "KMSAccessDeniedException", "OptInRequired"})


def failure(status: int, answer: bytes, stream: str) -> UpstreamError:
    """The error of an answer that is none."""
    code, said = _said(answer)
    detail = sentence(Exception(f"{code}: {said}" if said else code or f"It answered with status {status}"))
    if code in _MISSING:
        return NoStream(f'stream "{stream}" does not exist', hint="Check its name and the connection.")
    if code in _LATER:
        return Throttled(f'stream "{stream}" is read too often', detail=detail, hint=_BY_ITSELF)
    if code in _KEYS:
        return UpstreamError(
            "the keys of the connection are refused",
            detail=detail,
            hint="Check ACCESS KEY ID, SECRET ACCESS KEY and REGION.",
            sqlstate="28000",
        )
    if code in _DENIED:
        return UpstreamError(
            f'access to stream "{stream}" is denied',
            detail=detail,
            hint="The keys need kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords.",
            sqlstate="42501",
        )
    if code in _PLACE:
        return Expired(f'stream "{stream}" refuses a request', detail=detail)
    found = UpstreamError("Kinesis answered with an error", detail=detail, hint=_BY_ITSELF)
    found.transient = True
    return found


def unreachable(endpoint: str, error: Exception) -> UpstreamError:
    found = UpstreamError(
        "Kinesis cannot be reached",
        detail=f"{endpoint}: {sentence(error)}",
        hint=f"Check ENDPOINT and REGION. {_BY_ITSELF}",
    )
    found.transient = True
    return found


def _said(answer: bytes) -> tuple[str, str]:
    """The code and the text of an error."""
    try:
        found: Any = json.loads(answer)
    except ValueError:
        return "", answer[:200].decode(errors="replace").strip()
    if not isinstance(found, dict):
        return "", ""
    fields = cast("dict[str, Any]", found)
    code = str(fields.get("__type") or fields.get("code") or "").rpartition("#")[2].partition(":")[0]
    return code, str(fields.get("message") or fields.get("Message") or "")[:300]


def made_anew(stream: str, shard: str, read: str, starts: str) -> UpstreamError:
    return UpstreamLost(
        f'stream "{stream}" was deleted and created anew',
        detail=f"{shard} was read up to sequence number {read}; now it begins at {starts}.",
        hint=AGAIN,
    )


def vanished(stream: str, shard: str) -> UpstreamError:
    return UpstreamLost(
        f'stream "{stream}" has no shard "{shard}" any more',
        detail="It was not read to its end. It was removed, or the stream was deleted and created anew.",
        hint=AGAIN,
    )


def deleted(stream: str, read: str) -> UpstreamError:
    return UpstreamLost(
        f'stream "{stream}" does not exist any more',
        detail=f"The source has read it up to {read}.",
        hint=f"It was deleted. What was read of it can still be queried, AS OF a time before. {AGAIN}",
    )


def retention_passed(stream: str, shard: str, detail: str) -> UpstreamError:
    return Forgotten(
        f'records of shard "{shard}" of stream "{stream}" may have expired before they were read',
        detail=detail,
        hint=f"Raise the retention period of the stream. {AGAIN}",
    )


def not_as_bound(stream: str, shard: str, detail: str) -> UpstreamError:
    return Forgotten(
        f'shard "{shard}" of stream "{stream}" no longer has the records that were bound',
        detail=detail,
        hint=AGAIN,
    )
