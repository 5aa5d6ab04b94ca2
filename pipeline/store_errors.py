"""What went wrong in obstore: its exceptions, told apart by type and by what they say.

obstore raises GenericError for most failures, and the HTTP status is only in its text. What the
text looks like was found by asking a server that fails on purpose; the storage tests do it again.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from pipeline.errors import StorageError, StorageKind
from pipeline.urls import Location, without_secrets

_STATUS = re.compile(r"status code: (\d{3}) ([^:\n]*): ?(.*?)(?:\n\nDebug source|$)", re.DOTALL)
_CODE, _MESSAGE = re.compile(r"<Code>(\w+)</Code>"), re.compile(r"<Message>([^<]+)</Message>")
_NO_ANSWER = ("error sending request", "request or response body error")
_PASSING_STATUS = {408, 425, 429}  # and 500 upwards, where _STATUS_KINDS says nothing else
_PASSING_CODE = {
    "RequestTimeout",  # S3 says so with status 400
    "SlowDown",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "ConditionalRequestConflict",  # 409: another writer is at this very object now
    "OperationAborted",
}
_STATUS_KINDS: dict[int, StorageKind] = {
    401: "denied",
    403: "denied",
    404: "not_found",
    416: "changed",  # ranges are within the size that was looked up
    501: "unsupported",
    507: "full",
}
_DENIED_CODE = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"}
_PLAIN = {"changed": "it is no longer the version that was opened"}
# Where AWS, Google and Azure machines ask for the credentials of their role.
_ROLE_REQUEST = re.compile(
    r"/latest/(api/token|meta-data)|/computeMetadata/|/metadata/identity|//169\.254\.170\."
)


@contextmanager
def store_errors(place: Location, operation: str) -> Iterator[None]:
    """Nothing; what obstore raises inside comes out as StorageError, without its cause.

    The cause is dropped because its text may hold a signed URL.
    """
    try:
        yield
    except (BaseError, FileNotFoundError, NotImplementedError) as error:
        raise _translated(error, place, operation) from None
    except ValueError as error:
        if "Could not parse path" not in str(error):
            raise
        message = "a key must not have empty, '.' or '..' segments"
        raise StorageError(message, place.url, operation, "unsupported") from None


def is_conflict(error: AlreadyExistsError) -> bool:
    """True where a conditional put met a writer under way: nothing may be there in the end."""
    return _code(str(error)) in _PASSING_CODE


def _translated(error: Exception, place: Location, operation: str) -> StorageError:
    text = str(error)
    kind = _kind(error, text)
    message = _message(text) if kind not in _PLAIN else _PLAIN[kind]
    if _ROLE_REQUEST.search(text):
        kind = kind if kind == "transient" else "denied"
        message = (
            f"no credentials in the environment or storage.{place.scheme}, no profile named, and "
            f"the role of this machine gave none: {message}"
        )
    return StorageError(message, place.url, operation, kind)


def _kind(error: Exception, text: str) -> StorageKind:
    if isinstance(error, FileNotFoundError):
        return "not_found"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "denied"
    if isinstance(error, PreconditionError):
        return "changed"
    if isinstance(error, NotImplementedError | NotSupportedError):
        return "unsupported"
    found = _STATUS.search(text)
    status, code = int(found.group(1)) if found else 0, _code(text)
    if status in _STATUS_KINDS:  # listing raises GenericError for these too
        return _STATUS_KINDS[status]
    if code in _DENIED_CODE:
        return "denied"
    if status in _PASSING_STATUS or status >= 500 or code in _PASSING_CODE:
        return "transient"
    if any(phrase in text for phrase in (*_NO_ANSWER, "invalid list response")):
        return "transient"
    return "other"


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found.group(1) if found else ""


def _message(text: str) -> str:
    if found := _STATUS.search(text):
        status, name, body = found.groups()
        said = _MESSAGE.search(body)
        detail = f"{_code(body)}: {said.group(1)}" if said else _code(body) or body.strip()
        message = f"server answered {status} {name}" + (f" ({detail})" if detail else "")
    elif any(phrase in text for phrase in _NO_ANSWER):
        said_by_system = re.findall(r'message: "([^"]*)"', text)
        closed = "timed out" if "kind: Timeout" in text else "connection closed"
        message = f"server gave no whole answer ({[closed, *said_by_system][-1]})"
    elif "not found: " in text:  # stores without HTTP, in whose words the path comes twice
        message = "there is no such object"
    else:
        message = text.split("\n", 1)[0]
    return without_secrets(" ".join(message.split()))[:300]
