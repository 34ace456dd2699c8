"""How claims lie in Redis: names, fields and values of hashes, and the scripts that change them.

The first 14 bytes of a key are a field, and six bits of the next one say which of 64 hashes has it;
the rest counts for nothing. A value is short, since memory is what limits a store: a field of up to
14 bytes, and a value of up to 14, take 16 bytes each of any allocator.

    value       name of a stretch (6), low half of the offset (4), until (4), row (4, if not 0)
    stretch     topic, loader, partition, high half of the offset (20): the begin of an owner

A stretch stands once beside each hash whose claims name it, and the script that claims writes it
before them. It is named by its hash, not by a number that is drawn: whatever a failover forgets,
the name is never another one's. Should two have one name, the script refuses the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import Keys, Owners
from sluice.core.claims import OWNER_BYTES

#: Fewer cost small blocks less, as each hash is a script. More would move less at a time between
#: the nodes of a cluster.
HASHES = 64
#: Of one script: it runs for less than a millisecond, and nobody waits for longer. Lua could give
#: about 7,900 values to one command.
_LINES_MAX = 512
_FIELD_BYTES = 14
STRETCH_BYTES, NAME_BYTES = 20, 6
_LOW_BYTES, _ROW_BYTES = 4, 4
_VALUE_BYTES = NAME_BYTES + _LOW_BYTES + 4
_VALUE_BYTES_MAX = _VALUE_BYTES + _ROW_BYTES
_UNTIL_MAX = 2**32 - 1

#: Hash, its stretches; fields; fields with values, the last line first; names of stretches;
#: stretches; now. What is cut in one call of `struct` costs half of what a loop over `sub` does.
_BEGIN = b"""local n, sub = #ARGV[1] / 14, string.sub
local function cut(text, count, form) return {struct.unpack(string.rep(form, count), text)} end
local function until_of(value) return (struct.unpack('>I4', value, 11)) end
local function same(one, other)
  return sub(one, 1, 10) == sub(other, 1, 10) and sub(one, 15) == sub(other, 15)
end
local size = #ARGV[2] / n - 14
local written = cut(ARGV[2], n, 'c14c' .. size)
if size > 14 then
  for i = 2, 2 * n, 2 do
    if sub(written[i], 15) == '\\0\\0\\0\\0' then written[i] = sub(written[i], 1, 14) end
  end
end
local count = #ARGV[3] / 6
local names, stretches = cut(ARGV[3], count, 'c6'), cut(ARGV[4], count, 'c20')
local known, unknown = redis.call('HMGET', KEYS[2], unpack(names, 1, count)), {}
for i = 1, count do
  if not known[i] then
    unknown[#unknown + 1] = names[i]
    unknown[#unknown + 1] = stretches[i]
  elseif known[i] ~= stretches[i] then
    return redis.error_reply('NAMESAKE two topics or partitions have one name in claims')
  end
end
local fields = cut(ARGV[1], n, 'c14')
local held = redis.call('HMGET', KEYS[1], unpack(fields, 1, n))
"""
#: '' if all keys are those owners' now; else all values, filled up if they are not of one length.
CLAIM = (
    _BEGIN
    + b"""local now = tonumber(ARGV[5])
if #unknown > 0 then redis.call('HSET', KEYS[2], unpack(unknown)) end
local is_new = true
for i = 1, n do if held[i] then is_new = false break end end
if is_new then
  -- Of equal keys the one that is written last stays: the first of all
  if redis.call('HSET', KEYS[1], unpack(written, 1, 2 * n)) == n then return '' end
  held = redis.call('HMGET', KEYS[1], unpack(fields, 1, n))
end
local changes, at, is_mine, longest = {}, {}, true, 14
for i = 1, n do
  local field, mine = fields[i], written[2 * (n - i + 1)]
  local has = at[field] and changes[at[field]] or held[i]
  if has ~= mine then
    local is_same = has and same(has, mine)
    local until_s = has and until_of(has)
    if not has or until_s < now or (is_same and until_s < until_of(mine)) then
      has, at[field] = mine, at[field] or #changes + 2
      changes[at[field] - 1], changes[at[field]] = field, mine
    elseif not is_same then
      is_mine = false
    end
  end
  held[i] = has
  if #has > longest then longest = #has end
end
if #changes > 0 then redis.call('HSET', KEYS[1], unpack(changes)) end
if is_mine then return '' end
if longest > 14 then
  for i = 1, n do held[i] = held[i] .. string.rep('\\0', longest - #held[i]) end
end
return table.concat(held)"""
)
RELEASE = (
    _BEGIN
    + b"""local gone = {}
for i = 1, n do
  if held[i] and same(held[i], written[2 * (n - i + 1)]) then gone[#gone + 1] = fields[i] end
end
return #gone > 0 and redis.call('HDEL', KEYS[1], unpack(gone)) or 0"""
)
#: Hash; cursor, now. What it answers is the next cursor, and how many it dropped.
SWEEP = b"""if redis.replicate_commands then redis.replicate_commands() end  -- before Redis 7
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', '512')
local now, gone = tonumber(ARGV[2]), {}
for i = 2, #found[2], 2 do
  if struct.unpack('>I4', found[2][i], 11) < now then gone[#gone + 1] = found[2][i - 1] end
end
local dropped = 0
for i = 1, #gone, 5000 do
  dropped = dropped + redis.call('HDEL', KEYS[1], unpack(gone, i, math.min(i + 4999, #gone)))
end
return found[1] .. ' ' .. dropped"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys of one hash, as arguments of a script.

    :param lines: which lines of the block they are.
    """

    number: int
    lines: NDArray[np.intp]
    arguments: tuple[bytes, bytes, bytes, bytes]


class Stretches:
    """Names of stretches. What was known once holds for ever."""

    def __init__(self) -> None:
        self._name_of: dict[bytes, bytes] = {}
        self._of_name: dict[bytes, bytes] = {}

    def name(self, stretch: bytes) -> bytes:
        found = self._name_of.get(stretch)
        if found is None:
            found = hashlib.blake2b(stretch, digest_size=NAME_BYTES).digest()
            self.know(found, stretch)
        return found

    def know(self, name: bytes, stretch: bytes) -> None:
        """What a store says of a name."""
        self._name_of[stretch] = name
        self._of_name[name] = stretch

    def of(self, name: bytes) -> bytes | None:
        return self._of_name.get(name)


def pieces(keys: Keys, owners: Owners, until_s: int, stretches: Stretches) -> Iterator[Piece]:
    """The keys of a block by hash, in its order within each.

    :param until_s: of the claims.
    """
    distinct, which = _distinct(owners[:, :STRETCH_BYTES])
    texts = [line.tobytes() for line in distinct]
    named = [stretches.name(text) for text in texts]
    names = np.frombuffer(b"".join(named), np.uint8).reshape(-1, NAME_BYTES)
    numbers = keys[:, _FIELD_BYTES] % HASHES
    order = np.argsort(numbers, kind="stable")
    which, fields = which[order], keys[order, :_FIELD_BYTES]
    written = np.hstack((fields, _values(owners[order], names[which], until_s)))
    ends = np.cumsum(np.bincount(numbers, minlength=HASHES)).tolist()
    for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        for begin in range(first, end, _LINES_MAX):
            here = slice(begin, min(begin + _LINES_MAX, end))
            used = [0] if len(texts) == 1 else np.unique(which[here]).tolist()
            yield Piece(
                number,
                order[here],
                (
                    fields[here].tobytes(),
                    written[here][::-1].tobytes(),
                    b"".join(named[place] for place in used),
                    b"".join(texts[place] for place in used),
                ),
            )


def _values(owners: Owners, names: NDArray[np.uint8], until_s: int) -> NDArray[np.uint8]:
    """A line for each owner, with rows if one of them is not 0.

    :param names: of the stretches that they begin with.
    """
    rows = owners[:, STRETCH_BYTES + _LOW_BYTES :]
    found = np.empty((len(owners), _VALUE_BYTES_MAX if rows.any() else _VALUE_BYTES), np.uint8)
    found[:, :NAME_BYTES] = names
    found[:, NAME_BYTES : NAME_BYTES + _LOW_BYTES] = owners[:, STRETCH_BYTES:][:, :_LOW_BYTES]
    end = min(until_s, _UNTIL_MAX).to_bytes(4, "big")
    found[:, NAME_BYTES + _LOW_BYTES : _VALUE_BYTES] = np.frombuffer(end, np.uint8)
    if found.shape[1] > _VALUE_BYTES:
        found[:, _VALUE_BYTES:] = rows
    return found


def values_told(reply: bytes, count: int) -> NDArray[np.uint8] | None:
    """What CLAIM answered for so many keys; None: it is not that."""
    size, rest = divmod(len(reply), count)
    if rest or size not in (_VALUE_BYTES, _VALUE_BYTES_MAX):
        return None
    found = np.zeros((count, _VALUE_BYTES_MAX), np.uint8)
    found[:, :size] = np.frombuffer(reply, np.uint8).reshape(count, size)
    return found


def names_in(values: NDArray[np.uint8]) -> tuple[list[bytes], NDArray[np.intp], NDArray[np.intp]]:
    """The names of stretches in lines of `values_told`, a line with each, and which each line
    has."""
    names = np.ascontiguousarray(values[:, :NAME_BYTES]).view(f"V{NAME_BYTES}")[:, 0]
    met, first, which = np.unique(names, return_index=True, return_inverse=True)
    return [name.tobytes() for name in met], first, which.reshape(-1)


def owners_in(values: NDArray[np.uint8], stretches: NDArray[np.uint8]) -> Owners:
    """The owners of lines of `values_told`, by the stretch of each."""
    found = np.empty((len(values), OWNER_BYTES), np.uint8)
    found[:, :STRETCH_BYTES] = stretches
    low = values[:, NAME_BYTES : NAME_BYTES + _LOW_BYTES]
    found[:, STRETCH_BYTES : STRETCH_BYTES + _LOW_BYTES] = low
    found[:, STRETCH_BYTES + _LOW_BYTES :] = values[:, _VALUE_BYTES:]
    return found


def _distinct(lines: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Each of the lines once, and which of them each line is. They change seldom."""
    count, size = lines.shape
    lines = np.ascontiguousarray(lines)
    words = lines.view(np.uint32)
    begins = np.flatnonzero(np.append(True, (words[1:] != words[:-1]).any(axis=1)))
    met, which = np.unique(lines[begins].view(f"V{size}")[:, 0], return_inverse=True)
    return (
        met.view(np.uint8).reshape(-1, size),
        np.repeat(which.reshape(-1), np.diff(begins, append=count)),
    )
