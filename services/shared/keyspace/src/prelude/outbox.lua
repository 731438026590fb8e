-- Outboxes: acknowledgement of entries, and tombstones of ended ones.

-- Tombstones expire after 24 hours, far longer than any message is delayed.
local TOMBSTONE_SECONDS = 86400

-- Adds ended entries (version, member, version, member, …) to a zset of tombstones, and removes up
-- to twice as many expired ones. Versions are stamps. Needs EXPIRE, TIME, ZADD, ZRANGE, ZREM.
local function bury(tombstones, entries)
  call_with('ZADD', tombstones, entries)
  redis.call('EXPIRE', tombstones, TOMBSTONE_SECONDS)
  local cutoff = integer((now_ms() - TOMBSTONE_SECONDS * 1000) * 4096)
  local old = redis.call('ZRANGE', tombstones, '-inf', cutoff, 'BYSCORE', 'LIMIT', 0, #entries)
  if #old > 0 then
    call_with('ZREM', tombstones, old)
  end
end

-- Removes entries from `pending`, a zset of changes by version, unless a newer change has replaced
-- their version. A service registers it. Needs ZMSCORE and ZREM.
--
-- KEYS: pending. ARGV: member, version, member, version, …
-- Returns the number of removed entries.
local function confirm(keys, args)
  local members, done = {}, {}
  for i = 1, #args, 2 do
    members[#members + 1] = args[i]
  end
  for i, version in ipairs(call_with('ZMSCORE', keys[1], members)) do
    if version and tonumber(version) == tonumber(args[2 * i]) then
      done[#done + 1] = members[i]
    end
  end
  if #done > 0 then
    call_with('ZREM', keys[1], done)
  end
  return #done
end
