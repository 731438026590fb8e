-- The atomic steps of the relation service. Each runs in one partition and touches nothing else.
-- This is the beginning of the library, which the files in functions/ share; they follow it.
--
-- What must hold, whatever is repeated, reordered or lost between the steps (see edges.rs):
--   * an edge's versions are issued by its follower's partition, and only grow; a repair's is above
--     what both sides know, also where the partition's clock is behind that;
--   * the target's side keeps the newest version that it has heard of, of an edge that exists in
--     `followers`, of an edge that has ended in `lost`, and ignores what is not newer;
--   * a change of the follower's side that the target's side may not know is in `pending`;
--   * an id set has the members of its sorted set, and `mutual` those of both lists. Where one of
--     them was lost, the sorted sets of `following` and `followers` are right.
--
-- Functions do not roll back: nothing is written before every check is made. Variadic commands
-- carry at most a few hundred members, so that no call runs longer than about a millisecond;
-- the callers see to that.
--
-- Ids and versions are below 2^53, hence exact as Lua's numbers, and are written as integers.
--
-- `issue`, `integer`, `call_with`, `rest`, `bury` and `confirm` are the keyspace's own.

-- What a step did; graph.rs has the same numbers.
local DONE, UNCHANGED, PENDING = 0, 1, 2
local BLOCKED_BY_TARGET, TARGET_BLOCKED, LIMIT, FORGOTTEN, NOTHING, STALE = 3, 4, 5, 6, 7, 8

-- What waits in `pending`: a change of a follow, a change of a block.
local function waiting_follow(follower, target)
  return 'follow:' .. follower .. '>' .. target
end

local function waiting_block(user, target)
  return 'block:' .. user .. '>' .. target
end

-- Returns a version above what is known of an edge, for a repair: one that the partition's clock has
-- issued, or the next one where the clock is behind. The clock does not follow what is known, which
-- may be far ahead of it.
local function above(issued, seen, known)
  return integer(math.max(tonumber(issued), seen + 1, known + 1))
end

-- Issues versions for a follower's new follows. Where the clock was ahead and is set back, they are above
-- those of its other follows, which may be of that time: a home timeline knows of new follows by the
-- newest version.
local function issue_follows(clock, issuer, count, following)
  local prepared = prepare(clock, issuer, count)
  local issued = issue_prepared(prepared)
  if prepared.has_ahead then
    local newest = redis.call('ZRANGE', following, 0, 0, 'REV', 'WITHSCORES')
    for i = 1, count do
      issued[i] = above(issued[i], 0, tonumber(newest[2] or 0) + i - 1)
    end
  end
  return issued
end

-- Makes a user's id sets and mutuals say of peers what the lists of following and followers say.
-- `lists` are following, following_ids, followers, follower_ids, mutual. Writes only what differs.
-- A follow of the user's own that only the id set has stays: it is half of a truth, for a call on that
-- edge to end or to make anew.
-- Returns for each peer 1 if something did, else 0.
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

register('relation_mend_clock', mend_clock, 'allow-oom')

-- Takes changes out of `pending`, each unless a newer one of the same edge has come in.
register('relation_confirm', confirm, 'allow-oom')
