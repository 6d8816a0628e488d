"""The operator's key: from the setting, kept over restarts in dev, or made at the first start (contract §1)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ackpost.core.model import ApiKey
from ackpost.errors import ConfigError
from ackpost.ports.clock import Clock, Entropy
from ackpost.ports.operations import CreateApiKey, Idempotency, Repeated
from ackpost.ports.store import Page, Store
from ackpost.service.auth import SHOWN_CHARS, digest_of, new_key

DEV_KEY_PATH: Final = Path(".ackpost/dev-key")
OPERATOR_KEY_NAME: Final = "operator.key"
_NO_TENANT: Final = 0


async def ensure_operator_key(store: Store, clock: Clock, entropy: Entropy, given: str | None) -> str | None:
    """See that an operator can call: store the given key's digest, or make a key if the store has none.

    Gives the text of a key that was made now, to be shown once; None when nothing new was made. Nodes that start
    together make one.
    """
    if given is not None:
        digest = digest_of(given)
        if await store.api_key_by_digest(digest) is None:
            await _create(store, clock, given, "operator key of the settings", once=digest.hex())
        if await store.api_key_by_digest(digest) is None:
            await _create(store, clock, given, "operator key of the settings")
        return None
    if await _has_operator_key(store):
        return None
    key = new_key(entropy)
    if not await _create(store, clock, key, "first operator key", once="first"):
        if await _has_operator_key(store):
            return None
        await _create(store, clock, key, "first operator key")
    return key


async def _has_operator_key(store: Store) -> bool:
    after: int | None = None
    while True:
        keys = await store.api_keys(None, Page(limit=250, after=after))
        if any(key.role == "operator" for key in keys):
            return True
        if len(keys) < 250:
            return False
        after = keys[-1].position


async def create_operator_key(store: Store, clock: Clock, entropy: Entropy, name: str) -> str:
    """Make one more operator key: for ``ackpost api-keys create --role operator --offline``."""
    key = new_key(entropy)
    await _create(store, clock, key, name)
    return key


def dev_key(entropy: Entropy, path: Path = DEV_KEY_PATH) -> str:
    """Read the developer's key, or make it (file mode 0600)."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = new_key(entropy)
        write_secret(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(text) < 32:
        raise ConfigError(f"{path} holds no key of 32 characters or more; remove the file and a new one is made")
    return text


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read; an older one is replaced."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text + "\n")


async def _create(store: Store, clock: Clock, key: str, name: str, *, once: str | None = None) -> bool:
    """Make a key; with ``once`` only if nobody made one under that name within a day. Says whether it was made."""
    record = ApiKey(
        position=0,
        name=name,
        prefix=key[:SHOWN_CHARS],
        digest=digest_of(key),
        role="operator",
        tenant=None,
        created_at_ms=clock.now_ms(),
    )
    asked = None if once is None else Idempotency(_NO_TENANT, f"operator-key:{once}", b"", clock.now_ms())
    (reply,) = await store.commit([CreateApiKey(record, asked)])
    if isinstance(reply, Exception):
        raise reply
    return not isinstance(reply, Repeated)
