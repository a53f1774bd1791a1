"""HTTP client of the Hugging Face hub: file lists, resumable reads, errors by cause.

huggingface_hub does not resume downloads in a later run and does not verify them, and each of its
major versions raises the errors of another HTTP library. Its settings are used for the endpoint,
the user's token and the cache folder.
"""

import email.utils
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote, urlsplit

import requests

from swiftchat.errors import BadModelFile, DownloadError, ModelNotFound, UsageError
from swiftchat.errors.addresses import without_passwords
from swiftchat.errors.deadline import within
from swiftchat.weights.hub.listing import HubFile, Listing, is_revision

_CONNECT_TIMEOUT_S = 5.0
_SMALL_ANSWER_S = 300.0  # for all of a list of files, or an index
_CHUNK_BYTES = 1 << 17
_MAX_LISTING_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
_DATE = re.compile(r"20\d\d-(0[1-9]|1[0-2])-")
_NETWORK_HINT = "check the network, then run the same command again"


class HubUnreachable(DownloadError):
    """The hub did not answer, or answered with a server error."""


class _Bearer(requests.auth.AuthBase):
    """Sends the token as a header; passed as `auth`, so that no .netrc replaces it.

    `requests` drops the header on a redirect to another host.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


@dataclass(frozen=True)
class Hub:
    """The hub at `endpoint`; reads fail after `stall_s` seconds without data."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    stall_s: float = 10.0

    @classmethod
    def from_settings(cls, token: str | None) -> Self:
        """Return the hub of huggingface_hub's settings; `token` None: the user's stored token.

        Raises `DownloadError` in offline mode and for a malformed token.
        """
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE:
            raise DownloadError("the hub's offline mode is on", "unset HF_HUB_OFFLINE")
        if token is None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            token = get_token()
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            # HTTP libraries quote a malformed header, with the token, in their errors.
            raise DownloadError("the hub token has invalid characters", "check HF_TOKEN")
        return cls(constants.ENDPOINT, token, float(constants.HF_HUB_DOWNLOAD_TIMEOUT))

    def listing(self, repo: str, revision: str | None) -> Listing:
        """Return the files of `repo` at `revision` (None: the main branch).

        Raises `UsageError` for what no branch, tag or commit can be named: the name becomes a path
        in the cache.
        """
        revision = "main" if revision is None else revision
        if not is_revision(revision):
            raise UsageError(
                f"{revision[:200]!r} is not a revision", "give a branch, a tag or a commit"
            )
        url = f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"

        def read() -> bytes:
            with self._get(url, repo, revision) as response:
                return _read_all(self._chunks(response), _MAX_LISTING_BYTES, f"the list of {repo}")

        return Listing.parse(repo, revision, self._parsed(self._within_time(read)))

    def popular(self, num_models: int) -> list[tuple[str, str]]:
        """Return names and months of publication of the most downloaded models that write text."""
        query = "pipeline_tag=text-generation&filter=safetensors&sort=downloads&direction=-1"
        url = f"{self.endpoint}/api/models?{query}&limit={num_models}"

        def read() -> bytes:
            with self._get(url, "", "main") as response:
                return _read_all(self._chunks(response), _MAX_LISTING_BYTES, "the list of models")

        try:
            answer = self._parsed(self._within_time(read))
        except ModelNotFound as error:
            raise DownloadError(
                f"{self._host} has no list of models", "check HF_ENDPOINT"
            ) from error
        models = answer if isinstance(answer, list) else []
        names = [(each.get("id"), each.get("createdAt")) for each in models if type(each) is dict]
        return [
            (name, date[:7])
            for name, date in names
            if isinstance(name, str)
            and _NAME.fullmatch(name)
            and isinstance(date, str)
            and _DATE.match(date)
        ]

    def content(self, listing: Listing, file: HubFile, max_bytes: int) -> bytes:
        """Return a small file, verified; `BadModelFile` if it is larger or differs."""

        def read() -> bytes:
            with self.open(listing, file, 0) as (_, chunks):
                return _read_all(chunks, max_bytes, f"{file.name} of {listing.repo}")

        content = self._within_time(read)
        if not file.matches(content):
            raise BadModelFile(
                f"{file.name} of {listing.repo} differs from the hub's list", "try again"
            )
        return content

    @contextmanager
    def open(
        self, listing: Listing, file: HubFile, offset: int
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the start of the answer and its chunks from there.

        The start is byte `offset`, or 0 if the server does not support ranges.
        """
        path = f"{listing.repo}/resolve/{listing.commit}/{quote(file.name)}"
        url = f"{self.endpoint}/{path}"
        # Uncompressed: a compressed answer cannot be resumed.
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with self._get(url, listing.repo, listing.revision, headers) as response:
            begins = f"bytes {offset}-"
            continues = response.headers.get("Content-Range", "").startswith(begins)
            start = offset if response.status_code == 206 and continues else 0
            if response.status_code == 206 and start != offset:
                raise DownloadError(
                    f"{self._host} sent another range of {file.name} than requested"
                )
            yield start, self._chunks(response)

    def _within_time(self, read: Callable[[], bytes]) -> bytes:
        """Return the whole of a small answer. Raises `HubUnreachable` if it takes too long."""
        try:
            return within(_SMALL_ANSWER_S, read)
        except TimeoutError as error:
            late = f"{self._host} did not answer completely within {_SMALL_ANSWER_S:.0f} s"
            raise HubUnreachable(late, _NETWORK_HINT) from error

    def _parsed(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DownloadError(
                f"{self._host} does not answer like a Hugging Face hub", "check HF_ENDPOINT"
            ) from error

    @property
    def _host(self) -> str:
        return urlsplit(self.endpoint).hostname or "the hub"

    @contextmanager
    def _get(
        self, url: str, repo: str, revision: str, headers: dict[str, str] | None = None
    ) -> Iterator[requests.Response]:
        try:
            response = requests.get(
                url,
                headers={"User-Agent": "swiftchat", **(headers or {})},
                auth=_Bearer(self.token) if self.token else None,
                timeout=(_CONNECT_TIMEOUT_S, self.stall_s),
                stream=True,
            )
        except requests.RequestException as error:
            # Not `from error`: the errors of HTTP libraries may quote headers.
            raise self._request_error(error) from None
        with response:
            if response.status_code >= 400:
                raise self._status_error(response, repo, revision)
            yield response

    def _chunks(self, response: requests.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_content(_CHUNK_BYTES)
        except requests.RequestException as error:
            raise self._request_error(error) from None

    def _request_error(self, error: requests.RequestException) -> DownloadError:
        request = getattr(error, "request", None)
        host = urlsplit(getattr(request, "url", None) or self.endpoint).hostname or "the hub"
        causes = _causes(error)
        if isinstance(error, requests.exceptions.ProxyError):
            return HubUnreachable(
                f"the proxy for {host} failed", "check HTTPS_PROXY and HTTP_PROXY"
            )
        if isinstance(error, requests.exceptions.SSLError):
            return HubUnreachable(
                f"no trusted connection to {host}: its certificate was rejected",
                "check the clock, and REQUESTS_CA_BUNDLE behind an intercepting proxy",
            )
        if isinstance(error, requests.Timeout) or "ReadTimeoutError" in causes:
            return HubUnreachable(f"{host} timed out", _NETWORK_HINT)
        if "NameResolutionError" in causes or "gaierror" in causes:
            return HubUnreachable(f"the host name {host} cannot be resolved", _NETWORK_HINT)
        if "ConnectionRefusedError" in causes:
            return HubUnreachable(f"{host} refused the connection", _NETWORK_HINT)
        if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
            return HubUnreachable(f"the connection to {host} was lost", _NETWORK_HINT)
        if isinstance(error, requests.TooManyRedirects):
            return HubUnreachable(f"{host} sent too many redirects", _NETWORK_HINT)
        return DownloadError(
            f"the request to {host} failed ({type(error).__name__})",
            "check HF_ENDPOINT and HTTPS_PROXY",
        )

    def _status_error(self, response: requests.Response, repo: str, revision: str) -> Exception:
        """Return the error for a status of 400 and above; `X-Error-Code` is the hub's own code."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        host = urlsplit(response.url).hostname or "the hub"
        page = f"{without_passwords(self.endpoint)}/{repo}"
        if code == "GatedRepo":
            how = "with the token's account" if self.token else "and set HF_TOKEN"
            return DownloadError(
                f"{repo} is gated (HTTP {status})", f"accept its conditions at {page} {how}"
            )
        if code == "RevisionNotFound":
            return ModelNotFound(f"{repo} has no revision {revision!r}", f"see {page}")
        if status == 401 and self.token:
            return DownloadError(f"{host} rejected the token (HTTP 401)", "check HF_TOKEN")
        if status == 401:
            return DownloadError(
                f"{host} requires a token for {repo} (HTTP 401): it is private or does not exist",
                "check the name, or set HF_TOKEN",
            )
        if status == 403:
            return DownloadError(
                f"{host} forbids access to {repo} (HTTP 403)", "check the permissions of the token"
            )
        if status == 404 and code == "EntryNotFound":
            return DownloadError(f"{host} lists a file of {repo} but does not have it (HTTP 404)")
        if status == 404:
            return ModelNotFound(f"the hub has no model {repo}", "check the name on the hub")
        if status == 416:
            return DownloadError(f"{host} has only part of a file of {repo} (HTTP 416)")
        if status == 407:
            return HubUnreachable(
                "the proxy requires authentication (HTTP 407)", "check HTTPS_PROXY"
            )
        if status == 429:
            return DownloadError(
                f"{host} limits the rate of requests (HTTP 429)", _retry_hint(response)
            )
        if status >= 500 or status == 408:
            return HubUnreachable(f"{host} failed (HTTP {status})", "try again later")
        return DownloadError(f"{host} rejected the request (HTTP {status})", "try again later")


def _causes(error: BaseException) -> set[str]:
    """Return the type names of an error and its nested causes, arguments and reasons."""
    found: set[str] = set()
    pending: list[object] = [error]
    while pending and len(found) < 30:
        one = pending.pop()
        if isinstance(one, BaseException) and type(one).__name__ not in found:
            found.add(type(one).__name__)
            pending += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
    return found


def _retry_hint(response: requests.Response) -> str:
    """Return a hint from `Retry-After`, which is seconds or a date."""
    after = response.headers.get("Retry-After", "")
    if after.isdecimal() and len(after) < 7:
        return f"try again in {int(after)} s"
    date = email.utils.parsedate_tz(after)
    if date is not None:
        seconds = max(0, round(email.utils.mktime_tz(date) - time.time()))
        return f"try again in {seconds} s"
    return "try again later"


def _read_all(chunks: Iterator[bytes], max_bytes: int, what: str) -> bytes:
    found = bytearray()
    for chunk in chunks:
        found += chunk
        if len(found) > max_bytes:
            raise BadModelFile(f"{what} is larger than {max_bytes} bytes", "use another model")
    return bytes(found)
