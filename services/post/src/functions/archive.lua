-- The archive: evictions and restores.

-- Acquires or renews a lease.
--
-- KEYS: lease. ARGV: holder, milliseconds. Returns 1 if the holder has it.
local function lease(keys, args)
  local holder = redis.call('GET', keys[1])
  if holder and holder ~= args[1] then
    return 0
  end
  redis.call('SET', keys[1], args[1], 'PX', args[2])
  return 1
end

-- Sets the remaining lifetime of a lease, if the holder still has it.
--
-- KEYS: lease. ARGV: holder, milliseconds. Returns 1 if the holder has it.
local function renew(keys, args)
  if redis.call('GET', keys[1]) ~= args[1] then
    return 0
  end
  return redis.call('PEXPIRE', keys[1], args[2])
end

-- Makes an author's oldest posts evictable: removes them from the list and raises the eviction
-- watermark. The posts stay in Redis until they are evicted. Stops at the first post that is not
-- delivered, or is not the oldest any more. Has no entry in the journal: the lists follow from the
-- posts.
--
-- KEYS: outbox, evictable, watermark; the author's posts.
-- ARGV: posts…, oldest first. Returns how many became evictable.
local function make_evictable(keys, args)
  local outbox, evictable, watermark, posts = unpack(keys)
  newest_of_journal()
  local oldest = redis.call('ZRANGE', posts, 0, #args)
  local at = oldest[1] == '0' and 1 or 0
  local count = 0
  for i, id in ipairs(args) do
    if oldest[at + i] ~= id or redis.call('ZSCORE', outbox, id) then
      break
    end
    redis.call('ZREM', posts, id)
    redis.call('ZADD', evictable, 0, id)
    count = i
  end
  if count > 0 then
    add_unlisted(posts, count)
    if tonumber(redis.call('GET', watermark) or 0) < tonumber(args[count]) then
      redis.call('SET', watermark, args[count])
    end
  end
  return count
end

-- Stores the count of an author's unlisted posts, unless it changed since the count began.
--
-- KEYS: the author's posts. ARGV: the token of the count, a score; the count.
-- Returns 1 if it was stored.
local function count_unlisted(keys, args)
  local score = redis.call('ZSCORE', keys[1], '0')
  if not score or tonumber(score) ~= tonumber(args[1]) then
    return 0
  end
  redis.call('ZADD', keys[1], integer(tonumber(args[2]) + 1), '0')
  return 1
end

-- Sets the eviction mark of a post: each later change of its lists removes the mark.
-- Not while an update of a deleted repost may be in flight: after a restore, it would put the
-- repost on the list again.
--
-- KEYS: clock, evictable; of the post: post, repost_tombstones. ARGV: issuer, post.
-- Returns the outcome (DONE, UNCHANGED, NOT_FOUND) and the mark.
local function mark(keys, args)
  local clock, evictable, post, repost_tombstones = keys[1], keys[2], keys[3], keys[4]
  if redis.call('EXISTS', post) == 0 then
    redis.call('ZREM', evictable, args[2])
    return { NOT_FOUND, 0 }
  end
  if may_be_in_flight(repost_tombstones) then
    return { UNCHANGED, 0 }
  end
  local stamp = issue(clock, tonumber(args[1]), 1)[1]
  redis.call('HSET', post, 'm', stamp)
  return { DONE, tonumber(stamp) }
end

-- Returns whether an erasure run's fence prevents evictions: `erasure_fence` holds the run's id, a
-- colon and the fence; 0 means lifted.
local function is_fenced(erasure_fence)
  local fence = redis.call('GET', erasure_fence)
  return fence and string.sub(fence, -2) ~= ':0'
end

-- Evicts a post whose mark is still set: the archive has all changes up to the mark.
--
-- KEYS: evictable; of the post: post, likes, comments, comment_bodies, reposts, repost_tombstones;
--       erasure_fence.
-- ARGV: post, mark.
-- Returns the outcome: DONE; UNCHANGED: the post changed, or is fenced (see erasure.rs).
local function evict(keys, args)
  local evictable, post = keys[1], keys[2]
  if redis.call('HGET', post, 'm') ~= args[2] or may_be_in_flight(keys[7])
    or is_fenced(keys[8]) then
    return UNCHANGED
  end
  append_change('evict', args[1], now_stamp(args[1]))
  call_with('UNLINK', post, { unpack(keys, 3, 7) })
  redis.call('ZREM', evictable, args[1])
  return DONE
end

-- Acquires the lease to restore a post, and deletes what an earlier attempt staged. Rejected if the
-- post is in Redis: it may change, and be evicted again, before its current state is staged.
-- Rejected if it has a tombstone: the archive may lack the deletion. A later deletion deletes the
-- lease.
--
-- KEYS: restoring, post_tombstones, post; staged… ARGV: holder, milliseconds, post.
-- Returns 1 if the lease was acquired.
local function begin_restore(keys, args)
  if redis.call('EXISTS', keys[3]) == 1 or redis.call('ZSCORE', keys[2], args[3])
    or lease(keys, args) == 0 then
    return 0
  end
  call_with('UNLINK', keys[4], rest(keys, 5))
  return 1
end

-- Checks the rate limit of restores, in the account's partition.
--
-- KEYS: restore_rate. ARGV: limit per minute. Returns the milliseconds to wait; 0 if admitted.
local function admit_restore(keys, args)
  return check_rate(keys[1], tonumber(args[1]))
end

-- Stages a part of a post's lists, for four times the lease, which each part renews.
--
-- KEYS: restoring, the staged list. ARGV: holder, milliseconds, the command that adds to such lists
--       (ZADD, HSET), its arguments…
-- Returns 1 if the holder has the lease.
local function stage(keys, args)
  if renew(keys, args) == 0 then
    return 0
  end
  call_with(args[3], keys[2], rest(args, 4))
  redis.call('PEXPIRE', keys[2], 4 * args[2])
  return 1
end

-- Returns whether all parts of a post are staged.
--
-- KEYS: as `place`. ARGV: as `place`.
local function is_staged(keys, args)
  for i, size in ipairs({ args[2], args[3], args[3], args[4] }) do
    if redis.call(i == 3 and 'HLEN' or 'ZCARD', keys[5 + i]) ~= tonumber(size) then
      return false
    end
  end
  return true
end

-- Moves the staged parts of a post into place.
--
-- KEYS: of the post: post, likes, comments, comment_bodies, reposts; the staged lists, in the same
--       order. ARGV: content, likes, comments, reposts.
local function place(keys, args)
  for i, size in ipairs({ args[2], args[3], args[3], args[4] }) do
    if size ~= '0' then
      redis.call('PERSIST', keys[5 + i])
      redis.call('RENAME', keys[5 + i], keys[1 + i])
    end
  end
  redis.call('HSET', keys[1], 'b', args[1])
  for i, field in ipairs({ 'l', 'c', 'r' }) do
    if args[1 + i] ~= '0' then
      redis.call('HSET', keys[1], field, args[1 + i])
    end
  end
end

-- Restores a post from its staged lists.
--
-- KEYS: those of `place`; restoring, post_tombstones, evictable, erasure_fence.
-- ARGV: those of `place`; holder, post, the score until when it stays, the value of `erasure_fence`
--       from before the archive was read.
-- Returns the outcome: DONE; UNCHANGED: the post is in Redis; NOT_FOUND: it was deleted;
-- INCOMPLETE: retry, since the attempt took too long, or a run erases since the archive was read.
local function restore(keys, args)
  local restoring, post_tombstones, evictable, erasure_fence = unpack(keys, 10)
  local holder, id, until_stamp, fence = unpack(args, 5)
  if redis.call('GET', restoring) ~= holder then
    return INCOMPLETE
  end
  redis.call('UNLINK', restoring)
  if (redis.call('GET', erasure_fence) or '') ~= fence then
    return INCOMPLETE
  end
  if redis.call('ZSCORE', post_tombstones, id) then
    return NOT_FOUND
  end
  if redis.call('EXISTS', keys[1]) == 1 then
    return UNCHANGED
  end
  if not is_staged(keys, args) then
    return INCOMPLETE
  end
  append_change('restore', id, now_stamp(id))
  place(keys, args)
  redis.call('ZADD', evictable, until_stamp, id)
  return DONE
end

-- Recovery: removes a post that the archive has, or whose deletion it has.
--
-- KEYS: evictable, outbox; the post's keys. ARGV: post.
local function drop(keys, args)
  redis.call('ZREM', keys[1], args[1])
  redis.call('ZREM', keys[2], args[1])
  redis.call('UNLINK', unpack(keys, 3))
end

-- Recovery: begins an author's list anew. It is in the archive alone.
--
-- KEYS: authors; the author's posts. ARGV: author, the number of posts in the archive.
local function recover_author(keys, args)
  redis.call('UNLINK', keys[2])
  if args[2] ~= '0' then
    redis.call('SADD', keys[1], args[1])
    redis.call('ZADD', keys[2], integer(args[2] + 1), '0')
  end
end

-- Recovery: writes the newest archived post that is not on its author's list, from its staged lists.
--
-- KEYS: those of `place`; restoring, outbox; the author's posts.
-- ARGV: those of `place`; holder, post, 1 to deliver it.
-- Returns the outcome: DONE; INCOMPLETE: the attempt took too long.
local function recover_post(keys, args)
  local restoring, outbox, posts = unpack(keys, 10)
  local holder, id, deliver = unpack(args, 5)
  if redis.call('GET', restoring) ~= holder or not is_staged(keys, args) then
    return INCOMPLETE
  end
  redis.call('UNLINK', restoring)
  place(keys, args)
  redis.call('ZADD', posts, id, id)
  add_unlisted(posts, -1)
  if tonumber(redis.call('ZSCORE', posts, '0')) == 1 then
    redis.call('ZREM', posts, '0')
  end
  if deliver == '1' then
    redis.call('ZADD', outbox, id, id)
  end
  return DONE
end

-- Recovery: marks an account as deleted; as being erased, unless that is complete.
--
-- KEYS: forgotten, forgetting. ARGV: account, since, 1 if it is complete.
local function recover_deletion(keys, args)
  if redis.call('SADD', keys[1], args[1]) == 1 and args[3] == '0' then
    redis.call('ZADD', keys[2], args[2], args[1])
  end
end

-- Adds a member to a sorted set, or changes its score. The evictor needs this at `maxmemory`.
--
-- KEYS: the set. ARGV: NX or XX, as for ZADD; score, member.
local function add_to_set(keys, args)
  redis.call('ZADD', keys[1], args[1], args[2], args[3])
end

-- Writes a string: the state or a fence of an erasure run. Erasing frees memory, so it must work at
-- `maxmemory`.
--
-- KEYS: the string. ARGV: its value.
local function set(keys, args)
  redis.call('SET', keys[1], args[1])
end

register('post_add_to_set', add_to_set, 'allow-oom')
register('post_set', set, 'allow-oom')
register('post_lease', lease, 'allow-oom')
register('post_renew', renew, 'allow-oom')
register_change('post_make_evictable', make_evictable, 'allow-oom')
register('post_count_unlisted', count_unlisted, 'allow-oom')
register('post_mark', mark, 'allow-oom')
register_change('post_evict', evict, 'allow-oom')
register('post_begin_restore', begin_restore)
register('post_admit_restore', admit_restore)
register('post_stage', stage)
register_change('post_restore', restore)
register_recovery('post_recover_watermark', set, 'allow-oom')
register_recovery('post_recover_drop', drop, 'allow-oom')
register_recovery('post_recover_author', recover_author)
register_recovery('post_recover_post', recover_post)
register('post_recover_deletion', recover_deletion)
