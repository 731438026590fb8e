-- Follows: the truth in the follower's partition, the projection in the target's.

-- Notes peers that stand in both of a user's lists as mutual, each with the later of its two
-- versions: that of the one list, and the one that `opposite` has. Leaves out those that it lost.
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

-- The truth of follows: makes a user follow targets.
--
-- KEYS: clock, pending, forgotten, users; of the follower: following, following_ids, followers,
--       follower_ids, mutual, blocks, blocked_by.
-- ARGV: issuer, follower, limit of following, targets…: each once, none the follower itself.
-- Returns for each target: outcome, version (0 if refused), whether it follows the follower.
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
    -- A follow that only the id set has is made anew.
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
    issued = issue_follows(clock, issuer, #new, following)
    local entries, changes, both, both_at = {}, {}, {}, {}
    for i, target in ipairs(new) do
      entries[2 * i - 1], entries[2 * i] = issued[i], target
      changes[2 * i - 1], changes[2 * i] = issued[i], waiting_follow(follower, target)
      if new_is_follower[i] then
        both[#both + 1], both_at[#both_at + 1] = target, issued[i]
      end
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
      and redis.call('ZSCORE', pending, waiting_follow(follower, target)) then
      outcomes[i] = PENDING
    end
    answer[3 * i - 2], answer[3 * i - 1], answer[3 * i] = outcomes[i], versions[i], is_follower[i]
  end
  return answer
end

-- The truth of follows: makes a user follow targets no more.
--
-- KEYS: clock, pending; of the follower: following, following_ids, follower_ids, mutual.
-- ARGV: issuer, follower, 1 to note an end also of what was not there (so that the target's
--       side hears of it), targets…: each once.
-- Returns for each target: outcome, version of the end (0 if NOTHING), whether it follows the
-- follower.
local function unfollow(keys, args)
  local clock, pending, following, following_ids = keys[1], keys[2], keys[3], keys[4]
  local follower_ids, mutual = keys[5], keys[6]
  local issuer, follower, always = tonumber(args[1]), args[2], args[3] == '1'
  local targets = rest(args, 4)

  local is_follower = call_with('SMISMEMBER', follower_ids, targets)
  local outcomes, versions, ended, unlisted = {}, {}, {}, {}
  for i, follows in ipairs(call_with('SMISMEMBER', following_ids, targets)) do
    outcomes[i], versions[i] = NOTHING, 0
    local is_listed = follows == 1 or redis.call('ZSCORE', following, targets[i])
    if not is_listed then
      unlisted[#unlisted + 1] = targets[i]
      local version = redis.call('ZSCORE', pending, waiting_follow(follower, targets[i]))
      if version then
        outcomes[i], versions[i] = PENDING, tonumber(version)
      end
    end
    if is_listed or (always and outcomes[i] == NOTHING) then
      outcomes[i] = DONE
      ended[#ended + 1] = targets[i]
    end
  end

  local issued = #ended > 0 and issue(clock, issuer, #ended) or {}
  if #unlisted > 0 then
    call_with('ZREM', mutual, unlisted)
  end
  if #ended > 0 then
    local changes = {}
    for i, target in ipairs(ended) do
      changes[2 * i - 1], changes[2 * i] = issued[i], waiting_follow(follower, target)
    end
    call_with('ZREM', following, ended)
    call_with('SREM', following_ids, ended)
    call_with('ZREM', mutual, ended)
    call_with('ZADD', pending, changes)
    local n = 0
    for i = 1, #targets do
      if outcomes[i] == DONE then
        n = n + 1
        versions[i] = tonumber(issued[n])
      end
    end
  end

  local answer = {}
  for i = 1, #targets do
    answer[3 * i - 2], answer[3 * i - 1], answer[3 * i] = outcomes[i], versions[i], is_follower[i]
  end
  return answer
end

-- Gives edges new versions above what both sides know, where the target's side does not agree with
-- the truth and must not refuse it. An edge that has changed since its caller saw it is left alone.
--
-- KEYS: clock, pending; of the follower: following, following_ids, followers, follower_ids, mutual.
-- ARGV: issuer, follower; for each edge, of which each is once: target, version that was seen (0 for none), 1 if it
--       exists and 0 if not, version that the target's side knows (0 for none). One that exists at 0
--       is one that only the follower's id set has.
-- Returns for each edge the new version, 0 if it was left alone.
local function raise(keys, args)
  local clock, pending, following = keys[1], keys[2], keys[3]
  local issuer, follower = tonumber(args[1]), args[2]
  local answer, as_seen = {}, {}
  for at = 3, #args, 4 do
    local target, seen, exists = args[at], tonumber(args[at + 1]), args[at + 2] == '1'
    local member = waiting_follow(follower, target)
    local current = tonumber(redis.call('ZSCORE', following, target) or 0)
    local waiting = tonumber(redis.call('ZSCORE', pending, member) or seen)
    local is_as_seen = not exists and waiting == seen
    if exists then
      is_as_seen = seen > 0 or redis.call('SISMEMBER', keys[4], target) == 1
    end
    answer[#answer + 1] = 0
    if is_as_seen and current == (exists and seen or 0) then
      as_seen[#as_seen + 1] = at
    end
  end

  local issued = #as_seen > 0 and issue_follows(clock, issuer, #as_seen, following) or {}
  local targets = {}
  for i, at in ipairs(as_seen) do
    local target = args[at]
    local version = above(issued[i], tonumber(args[at + 1]), tonumber(args[at + 3]))
    if args[at + 2] == '1' then
      redis.call('ZADD', following, version, target)
    else
      redis.call('SREM', keys[4], target)
    end
    redis.call('ZADD', pending, version, waiting_follow(follower, target))
    targets[i] = target
    answer[(at + 1) / 4] = tonumber(version)
  end
  if #targets > 0 then
    index({ unpack(keys, 3, 7) }, targets)
  end
  return answer
end

-- Takes the followers `begun` since `versions` into a target's lists; `entries` are both, as for
-- ZADD. Their ids are in the id set already.
local function begin(lists, begun, versions, entries)
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

-- Applies changes to one target's followers: `peers` follow it since `versions`, or where
-- `follows` is false, no more. `fresh` and `forgotten` say that the target has no tombstones, and
-- that it takes no followers any more. Appends an outcome for each change, and to `stale`, for
-- each that it refuses since it knows of a newer one, that one's version.
local function project_one(lists, changes, fresh, forgotten, outcomes, stale)
  local followers, follower_ids, lost, mutual = lists[1], lists[2], lists[3], lists[6]
  local peers, versions, follows = changes.peers, changes.versions, changes.follows

  -- Mostly all are new. The set tells, and is where they belong: nothing can refuse them.
  if fresh and not forgotten and changes.all_follow
    and call_with('SADD', follower_ids, peers) == #peers then
    begin(lists, peers, versions, changes.entries)
    for _ = 1, #peers do
      outcomes[#outcomes + 1] = DONE
    end
    return
  end

  local known, gone = call_with('ZMSCORE', followers, peers), {}
  if not fresh then
    gone = call_with('ZMSCORE', lost, peers)
  end
  local begun, begun_at, entries, ended, tombstones, risen = {}, {}, {}, {}, {}, {}
  for i, peer in ipairs(peers) do
    local version = tonumber(versions[i])
    local known_at, gone_at = tonumber(known[i] or 0), tonumber(gone[i] or 0)
    local outcome = DONE
    if follows[i] and forgotten then
      outcome = FORGOTTEN
    elseif follows[i] and (gone_at >= version or known_at > version)
      or not follows[i] and known_at >= version then
      outcome = STALE
      stale[#stale + 1] = math.max(known_at, gone_at)
    elseif follows[i] then
      begun[#begun + 1], begun_at[#begun_at + 1] = peer, versions[i]
      entries[2 * #begun - 1], entries[2 * #begun] = versions[i], peer
      if gone[i] then
        risen[#risen + 1] = peer
      end
    else
      ended[#ended + 1] = peer
      if gone_at < version then
        tombstones[#tombstones + 1] = versions[i]
        tombstones[#tombstones + 1] = peer
      end
    end
    outcomes[#outcomes + 1] = outcome
  end

  if #begun > 0 then
    call_with('SADD', follower_ids, begun)
    if #risen > 0 then
      call_with('ZREM', lost, risen)
    end
    begin(lists, begun, begun_at, entries)
  end
  if #ended > 0 then
    call_with('ZREM', followers, ended)
    call_with('SREM', follower_ids, ended)
    call_with('ZREM', mutual, ended)
    -- A forgotten target refuses every follow, so it need not know which were before an end.
    if not forgotten and #tombstones > 0 then
      bury(lost, tombstones)
    end
  end
end

-- Reads the changes of one target from the arguments, `count` of them from `at` on.
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

-- The projection of follows: what the followers lists of a partition's users hear of the
-- followers' sides.
--
-- KEYS: forgotten, users; of each target: followers, follower_ids, lost, following,
--       following_ids, mutual.
-- ARGV: for each target: target, number of its changes; for each of these: follower, version, 1 if
--       it follows and 0 if it does not. Each follower once for a target.
-- Returns two lists. For each change: DONE if the target's side says the same now, STALE if it knows
-- of a newer one that says something else, FORGOTTEN if the target takes no followers any more. For
-- each STALE one: the version that the target's side knows.
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
  for i = 1, #targets do
    project_one(lists[i], changes[i], fresh, forgotten[i] == 1, outcomes, stale)
  end
  call_with('SADD', keys[2], targets)
  return { outcomes, stale }
end

-- Compares what the target's side says of one target's followers with changes that it was told
-- before, and brings its id sets and mutuals in line with its lists.
--
-- KEYS: of the target: followers, follower_ids, lost, following, following_ids, mutual.
-- ARGV: target, number of changes; for each: follower, version (0 if there never was one), 1 if it
--       follows and 0 if it does not.
-- Returns for each change: -1 if it says the same, else the version that it knows, 0 for none.
local function compare(keys, args)
  local followers, follower_ids, lost, following, following_ids, mutual = unpack(keys)
  local changes = read_changes(args, 3, tonumber(args[2]))
  index({ following, following_ids, followers, follower_ids, mutual }, changes.peers)
  local known = call_with('ZMSCORE', followers, changes.peers)
  local gone = call_with('ZMSCORE', lost, changes.peers)
  local answer = {}
  for i, version in ipairs(changes.versions) do
    local known_at, gone_at = tonumber(known[i] or 0), tonumber(gone[i] or 0)
    local expected = changes.follows[i] and tonumber(version) or 0
    answer[i] = known_at == expected and -1 or math.max(known_at, gone_at)
  end
  return answer
end

register('relation_follow', follow)
register('relation_unfollow', unfollow, 'allow-oom')
register('relation_raise', raise, 'allow-oom')
register('relation_project', project, 'allow-oom')
register('relation_compare', compare, 'allow-oom')

-- Brings a user's id sets and mutuals in line with its lists.
--
-- KEYS: of the user: following, following_ids, followers, follower_ids, mutual. ARGV: peers…
-- Returns for each 1 if something differed, else 0.
register('relation_index', index, 'allow-oom')
