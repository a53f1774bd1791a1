"""The hub over HTTP: what it lists, the bytes of its files, and each of its failures told apart.

Not through the hub's library: it neither continues a download in a later run nor verifies what
came over HTTP, and each of its major versions has the errors of another HTTP library. Where the
hub is, the user's token and the cache's place are the library's settings.
"""

import email.utils
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, urlsplit

import requests

from swiftchat.errors import BadModelFile, DownloadError, ModelNotFound
from swiftchat.weights.hub.listing import HubFile, Listing

__all__ = ["Hub", "HubUnreachable"]

_CONNECT_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 17
_MAX_LISTING_BYTES = 64 * 1024 * 1024
_NETWORK_HINT = "check the network, then run the same command again"


class HubUnreachable(DownloadError):
    """The hub did not answer, or only with an error of its own."""


class _Bearer(requests.auth.AuthBase):
    """The token as a header; given as `auth` so that no .netrc replaces it.

    On a redirect to another host `requests` drops the header.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


@dataclass(frozen=True)
class Hub:
    """A hub at `endpoint`, asked with `token`; `stall_s` seconds without a byte are a failure."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    stall_s: float = 10.0

    @classmethod
    def from_settings(cls, token: str | None) -> Self:
        """The hub that the hub library's settings name; without `token` the user's stored one.

        Raises `DownloadError` in offline mode and for a token that is none.
        """
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE:
            raise DownloadError("the hub's offline mode is switched on", "unset HF_HUB_OFFLINE")
        if token is None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            token = get_token()
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            # Libraries quote a malformed header, token and all, in their errors.
            raise DownloadError(
                "the hub token contains characters that no token has", "look at HF_TOKEN"
            )
        return cls(constants.ENDPOINT, token, float(constants.HF_HUB_DOWNLOAD_TIMEOUT))

    def listing(self, repo: str, revision: str | None) -> Listing:
        """Ask what `repo` consists of at `revision` (None: its main branch)."""
        revision = revision or "main"
        url = f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
        with self._get(url, repo, revision) as response:
            text = _at_most(self._chunks(response), _MAX_LISTING_BYTES, f"the list of {repo}")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DownloadError(
                f"{self._host} answered with something that is no hub's", "check HF_ENDPOINT"
            ) from error
        return Listing.parse(repo, revision, said)

    def content(self, listing: Listing, file: HubFile, max_bytes: int) -> bytes:
        """All of a small file, verified; `BadModelFile` when it is larger or another one."""
        with self.open(listing, file, 0) as (_, chunks):
            content = _at_most(chunks, max_bytes, f"{file.name} of {listing.repo}")
        if not file.is_content(content):
            raise BadModelFile(
                f"{file.name} of {listing.repo} is not what the hub lists", "try again"
            )
        return content

    @contextmanager
    def open(
        self, listing: Listing, file: HubFile, offset: int
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield where the hub begins, and the bytes from there on.

        It begins at byte `offset`, or at 0 where it cannot begin in the middle.
        """
        path = f"{listing.repo}/resolve/{listing.commit}/{quote(file.name)}"
        url = f"{self.endpoint}/{path}"
        # The bytes as they are: a compressed answer could not be continued.
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with self._get(url, listing.repo, listing.revision, headers) as response:
            begins = f"bytes {offset}-"
            continues = response.headers.get("Content-Range", "").startswith(begins)
            start = offset if response.status_code == 206 and continues else 0
            if response.status_code == 206 and start != offset:
                raise DownloadError(f"{self._host} sent another part of {file.name} than asked")
            yield start, self._chunks(response)

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
            # Not `from error`: what libraries say about a failed request may quote its headers.
            raise self._unreachable(error) from None
        with response:
            if response.status_code >= 400:
                raise self._refusal(response, repo, revision)
            yield response

    def _chunks(self, response: requests.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_content(_CHUNK_BYTES)
        except requests.RequestException as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: requests.RequestException) -> DownloadError:
        request = getattr(error, "request", None)
        host = urlsplit(getattr(request, "url", None) or self.endpoint).hostname or "the hub"
        causes = _causes(error)
        if isinstance(error, requests.exceptions.ProxyError):
            return HubUnreachable(
                f"the proxy on the way to {host} failed", "check HTTPS_PROXY and HTTP_PROXY"
            )
        if isinstance(error, requests.exceptions.SSLError):
            return HubUnreachable(
                f"no trusted connection to {host}: its certificate was not accepted",
                "check the clock, and REQUESTS_CA_BUNDLE behind a proxy that opens connections",
            )
        if isinstance(error, requests.Timeout) or "ReadTimeoutError" in causes:
            return HubUnreachable(f"{host} sent nothing for too long", _NETWORK_HINT)
        if "NameResolutionError" in causes or "gaierror" in causes:
            return HubUnreachable(f"no address is known for {host}", _NETWORK_HINT)
        if "ConnectionRefusedError" in causes:
            return HubUnreachable(f"{host} refuses connections", _NETWORK_HINT)
        if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
            return HubUnreachable(f"the connection to {host} broke", _NETWORK_HINT)
        if isinstance(error, requests.TooManyRedirects):
            return HubUnreachable(f"{host} redirects without end", _NETWORK_HINT)
        return DownloadError(
            f"{host} cannot be asked ({type(error).__name__})", "check HF_ENDPOINT and HTTPS_PROXY"
        )

    def _refusal(self, response: requests.Response, repo: str, revision: str) -> Exception:
        """The error for an answer of 400 and above; `X-Error-Code` is the hub's own word."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        host = urlsplit(response.url).hostname or "the hub"
        page = f"{_without_password(self.endpoint)}/{repo}"
        if code == "GatedRepo":
            who = "with the token's account" if self.token else "and set HF_TOKEN"
            return DownloadError(
                f"{repo} is gated (HTTP {status})", f"accept its conditions at {page} {who}"
            )
        if code == "RevisionNotFound":
            return ModelNotFound(f"{repo} has no revision {revision!r}", f"see {page}")
        if status == 401 and self.token:
            return DownloadError(f"{host} refuses the token (HTTP 401)", "look at HF_TOKEN")
        if status == 401:
            return DownloadError(
                f"{host} asks for a token for {repo} (HTTP 401): private, or no such model",
                "check the name, or set HF_TOKEN",
            )
        if status == 403:
            return DownloadError(
                f"{host} forbids access to {repo} (HTTP 403)", "check what the token may read"
            )
        if status == 404 and code == "EntryNotFound":
            return DownloadError(f"{host} lists a file of {repo} that it does not have (HTTP 404)")
        if status == 404:
            return ModelNotFound(f"the hub has no model {repo}", "check the name on the hub")
        if status == 416:
            return DownloadError(f"{host} has only the beginning of a file of {repo} (HTTP 416)")
        if status == 407:
            return HubUnreachable("the proxy asks for a password (HTTP 407)", "check HTTPS_PROXY")
        if status == 429:
            return DownloadError(
                f"{host} refuses more requests for now (HTTP 429)", _wait(response)
            )
        if status >= 500 or status == 408:
            return HubUnreachable(f"{host} failed (HTTP {status})", "try again later")
        return DownloadError(f"{host} refused (HTTP {status})", "try again later")


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _causes(error: BaseException) -> set[str]:
    """The names of what an error is made of; libraries nest them as arguments and as reasons."""
    found: set[str] = set()
    waiting: list[object] = [error]
    while waiting and len(found) < 30:
        one = waiting.pop()
        if isinstance(one, BaseException) and type(one).__name__ not in found:
            found.add(type(one).__name__)
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
    return found


def _wait(response: requests.Response) -> str:
    """The hint of `Retry-After`, which is seconds or a date."""
    after = response.headers.get("Retry-After", "")
    if after.isdecimal() and len(after) < 7:
        return f"try again in {int(after)} s"
    date = email.utils.parsedate_tz(after)
    if date is not None:
        seconds = max(0, round(email.utils.mktime_tz(date) - time.time()))
        return f"try again in {seconds} s"
    return "try again later"


def _at_most(chunks: Iterator[bytes], max_bytes: int, what: str) -> bytes:
    found = bytearray()
    for chunk in chunks:
        found += chunk
        if len(found) > max_bytes:
            raise BadModelFile(f"{what} is larger than {max_bytes} bytes", "use another model")
    return bytes(found)
