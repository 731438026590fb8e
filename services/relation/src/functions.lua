-- The Redis functions of the relation service. Each uses one partition only. The files in
-- functions/ follow this one in the library.
--
-- Invariants, with repeated, reordered or lost steps (see edge_saga.rs):
--   * the follower's partition issues the versions of an edge, and they only grow; a version from
--     reconciliation is above both sides, even if the partition's clock is behind;
--   * the inverse side keeps the newest version that it received, of an existing edge in
--     `followers`, of a deleted edge as a tombstone in `lost`, and rejects older ones;
--   * a change that the inverse side may not have is in the outbox, `pending`;
--   * an id set has the members of its sorted set, and `mutual` the intersection of both lists. If
--     they differ, the sorted sets of `following` and `followers` are right.
--
-- Functions do not roll back: all checks come before the first write. Variadic commands have at
-- most a few hundred members, which the callers ensure, so that no call takes longer than about a
-- millisecond.
--
-- Ids and versions are below 2^53, hence exact as Lua numbers, and are written as integers.
--
-- `issue`, `integer`, `call_with`, `rest`, `bury` (adds tombstones) and `confirm` are from the
-- keyspace's prelude.

-- Outcomes; graph.rs has the same numbers.
local DONE, UNCHANGED, PENDING = 0, 1, 2
local BLOCKED_BY_TARGET, TARGET_BLOCKED, LIMIT, FORGOTTEN, NOTHING, STALE = 3, 4, 5, 6, 7, 8

-- Outbox entries: a change of a follow, and of a block.
local function outbox_follow(follower, target)
  return 'follow:' .. follower .. '>' .. target
end

local function outbox_block(user, target)
  return 'block:' .. user .. '>' .. target
end

-- Returns a version for reconciliation, above both sides: the issued one, or the next one if the
-- clock is behind. The clock does not advance to the seen versions, which may be far ahead.
local function version_above(issued, seen, known)
  return integer(math.max(tonumber(issued), seen + 1, known + 1))
end

-- Returns the version at which an entry of a list ends, above that at which it began: the issued one,
-- or the next one if the clock is behind.
local function version_of_end(issued, list, member)
  return version_above(issued, 0, tonumber(redis.call('ZSCORE', list, member) or 0))
end

-- Appends the end of a source edge to the journal. One that did not exist may have been recorded and
-- lost: its entry says that nothing changed here (see journal.rs).
local function append_end(existed, kind, from, to, version)
  if existed then
    append_change(kind, from, to, version)
  else
    append_change('still', kind, from, to, version)
  end
end

-- Issues versions for new entries of a user's list, and for ends with them. After the clock was set
-- back, they must exceed those that were issued ahead: the record may have an end of an edge that was
-- not there, which left nothing here. They must also exceed those of the list's other entries: home
-- timelines find new follows by the newest version.
local function issue_for(list, clock, issuer, count)
  local prepared = prepare(clock, issuer, count)
  local issued = issue_prepared(prepared)
  if prepared.newest_ahead then
    local newest = redis.call('ZRANGE', list, 0, 0, 'REV', 'WITHSCORES')
    local known = math.max(tonumber(newest[2] or 0), prepared.newest_ahead)
    for i = 1, count do
      issued[i] = version_above(issued[i], 0, known + i - 1)
    end
  end
  return issued
end

-- Rebuilds a user's id sets and mutuals for some peers from the lists of following and followers.
-- `lists` are following, following_ids, followers, follower_ids, mutual. Writes only differences.
-- Keeps a following that only the id set has: it is half of a source edge, which a call on that
-- edge completes or deletes.
-- Returns for each peer 1 if something differed, else 0.
local function index(lists, peers)
  local following = call_with('ZMSCORE', lists[1], peers)
  local followers = call_with('ZMSCORE', lists[3], peers)
  local in_following = call_with('SMISMEMBER', lists[2], peers)
  local in_followers = call_with('SMISMEMBER', lists[4], peers)
  local mutual = call_with('ZMSCORE', lists[5], peers)
  local differs = {}
  for i, peer in ipairs(peers) do
    differs[i] = 0
    if following[i] and in_following[i] == 0 then
      redis.call('SADD', lists[2], peer)
      differs[i] = 1
    end
    if followers[i] and in_followers[i] == 0 then
      redis.call('SADD', lists[4], peer)
      differs[i] = 1
    elseif not followers[i] and in_followers[i] == 1 then
      redis.call('SREM', lists[4], peer)
      differs[i] = 1
    end
    if following[i] and followers[i] then
      local version = math.max(tonumber(following[i]), tonumber(followers[i]))
      if tonumber(mutual[i] or 0) ~= version then
        redis.call('ZADD', lists[5], integer(version), peer)
        differs[i] = 1
      end
    elseif mutual[i] then
      redis.call('ZREM', lists[5], peer)
      differs[i] = 1
    end
  end
  return differs
end

-- Writes recorded edges of a user to a list where Redis has older ones, or none. An end only where
-- Redis has the edge. An end may have the version of its beginning.
--
-- KEYS: pending, users; of the user: the list, and for follows following_ids, followers,
--       follower_ids, mutual.
-- ARGV: kind of the outbox entries, or nothing if there is no inverse side; user; for each distinct
--       edge: target, version, 1 if it exists and 0 if it has ended.
-- Returns for each edge 1 if it was written, else 0.
local function restore(keys, args)
  local pending, users, list, id_set = keys[1], keys[2], keys[3], keys[4]
  local kind, user = args[1], args[2]
  local written, peers = {}, {}
  for at = 3, #args, 3 do
    local target, version, exists = args[at], tonumber(args[at + 1]), args[at + 2] == '1'
    local current = tonumber(redis.call('ZSCORE', list, target) or 0)
    local is_older = exists and current < version or not exists and current > 0 and current <= version
    written[#written + 1] = is_older and 1 or 0
    if is_older then
      peers[#peers + 1] = target
      if exists then
        redis.call('ZADD', list, args[at + 1], target)
      else
        redis.call('ZREM', list, target)
      end
      if id_set then
        redis.call(exists and 'SADD' or 'SREM', id_set, target)
      end
      if kind ~= '' then
        redis.call('ZADD', pending, args[at + 1], kind .. ':' .. user .. '>' .. target)
      end
    end
  end
  if #peers > 0 then
    redis.call('SADD', users, user)
    if id_set then
      index({ list, unpack(keys, 4, 7) }, peers)
    end
  end
  return written
end

-- Restores a deleted account. Its data, which Redis may still have, are then deleted again.
--
-- KEYS: forgotten, forgetting. ARGV: account, stamp of the deletion.
local function restore_deletion(keys, args)
  if redis.call('SADD', keys[1], args[1]) == 1 then
    redis.call('ZADD', keys[2], args[2], args[1])
  end
  return 0
end

register_recovery('relation_restore', restore)
register('relation_restore_deletion', restore_deletion)
register('relation_raise_clock', raise_clock, 'allow-oom')
register('relation_repair_clock', repair_clock, 'allow-oom')
register_change('relation_forget', forget, 'allow-oom')
register_change('relation_finish_forgetting', finish_forgetting, 'allow-oom')

-- Removes outbox entries (acknowledgement), unless newer changes of the same edges replaced them.
register('relation_confirm', confirm, 'allow-oom')
