-- Follows: the source step in the follower's partition, the projection in the target's.

-- Adds peers that are on both lists of a user to `mutual`, each with the later of its two versions:
-- that of one list, and that of `opposite`. Skips peers that `opposite` lacks.
local function add_mutuals(mutual, opposite, peers, versions)
  if #peers == 0 then
    return
  end
  local entries, known = {}, call_with('ZMSCORE', opposite, peers)
  for i, peer in ipairs(peers) do
    if known[i] then
      entries[#entries + 1] = integer(math.max(tonumber(known[i]), tonumber(versions[i])))
      entries[#entries + 1] = peer
    end
  end
  if #entries > 0 then
    call_with('ZADD', mutual, entries)
  end
end

-- The source step of follows.
--
-- KEYS: clock, pending, forgotten, users; of the follower: following, following_ids, followers,
--       follower_ids, mutual, blocks, blocked_by.
-- ARGV: issuer, follower, following limit, targets…: distinct, without the follower.
-- Returns for each target: outcome, version (0 if rejected), whether it follows the follower.
local function follow(keys, args)
  local clock, pending, forgotten, users = keys[1], keys[2], keys[3], keys[4]
  local following, following_ids, followers, follower_ids = keys[5], keys[6], keys[7], keys[8]
  local mutual, blocks, blocked_by = keys[9], keys[10], keys[11]
  local issuer, follower, limit = tonumber(args[1]), args[2], tonumber(args[3])
  local targets = rest(args, 4)

  local is_forgotten = redis.call('SISMEMBER', forgotten, follower) == 1
  local follows = call_with('SMISMEMBER', following_ids, targets)
  local is_follower = call_with('SMISMEMBER', follower_ids, targets)
  local has_blocked, was_blocked = {}, {}
  if redis.call('EXISTS', blocks, blocked_by) > 0 then
    has_blocked = call_with('ZMSCORE', blocks, targets)
    was_blocked = call_with('ZMSCORE', blocked_by, targets)
  end
  local room = limit - redis.call('ZCARD', following)

  local outcomes, versions, old, new, new_is_follower = {}, {}, {}, {}, {}
  for i = 1, #targets do
    -- A follow that only the id set has is created again.
    local since = follows[i] == 1 and redis.call('ZSCORE', following, targets[i])
    versions[i] = 0
    if is_forgotten then
      outcomes[i] = FORGOTTEN
    elseif since then
      outcomes[i], versions[i] = UNCHANGED, tonumber(since)
      old[#old + 1] = targets[i]
    elseif was_blocked[i] then
      outcomes[i] = BLOCKED_BY_TARGET
    elseif has_blocked[i] then
      outcomes[i] = TARGET_BLOCKED
    elseif room <= 0 then
      outcomes[i] = LIMIT
    else
      outcomes[i] = DONE
      room = room - 1
      new[#new + 1] = targets[i]
      new_is_follower[#new] = is_follower[i] == 1
    end
  end

  local issued = {}
  if #new > 0 then
    issued = issue_for(following, clock, issuer, #new)
    local entries, changes, both, both_at = {}, {}, {}, {}
    for i, target in ipairs(new) do
      entries[2 * i - 1], entries[2 * i] = issued[i], target
      changes[2 * i - 1], changes[2 * i] = issued[i], outbox_follow(follower, target)
      if new_is_follower[i] then
        both[#both + 1], both_at[#both_at + 1] = target, issued[i]
      end
      append_change('follow', follower, target, issued[i])
    end
    call_with('ZADD', following, entries)
    call_with('SADD', following_ids, new)
    call_with('ZADD', pending, changes)
    redis.call('SADD', users, follower)
    add_mutuals(mutual, followers, both, both_at)
  end

  if #old > 0 then
    index({ following, following_ids, followers, follower_ids, mutual }, old)
  end

  local answer, n = {}, 0
  for i, target in ipairs(targets) do
    if outcomes[i] == DONE then
      n = n + 1
      versions[i] = tonumber(issued[n])
    elseif outcomes[i] == UNCHANGED
      and redis.call('ZSCORE', pending, outbox_follow(follower, target)) then
      outcomes[i] = PENDING
    end
    answer[3 * i - 2], answer[3 * i - 1], answer[3 * i] = outcomes[i], versions[i], is_follower[i]
  end
  return answer
end

-- The source step of unfollows.
--
-- KEYS: clock, pending; of the follower: following, following_ids, follower_ids, mutual.
-- ARGV: issuer, follower, 1 to add an end to the outbox even if there is no follow, targets…:
--       distinct.
-- Returns for each target: outcome, version of the end (0 if NOTHING), whether it follows the
-- follower.
local function unfollow(keys, args)
  local clock, pending, following, following_ids = keys[1], keys[2], keys[3], keys[4]
  local follower_ids, mutual = keys[5], keys[6]
  local issuer, follower, always = tonumber(args[1]), args[2], args[3] == '1'
  local targets = rest(args, 4)

  local is_follower = call_with('SMISMEMBER', follower_ids, targets)
  local outcomes, versions, listed, ended, unlisted, absent = {}, {}, {}, {}, {}, 0
  for i, follows in ipairs(call_with('SMISMEMBER', following_ids, targets)) do
    outcomes[i], versions[i] = NOTHING, 0
    listed[i] = follows == 1 or redis.call('ZSCORE', following, targets[i])
    if not listed[i] then
      unlisted[#unlisted + 1] = targets[i]
      local version = redis.call('ZSCORE', pending, outbox_follow(follower, targets[i]))
      if version then
        outcomes[i], versions[i] = PENDING, tonumber(version)
      end
    end
    if listed[i] or (always and outcomes[i] == NOTHING) then
      outcomes[i] = DONE
      ended[#ended + 1] = targets[i]
    elseif outcomes[i] == NOTHING then
      absent = absent + 1
    end
  end

  local count = #ended + absent
  local issued = count > 0 and issue(clock, issuer, count) or {}
  local n = 0
  for i, target in ipairs(targets) do
    if outcomes[i] == DONE then
      n = n + 1
      issued[n] = version_of_end(issued[n], following, target)
      versions[i] = tonumber(issued[n])
      append_end(listed[i], 'unfollow', follower, target, issued[n])
    elseif outcomes[i] == NOTHING then
      append_end(false, 'unfollow', follower, target, issued[count])
      count = count - 1
    end
  end
  if #unlisted > 0 then
    call_with('ZREM', mutual, unlisted)
  end
  if #ended > 0 then
    local changes = {}
    for i, target in ipairs(ended) do
      changes[2 * i - 1], changes[2 * i] = issued[i], outbox_follow(follower, target)
    end
    call_with('ZREM', following, ended)
    call_with('SREM', following_ids, ended)
    call_with('ZREM', mutual, ended)
    call_with('ZADD', pending, changes)
  end

  local answer = {}
  for i = 1, #targets do
    answer[3 * i - 2], answer[3 * i - 1], answer[3 * i] = outcomes[i], versions[i], is_follower[i]
  end
  return answer
end

-- Gives edges versions above both sides, where the inverse side differs from the source side. Skips
-- edges that have changed since they were read.
--
-- KEYS: clock, pending; of the follower: following, following_ids, followers, follower_ids, mutual.
-- ARGV: issuer, follower; for each distinct edge: target, version that was read (0 for none), 1 if
--       the edge exists and 0 if not, version of the inverse side (0 for none). An edge that exists
--       at version 0 is one that only the follower's id set has.
-- Returns for each edge the new version, 0 if it was skipped.
local function bump_versions(keys, args)
  local clock, pending, following = keys[1], keys[2], keys[3]
  local issuer, follower = tonumber(args[1]), args[2]
  local answer, as_seen = {}, {}
  for at = 3, #args, 4 do
    local target, seen, exists = args[at], tonumber(args[at + 1]), args[at + 2] == '1'
    local member = outbox_follow(follower, target)
    local current = tonumber(redis.call('ZSCORE', following, target) or 0)
    local pending_version = tonumber(redis.call('ZSCORE', pending, member) or seen)
    local is_as_seen = not exists and pending_version == seen
    if exists then
      is_as_seen = seen > 0 or redis.call('SISMEMBER', keys[4], target) == 1
    end
    answer[#answer + 1] = 0
    if is_as_seen and current == (exists and seen or 0) then
      as_seen[#as_seen + 1] = at
    end
  end

  local issued = #as_seen > 0 and issue_for(following, clock, issuer, #as_seen) or {}
  local targets = {}
  for i, at in ipairs(as_seen) do
    local target = args[at]
    local version = version_above(issued[i], tonumber(args[at + 1]), tonumber(args[at + 3]))
    local exists = args[at + 2] == '1'
    append_change('still', exists and 'follow' or 'unfollow', follower, target, version)
    if exists then
      redis.call('ZADD', following, version, target)
    else
      redis.call('SREM', keys[4], target)
    end
    redis.call('ZADD', pending, version, outbox_follow(follower, target))
    targets[i] = target
    answer[(at + 1) / 4] = tonumber(version)
  end
  if #targets > 0 then
    index({ unpack(keys, 3, 7) }, targets)
  end
  return answer
end

-- Adds the followers `begun` with `versions` to a target's lists. `entries` are both, as for ZADD.
-- Their ids are in the id set already.
local function add_followers(lists, begun, versions, entries)
  local followers, following, following_ids, mutual = lists[1], lists[4], lists[5], lists[6]
  redis.call('ZADD', followers, 'GT', unpack(entries))
  local both, both_at = {}, {}
  for i, follows in ipairs(call_with('SMISMEMBER', following_ids, begun)) do
    if follows == 1 then
      both[#both + 1], both_at[#both_at + 1] = begun[i], versions[i]
    end
  end
  add_mutuals(mutual, following, both, both_at)
end

-- Applies changes to one target's followers: creations if `follows`, else deletions. `fresh` says
-- that the target has no tombstones, `forgotten` that it rejects followers. Appends an outcome for
-- each change, and to `stale`, for each stale change, the version of the inverse side.
local function project_one(lists, changes, fresh, forgotten, outcomes, stale)
  local followers, follower_ids, lost, mutual = lists[1], lists[2], lists[3], lists[6]
  local peers, versions, follows = changes.peers, changes.versions, changes.follows

  -- The common case: all followers are new, which SADD finds out as it adds them.
  if fresh and not forgotten and changes.all_follow
    and call_with('SADD', follower_ids, peers) == #peers then
    add_followers(lists, peers, versions, changes.entries)
    for _ = 1, #peers do
      outcomes[#outcomes + 1] = DONE
    end
    return
  end

  local known, lost_versions = call_with('ZMSCORE', followers, peers), {}
  if not fresh then
    lost_versions = call_with('ZMSCORE', lost, peers)
  end
  local begun, begun_at, entries, ended, tombstones, recreated = {}, {}, {}, {}, {}, {}
  for i, peer in ipairs(peers) do
    local version = tonumber(versions[i])
    local known_at, tombstone_at = tonumber(known[i] or 0), tonumber(lost_versions[i] or 0)
    local outcome = DONE
    if follows[i] and forgotten then
      outcome = FORGOTTEN
    elseif follows[i] and (tombstone_at >= version or known_at > version)
      or not follows[i] and known_at >= version then
      outcome = STALE
      stale[#stale + 1] = math.max(known_at, tombstone_at)
    elseif follows[i] then
      begun[#begun + 1], begun_at[#begun_at + 1] = peer, versions[i]
      entries[2 * #begun - 1], entries[2 * #begun] = versions[i], peer
      if lost_versions[i] then
        recreated[#recreated + 1] = peer
      end
    else
      ended[#ended + 1] = peer
      if tombstone_at < version then
        tombstones[#tombstones + 1] = versions[i]
        tombstones[#tombstones + 1] = peer
      end
    end
    outcomes[#outcomes + 1] = outcome
  end

  if #begun > 0 then
    call_with('SADD', follower_ids, begun)
    if #recreated > 0 then
      call_with('ZREM', lost, recreated)
    end
    add_followers(lists, begun, begun_at, entries)
  end
  if #ended > 0 then
    call_with('ZREM', followers, ended)
    call_with('SREM', follower_ids, ended)
    call_with('ZREM', mutual, ended)
    -- A forgotten target rejects all follows, so it needs no tombstones.
    if not forgotten and #tombstones > 0 then
      bury(lost, tombstones)
    end
  end
end

-- Reads `count` changes of one target from the arguments from `at` on.
local function read_changes(args, at, count)
  local peers, versions, follows, entries, all_follow = {}, {}, {}, {}, true
  for i = 1, count do
    local peer, version = args[at], args[at + 1]
    peers[i], versions[i], follows[i] = peer, version, args[at + 2] == '1'
    entries[2 * i - 1], entries[2 * i] = version, peer
    all_follow = all_follow and follows[i]
    at = at + 3
  end
  return {
    peers = peers,
    versions = versions,
    follows = follows,
    entries = entries,
    all_follow = all_follow,
  }
end

-- The projection of follows to the targets of one partition. In a recovery, without entries of the
-- journal.
--
-- KEYS: forgotten, users; of each target: followers, follower_ids, lost, following,
--       following_ids, mutual.
-- ARGV: for each target: target, number of its changes; for each of these: follower, version, 1 for
--       a follow and 0 for an unfollow. Each follower once for a target.
-- Returns two lists. For each change: DONE if it is applied, STALE if the inverse side has a newer
-- one that differs, FORGOTTEN if the target rejects followers. For each STALE one: the version of
-- the inverse side.
local function project(keys, args)
  local targets, changes, at = {}, {}, 1
  while at < #args do
    local count = tonumber(args[at + 1])
    targets[#targets + 1] = args[at]
    changes[#targets] = read_changes(args, at + 2, count)
    at = at + 2 + 3 * count
  end

  local lists, lost = {}, {}
  for i = 1, #targets do
    local first = 6 * i - 3
    lists[i] = { unpack(keys, first, first + 5) }
    lost[i] = lists[i][3]
  end
  local fresh = redis.call('EXISTS', unpack(lost)) == 0
  local forgotten = call_with('SMISMEMBER', keys[1], targets)

  local outcomes, stale = {}, {}
  for i, target in ipairs(targets) do
    for j, peer in ipairs(changes[i].peers) do
      local kind = changes[i].follows[j] and 'followed' or 'unfollowed'
      append_change(kind, peer, target, changes[i].versions[j])
    end
  end
  for i = 1, #targets do
    project_one(lists[i], changes[i], fresh, forgotten[i] == 1, outcomes, stale)
  end
  call_with('SADD', keys[2], targets)
  return { outcomes, stale }
end

-- Compares acknowledged changes with one target's followers, and rebuilds its id sets and mutuals
-- for these peers.
--
-- KEYS: of the target: followers, follower_ids, lost, following, following_ids, mutual.
-- ARGV: target, number of changes; for each: follower, version (0 if there never was one), 1 if it
--       follows and 0 if not.
-- Returns for each change: -1 if both sides agree, else the version of the inverse side, 0 for
-- none.
local function compare(keys, args)
  local followers, follower_ids, lost, following, following_ids, mutual = unpack(keys)
  local changes = read_changes(args, 3, tonumber(args[2]))
  index({ following, following_ids, followers, follower_ids, mutual }, changes.peers)
  local known = call_with('ZMSCORE', followers, changes.peers)
  local lost_versions = call_with('ZMSCORE', lost, changes.peers)
  local answer = {}
  for i, version in ipairs(changes.versions) do
    local known_at, tombstone_at = tonumber(known[i] or 0), tonumber(lost_versions[i] or 0)
    local expected = changes.follows[i] and tonumber(version) or 0
    answer[i] = known_at == expected and -1 or math.max(known_at, tombstone_at)
  end
  return answer
end

register_change('relation_follow', follow)
register_change('relation_unfollow', unfollow, 'allow-oom')
register_change('relation_bump_versions', bump_versions, 'allow-oom')
register_change('relation_project', project, 'allow-oom')
register_recovery('relation_restore_inverse', project)
register('relation_compare', compare, 'allow-oom')

-- Rebuilds a user's id sets and mutuals for some peers.
--
-- KEYS: of the user: following, following_ids, followers, follower_ids, mutual. ARGV: peers…
-- Returns for each 1 if something differed, else 0.
register('relation_index', index, 'allow-oom')
