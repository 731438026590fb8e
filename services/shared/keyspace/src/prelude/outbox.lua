-- Outboxes: acknowledgement of entries, and tombstones of ended ones.

-- Tombstones expire after 24 hours, far longer than any message is delayed.
local TOMBSTONE_SECONDS = 86400

-- Adds entries (stamp, member, stamp, member, …) to a zset, and removes up to twice as many that are
-- older than a time in milliseconds since 2024. The zset expires as tombstones do. Needs EXPIRE, ZADD,
-- ZRANGE, ZREM.
local function add_recent(key, entries, oldest_ms)
  call_with('ZADD', key, entries)
  redis.call('EXPIRE', key, TOMBSTONE_SECONDS)
  local cutoff = integer(oldest_ms * 4096)
  local old = redis.call('ZRANGE', key, '-inf', cutoff, 'BYSCORE', 'LIMIT', 0, #entries)
  if #old > 0 then
    call_with('ZREM', key, old)
  end
end

-- Adds ended entries (version, member, version, member, …) to a zset of tombstones. Versions
-- are stamps. Needs TIME, and what `add_recent` needs.
local function bury(tombstones, entries)
  add_recent(tombstones, entries, now_ms() - TOMBSTONE_SECONDS * 1000)
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
