-- The atomic steps of the relation service. Each runs in one partition and touches nothing else.
-- This is the beginning of the library, which the files in functions/ share; they follow it.
--
-- What must hold, whatever is repeated, reordered or lost between the steps (see edges.rs):
--   * an edge's versions are issued by its follower's partition, and only grow;
--   * the target's side keeps the newest version that it has heard of, of an edge that exists in
--     `followers`, of an edge that has ended in `lost`, and ignores what is not newer;
--   * a change of the follower's side that the target's side may not know is in `pending`;
--   * an id set has the members of its sorted set.
--
-- Functions do not roll back: nothing is written before every check is made. Variadic commands
-- carry at most a few hundred members, so that no call runs longer than about a millisecond;
-- the callers see to that.
--
-- Ids and versions are below 2^53, hence exact as Lua's numbers, and are written as integers.

-- Tombstones are kept for 24 hours: far longer than any message can be on its way.
local TOMBSTONE_SECONDS = 86400

-- What a step did; graph.rs has the same numbers.
local DONE, UNCHANGED, PENDING = 0, 1, 2
local BLOCKED_BY_TARGET, TARGET_BLOCKED, LIMIT, FORGOTTEN, NOTHING = 3, 4, 5, 6, 7

-- Calls a command that takes any number of arguments after its key.
local function call_with(command, key, arguments)
  return redis.call(command, key, unpack(arguments))
end

-- Returns those arguments that stand at `from` and after.
local function rest(args, from)
  local values = {}
  for i = from, #args do
    values[#values + 1] = args[i]
  end
  return values
end

-- What waits in `pending`: a change of a follow, a change of a block.
local function waiting_follow(follower, target)
  return 'follow:' .. follower .. '>' .. target
end

local function waiting_block(user, target)
  return 'block:' .. user .. '>' .. target
end

-- Notes ended entries (version, peer, version, peer, …) in a zset of tombstones, and clears away up
-- to twice as many old ones.
local function bury(tombstones, entries)
  call_with('ZADD', tombstones, entries)
  redis.call('EXPIRE', tombstones, TOMBSTONE_SECONDS)
  local cutoff = integer((now_ms() - TOMBSTONE_SECONDS * 1000) * 4096)
  local old = redis.call('ZRANGE', tombstones, '-inf', cutoff, 'BYSCORE', 'LIMIT', 0, #entries)
  if #old > 0 then
    call_with('ZREM', tombstones, old)
  end
end

-- Takes changes out of `pending`, unless a newer one of the same edge has come in.
--
-- KEYS: pending. ARGV: member, version, member, version, …
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

redis.register_function('relation_confirm' .. suffix, confirm)
