"""Who may come in: accounts with hashed passwords, invitations, sessions, and guessing that gets slower.

Secrets are random and stand in the database as hashes alone. Knows no project.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from functools import cache

import sqlalchemy as sql

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.web.marking.store import Store, accounts, failures, invitations, put, sessions

ROLES = ("annotator", "reviewer", "owner")
"""Marks; reads what is done and decides between people; lets people in, opens projects and starts training."""
INVITED_S, SESSION_S = 14 * 86_400, 7 * 86_400
"""Seconds that an invitation, and a session that nobody uses, are good for."""
SHORTEST = 10
"""Characters of a password."""
FREE, SLOWEST_S = 5, 900
"""Wrong passwords until the next one has to wait a second; it is doubled with each, up to so many seconds."""
COST = {"n": 2**14, "r": 8, "p": 5, "maxmem": 64 * 2**20}
"""Of scrypt: 16 MiB and a quarter of a second a password."""
_NAME_CHARACTERS = 100


class SlowDownError(ConfigError):
    """Too many wrong passwords.

    Args:
        seconds: to wait.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = int(seconds) + 1
        super().__init__(f"Too many wrong passwords: try again in {self.seconds} s.")


@dataclass(frozen=True)
class Person:
    """Who asks.

    Attributes:
        name: of the account.
        role: one of `ROLES`.
        csrf: what writes of this session must bring along.
    """

    name: str
    role: str
    csrf: str

    def may(self, role: str) -> bool:
        """Whether the account's role is this one or one above it."""
        return ROLES.index(self.role) >= ROLES.index(role)


def hashed(password: str) -> str:
    """A password as it is kept: scrypt under a salt of its own."""
    salt = secrets.token_bytes(16)
    return f"{salt.hex()}${hashlib.scrypt(password.encode(), salt=salt, **COST).hex()}"


def _fits(password: str, kept: str) -> bool:
    salt, _, digest = kept.partition("$")
    made = hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), **COST).hex()
    return hmac.compare_digest(made, digest)


@cache
def _nobodys() -> str:
    """A name without an account takes as long as one with a wrong password."""
    return hashed(secrets.token_hex())


def digest(token: str) -> str:
    """What a secret that a browser brings is looked up by."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Accounts:
    """Accounts, invitations and sessions.

    Args:
        store: where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.first = secrets.token_urlsafe(24)
        """The secret by which the first owner's account is made; the console says it."""

    def has_owner(self) -> bool:
        """Whether anybody can invite others."""
        owner = sql.and_(accounts.c.role == "owner", accounts.c.active)
        return self.store.one(sql.select(accounts.c.name).where(owner)) is not None

    def people(self) -> list[dict[str, object]]:
        """All accounts, by name: `name`, `role`, `active`."""
        chosen = sql.select(accounts.c.name, accounts.c.role, accounts.c.active).order_by(accounts.c.name)
        return [dict(row) for row in self.store.rows(chosen)]

    def invite(self, name: str, role: str) -> str:
        """The secret of an invitation, which replaces earlier ones of this name. An account of that name gets a new
        password by it, and the role.

        Raises:
            ConfigError: no name, or no such role.
        """
        name = name.strip()
        if not 0 < len(name) <= _NAME_CHARACTERS or not name.isprintable():
            raise ConfigError(f"name: expected 1 to {_NAME_CHARACTERS} characters that can be printed, got {name!r}")
        if role not in ROLES:
            raise ConfigError(f"role: expected one of {', '.join(ROLES)}, got {role!r}")
        token = secrets.token_urlsafe(24)
        with self.store.writing() as connection:
            connection.execute(sql.delete(invitations).where(invitations.c.name == name))
            row = {"digest": digest(token), "name": name, "role": role, "expires": time.time() + INVITED_S}
            put(connection, invitations, row)
        return token

    def invited(self, token: str) -> tuple[str, str] | None:
        """Name and role that an invitation is for; the first owner chooses a name ("")."""
        if hmac.compare_digest(token.encode(), self.first.encode()):
            return None if self.has_owner() else ("", "owner")
        open_ = sql.and_(invitations.c.digest == digest(token), invitations.c.expires > time.time())
        row = self.store.one(sql.select(invitations).where(open_))
        return None if row is None else (row["name"], row["role"])

    def join(self, token: str, name: str, password: str) -> str:
        """Make the account that an invitation is for, once; the token of its first session.

        Raises:
            ConfigError: the invitation is spent, or the password too short.
        """
        invited = self.invited(token)
        if invited is None:
            raise ConfigError("This invitation is used or has expired: ask for a new one.")
        name, role = invited[0] or name.strip(), invited[1]
        if not SHORTEST <= len(password) <= 1000:
            raise ConfigError(f"Choose a password of at least {SHORTEST} characters.")
        if not 0 < len(name) <= _NAME_CHARACTERS or not name.isprintable():
            raise ConfigError(f"Choose a name of 1 to {_NAME_CHARACTERS} characters.")
        kept = hashed(password)
        with self.store.writing() as connection:
            if self.invited(token) != invited:  # somebody else was faster
                raise ConfigError("This invitation is used or has expired: ask for a new one.")
            connection.execute(sql.delete(invitations).where(invitations.c.digest == digest(token)))
            connection.execute(sql.delete(sessions).where(sessions.c.name == name))
            put(connection, accounts, {"name": name, "role": role, "password": kept, "active": True})
            return self._session(connection, name)

    def sign_in(self, name: str, password: str, address: str) -> str | None:
        """The token of a new session; None where name and password do not belong together.

        Raises:
            SlowDownError: this name from this address, or this address, was wrong too often; nothing was tried.
        """
        keys = (digest(f"{address}\0{name}"), digest(address))
        rows = self.store.rows(sql.select(failures).where(failures.c.key.in_(keys)))
        wait = max((row["until"] for row in rows), default=0.0) - time.time()
        if wait > 0:
            raise SlowDownError(wait)
        row = self.store.one(sql.select(accounts).where(accounts.c.name == name, accounts.c.active))
        right = _fits(password[:1000], _nobodys() if row is None else row["password"]) and row is not None
        if not self.store.there:
            return None
        with self.store.writing() as connection:
            if right:
                connection.execute(sql.delete(failures).where(failures.c.key == keys[0]))
                return self._session(connection, name)
            counts = {row["key"]: row["count"] for row in rows}
            for key, free in zip(keys, (FREE, 4 * FREE), strict=True):
                count = counts.get(key, 0) + 1
                until = time.time() + min(2.0 ** min(count - free, 20), SLOWEST_S) if count >= free else 0.0
                put(connection, failures, {"key": key, "count": count, "until": until})
        return None

    def _session(self, connection: sql.Connection, name: str) -> str:
        token = secrets.token_urlsafe(32)
        connection.execute(sql.delete(sessions).where(sessions.c.expires < time.time()))
        row = {"digest": digest(token), "name": name, "csrf": secrets.token_urlsafe(24)}
        put(connection, sessions, {**row, "expires": time.time() + SESSION_S})
        return token

    def person(self, token: str | None) -> Person | None:
        """Who has this session; None where nobody does any more."""
        if not token:
            return None
        both = sql.select(sessions.c.csrf, sessions.c.expires, accounts.c.name, accounts.c.role).join_from(
            sessions, accounts, sessions.c.name == accounts.c.name
        )
        now = time.time()
        row = self.store.one(
            both.where(sessions.c.digest == digest(token), sessions.c.expires > now, accounts.c.active)
        )
        if row is None:
            return None
        if row["expires"] < now + SESSION_S - 3600:
            with self.store.writing() as connection:
                later = sql.update(sessions).where(sessions.c.digest == digest(token))
                connection.execute(later.values(expires=now + SESSION_S))
        return Person(row["name"], row["role"], row["csrf"])

    def sign_out(self, token: str) -> None:
        """End a session."""
        with self.store.writing() as connection:
            connection.execute(sql.delete(sessions).where(sessions.c.digest == digest(token)))

    def set_active(self, name: str, active: bool) -> None:
        """Shut an account out, or let it in again; what it marked stays.

        Raises:
            DataError: there is none of that name, or it is the only owner's.
        """
        with self.store.writing() as connection:
            changed = connection.execute(sql.update(accounts).where(accounts.c.name == name).values(active=active))
            if not changed.rowcount:
                raise DataError(f"there is no account {name!r}")
            owners = sql.select(accounts.c.name).where(accounts.c.role == "owner", accounts.c.active)
            if connection.execute(owners).first() is None:
                raise DataError("this is the only owner")
            connection.execute(sql.delete(sessions).where(sessions.c.name == name))
