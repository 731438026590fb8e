-- Blocks, which have two sides, and private lists with one, such as mutes.

-- Returns the version at which a peer is on a user's followers list; 0 if it is not.
local function follower_since(followers, follower_ids, peer)
  local since = redis.call('ZSCORE', followers, peer)
  return tonumber(since or redis.call('SISMEMBER', follower_ids, peer))
end

-- Returns whether a user follows a peer, by the list or by the id set.
local function follows_peer(following, following_ids, peer)
  return redis.call('SISMEMBER', following_ids, peer) == 1
    or redis.call('ZSCORE', following, peer) ~= false
end

-- Ends a user's follow of a peer. `ended` is the version of the end, nil if the user does not
-- follow. Returns the version of the end, or of one in the outbox; 0 if there is neither.
local function end_follow(ended, pending, user, peer, following, following_ids, mutual)
  local member = outbox_follow(user, peer)
  if not ended then
    return tonumber(redis.call('ZSCORE', pending, member) or 0)
  end
  redis.call('ZREM', following, peer)
  redis.call('SREM', following_ids, peer)
  redis.call('ZREM', mutual, peer)
  redis.call('ZADD', pending, ended, member)
  return tonumber(ended)
end

-- The source step of a block: blocks a target, and ends the user's follow of it.
--
-- KEYS: clock, pending, forgotten, users; of the user: blocks, following, following_ids, followers,
--       follower_ids, mutual.
-- ARGV: issuer, user, target, limit of blocks.
-- Returns outcome, version of the block, version of the end of the follow (0 if there is none to
-- project), version at which the target is the user's follower (0 if it is not).
local function block(keys, args)
  local clock, pending, forgotten, users = keys[1], keys[2], keys[3], keys[4]
  local blocks, following, following_ids = keys[5], keys[6], keys[7]
  local followers, follower_ids, mutual = keys[8], keys[9], keys[10]
  local issuer, user, target = tonumber(args[1]), args[2], args[3]

  if redis.call('SISMEMBER', forgotten, user) == 1 then
    return { FORGOTTEN, 0, 0, 0 }
  end
  local outcome, version = UNCHANGED, redis.call('ZSCORE', blocks, target)
  if not version and redis.call('ZCARD', blocks) >= tonumber(args[4]) then
    return { LIMIT, 0, 0, 0 }
  end
  local follows = follows_peer(following, following_ids, target)
  local count = (version and 0 or 1) + (follows and 1 or 0)
  local issued = count > 0 and issue_for(blocks, clock, issuer, count) or {}
  if not version then
    append_change('block', user, target, issued[1])
  end
  if follows then
    issued[count] = version_of_end(issued[count], following, target)
    append_change('unfollow', user, target, issued[count])
  end
  if not version then
    outcome, version = DONE, issued[1]
    redis.call('ZADD', blocks, version, target)
    redis.call('ZADD', pending, version, outbox_block(user, target))
    redis.call('SADD', users, user)
  elseif redis.call('ZSCORE', pending, outbox_block(user, target)) then
    outcome = PENDING
  end
  local ended = follows and issued[count] or nil
  ended = end_follow(ended, pending, user, target, following, following_ids, mutual)
  return { outcome, tonumber(version), ended, follower_since(followers, follower_ids, target) }
end

-- The source step of an unblock.
--
-- KEYS: clock, pending; of the user: blocks.
-- ARGV: issuer, user, target, 1 to add an end to the outbox even if there is no block.
-- Returns outcome, version of the end (0 if NOTHING).
local function unblock(keys, args)
  local clock, pending, blocks = keys[1], keys[2], keys[3]
  local issuer, user, target, always = tonumber(args[1]), args[2], args[3], args[4] == '1'
  local blocked = redis.call('ZSCORE', blocks, target)
  if not blocked then
    local version = redis.call('ZSCORE', pending, outbox_block(user, target))
    if version then
      return { PENDING, tonumber(version) }
    elseif not always then
      append_end(false, 'unblock', user, target, issue(clock, issuer, 1)[1])
      return { NOTHING, 0 }
    end
  end
  local version = version_of_end(issue(clock, issuer, 1)[1], blocks, target)
  append_end(blocked, 'unblock', user, target, version)
  redis.call('ZREM', blocks, target)
  redis.call('ZADD', pending, version, outbox_block(user, target))
  return { DONE, tonumber(version) }
end

-- Gives a block or its end a version above both sides, like `bump_versions` for follows.
--
-- KEYS: clock, pending; of the user: blocks.
-- ARGV: issuer, user, target, version that was read (0 for none), 1 if the block exists and 0 if
--       not, version of the inverse side.
-- Returns the new version, 0 if the block has changed since it was read.
local function bump_block_version(keys, args)
  local clock, pending, blocks = keys[1], keys[2], keys[3]
  local issuer, user, target = tonumber(args[1]), args[2], args[3]
  local seen, exists = tonumber(args[4]), args[5] == '1'
  local member = outbox_block(user, target)
  local current = tonumber(redis.call('ZSCORE', blocks, target) or 0)
  local pending_version = tonumber(redis.call('ZSCORE', pending, member) or seen)
  if exists and current ~= seen or not exists and (current > 0 or pending_version ~= seen) then
    return 0
  end
  local version = version_above(issue(clock, issuer, 1)[1], seen, tonumber(args[6]))
  append_change('still', exists and 'block' or 'unblock', user, target, version)
  if exists then
    redis.call('ZADD', blocks, version, target)
  end
  redis.call('ZADD', pending, version, member)
  return tonumber(version)
end

-- The projection of a block. Also ends the target's follow of the blocker, whose source edge is in
-- this partition.
--
-- KEYS: clock, pending, forgotten, users; of the target: blocked_by, unblocked, following,
--       following_ids, followers, follower_ids, mutual.
-- ARGV: issuer, target, blocker, version, 1 for a block and 0 for an unblock.
-- Returns outcome, version of the end of the follow (0 if there is none to project), version at
-- which the blocker is the target's follower (0 if it is not), and if STALE the version of the
-- inverse side.
local function project_block(keys, args)
  local clock, pending, forgotten, users = keys[1], keys[2], keys[3], keys[4]
  local blocked_by, unblocked, following, following_ids = keys[5], keys[6], keys[7], keys[8]
  local followers, follower_ids, mutual = keys[9], keys[10], keys[11]
  local issuer, target, user, version = tonumber(args[1]), args[2], args[3], args[4]
  local blocks, number = args[5] == '1', tonumber(args[4])

  if blocks and redis.call('SISMEMBER', forgotten, target) == 1 then
    return { FORGOTTEN, 0, 0, 0 }
  end
  local known = tonumber(redis.call('ZSCORE', blocked_by, user) or 0)
  local tombstone_at = tonumber(redis.call('ZSCORE', unblocked, user) or 0)
  if blocks and (tombstone_at >= number or known > number) or not blocks and known >= number then
    return { STALE, 0, 0, math.max(known, tombstone_at) }
  end
  append_change(blocks and 'blocked' or 'unblocked', user, target, version)
  if not blocks then
    redis.call('ZREM', blocked_by, user)
    if tombstone_at < number then
      bury(unblocked, { version, user })
    end
    return { DONE, 0, 0, 0 }
  end

  local follows = follows_peer(following, following_ids, user)
  local ended = nil
  if follows then
    ended = version_of_end(issue(clock, issuer, 1)[1], following, user)
    append_change('unfollow', target, user, ended)
  end
  redis.call('ZADD', blocked_by, version, user)
  redis.call('ZREM', unblocked, user)
  redis.call('SADD', users, target)
  ended = end_follow(ended, pending, target, user, following, following_ids, mutual)
  return { DONE, ended, follower_since(followers, follower_ids, user), 0 }
end

-- Adds a target to a private list without inverse edges.
--
-- KEYS: clock, forgotten, users; of the user: the list.
-- ARGV: kind of change, issuer, user, target, limit of the list.
-- Returns outcome.
local function add(keys, args)
  local clock, forgotten, users, list = keys[1], keys[2], keys[3], keys[4]
  local issuer, user, target, limit = tonumber(args[2]), args[3], args[4], tonumber(args[5])
  if redis.call('SISMEMBER', forgotten, user) == 1 then
    return FORGOTTEN
  elseif redis.call('ZSCORE', list, target) then
    return UNCHANGED
  elseif redis.call('ZCARD', list) >= limit then
    return LIMIT
  end
  local version = issue(clock, issuer, 1)[1]
  append_change(args[1], user, target, version)
  redis.call('ZADD', list, version, target)
  redis.call('SADD', users, user)
  return DONE
end

-- Removes a target from a private list without inverse edges.
--
-- KEYS: clock; of the user: the list. ARGV: kind of change, user, target.
local function remove(keys, args)
  append_change(args[1], args[2], args[3], end_stamp(keys[1], args[2]))
  return redis.call('ZREM', keys[2], args[3])
end

-- Writes the inverse side of a recorded block where Redis has an older one, or none. The saga of the
-- block then ends the follows.
--
-- KEYS: of the target: blocked_by, unblocked. ARGV: user, version.
local function restore_blocked(keys, args)
  redis.call('ZADD', keys[1], 'GT', args[2], args[1])
  return redis.call('ZREM', keys[2], args[1])
end

register_recovery('relation_restore_blocked', restore_blocked)
register_change('relation_block', block, 'allow-oom')
register_change('relation_unblock', unblock, 'allow-oom')
register_change('relation_bump_block_version', bump_block_version, 'allow-oom')
register_change('relation_project_block', project_block, 'allow-oom')
register_change('relation_add', add, 'allow-oom')
register_change('relation_remove', remove, 'allow-oom')
