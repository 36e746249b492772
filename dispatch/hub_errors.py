"""What the hub's client raises, as one line with the next step; no token, no server text."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from quantplan.dispatch.regular_file import shown
from quantplan.tables.errors import CheckpointError

LOG_IN = "`hf auth login` or set HF_TOKEN"
# By class name and in this order: the client's HTTP library, and so the classes, differ by version.
TOLD = (
    ("GatedRepoError", "is gated", f"Accept its terms on the hub, then run {LOG_IN}."),
    ("DisabledRepoError", "is disabled by the hub", "Give another repository or a local folder."),
    (
        "RepositoryNotFoundError",
        "is not found, or is private",
        f"Check the name; for a private repository run {LOG_IN}.",
    ),
    ("RevisionNotFoundError", "has no such revision", "Check the branch, tag or commit."),
    ("RemoteEntryNotFoundError", "lacks a file that it lists", "Try again."),
    ("HFValidationError", "is not a valid hub id", "Give org/name."),
)
STATUS = {
    401: ("asks for a valid token", f"Run {LOG_IN}."),
    403: ("denied access", f"Ask for access, then run {LOG_IN}."),
    429: ("limits the rate of requests", "Wait, or log in for a higher limit."),
}
UNREACHABLE = {"OfflineModeIsEnabled", "TransportError", "ConnectionError", "Timeout"}
SLOW = {"TimeoutException", "Timeout", "TimeoutError"}
OFFLINE_HINT = "Give a local folder, or fetch the model where there is a network: `hf download`."


def is_unreachable(error: BaseException) -> bool:
    """Return whether the hub itself did not answer, so that a cached snapshot may."""
    error = _inner(error)
    return bool(UNREACHABLE & _names(error)) or (_status(error) or 0) >= 500


def refusal(error: BaseException, repo_id: str, revision: str | None) -> CheckpointError | None:
    """Return the one line for an error of the hub's client, None for one that is not its own."""
    error = _inner(error)
    where = f"{repo_id} at {shown(revision)}" if revision else repo_id
    for name, what, hint in TOLD:
        if name in _names(error):
            return CheckpointError(f"{where} {what}", hint=hint)
    if (status := _status(error)) is not None:
        what, hint = STATUS.get(status, ("failed", "Try again later, or give a local folder."))
        return CheckpointError(f"{where}: {_host()} {what}", found=f"HTTP {status}", hint=hint)
    if (told := _not_reached(error, where)) is None and isinstance(error, OSError):
        found = error.strerror or type(error).__name__
        return CheckpointError(f"{where} cannot be put in the hub's cache", found=found)
    return told


def not_a_hub(repo_id: str) -> CheckpointError:
    """Return the refusal for an endpoint whose answer is not a repository's description."""
    hint = "Check HF_ENDPOINT and the proxy."
    return CheckpointError(f"{repo_id}: {_host()} does not answer as a hub", hint=hint)


def not_understood(error: BaseException, repo_id: str) -> CheckpointError:
    """Return the refusal for an answer or a setting that the client itself could not handle."""
    return CheckpointError(f"{repo_id}: the hub's client failed on {_host()}",
                           found=type(error).__name__,
                           hint="Check HF_ENDPOINT, the HF_HUB_ variables and the proxy.")


def _not_reached(error: BaseException, where: str) -> CheckpointError | None:
    names = _names(error)
    if "OfflineModeIsEnabled" in names:
        found = "HF_HUB_OFFLINE set"
        return CheckpointError(f"{where} is not in the hub's cache", found=found, hint=OFFLINE_HINT)
    if names & (UNREACHABLE | {"InvalidURL"}):
        what = "did not answer in time" if names & SLOW else "cannot be reached"
        found = "no snapshot in the cache"
        return CheckpointError(f"{where}: {_host()} {what}", found=found, hint=OFFLINE_HINT)
    return None


def _inner(error: BaseException) -> BaseException:
    """Return what made a download give up: the client wraps it as "not found locally"."""
    if "LocalEntryNotFoundError" in _names(error) and error.__cause__ is not None:
        return error.__cause__
    return error


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    response: Any = getattr(error, "response", None)
    return getattr(response, "status_code", None)


def _host() -> str:
    """Return the endpoint's host: the address itself may hold a password."""
    from huggingface_hub import constants

    return shown(urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2]) or "the hub"
