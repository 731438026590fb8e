-- The archive: its outbox, evictions and restores.
--
-- Members of `archive_outbox`, scored by stamp: p<post>: created; x<post>: deleted, a tombstone;
-- c<post>:<comment> and d<post>:<comment>: likewise for comments. The member - with
-- the score 0 enables the outbox for good: without it, no entries are added.

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
-- watermark. The posts stay in Redis until they are evicted. Stops at the first post that has an
-- outbox entry, or is not the oldest any more.
--
-- KEYS: archive_outbox, outbox, evictable, watermark; the author's posts.
-- ARGV: posts…, oldest first. Returns how many became evictable.
local function make_evictable(keys, args)
  local archive_outbox, outbox, evictable, watermark, posts = unpack(keys)
  local oldest = redis.call('ZRANGE', posts, 0, #args)
  local at = oldest[1] == '0' and 1 or 0
  local count = 0
  for i, id in ipairs(args) do
    if oldest[at + i] ~= id or redis.call('ZSCORE', archive_outbox, 'p' .. id)
      or redis.call('ZSCORE', outbox, id) then
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

-- Sets the eviction mark of a post, before it is read: each change of its lists removes the mark.
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

-- Evicts a post whose mark is still set: the archive has its current snapshot.
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
  call_with('UNLINK', post, { unpack(keys, 3, 7) })
  redis.call('ZREM', evictable, args[1])
  return DONE
end

-- Acquires the lease to restore a post, and deletes what an earlier attempt staged. Rejected if the
-- post is in Redis: it may change, and be evicted again, before the current snapshot is staged.
-- Rejected if it has a tombstone, which may not be archived; a later deletion deletes the lease.
--
-- KEYS: restoring, archive_outbox, post; staged… ARGV: holder, milliseconds, post.
-- Returns 1 if the lease was acquired.
local function begin_restore(keys, args)
  if redis.call('EXISTS', keys[3]) == 1 or redis.call('ZSCORE', keys[2], 'x' .. args[3])
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

-- Restores a post from its staged lists.
--
-- KEYS: restoring, archive_outbox, evictable; of the post: post, likes, comments, comment_bodies,
--       reposts; the staged lists, in the same order; erasure_fence.
-- ARGV: holder, post, the score until when it stays, content, likes, comments, reposts, the value
--       of `erasure_fence` from before the archive was read.
-- Returns the outcome: DONE; UNCHANGED: the post is in Redis; NOT_FOUND: it was deleted;
-- INCOMPLETE: retry, since the attempt took too long, or a run erases since the archive was read.
local function restore(keys, args)
  local restoring, archive_outbox, evictable, post = keys[1], keys[2], keys[3], keys[4]
  if redis.call('GET', restoring) ~= args[1] then
    return INCOMPLETE
  end
  redis.call('UNLINK', restoring)
  if (redis.call('GET', keys[13]) or '') ~= args[8] then
    return INCOMPLETE
  end
  if redis.call('ZSCORE', archive_outbox, 'x' .. args[2]) then
    return NOT_FOUND
  end
  if redis.call('EXISTS', post) == 1 then
    return UNCHANGED
  end
  -- All parts must be staged before anything is written.
  local sizes = { tonumber(args[5]), tonumber(args[6]), tonumber(args[6]), tonumber(args[7]) }
  for i, size in ipairs(sizes) do
    if redis.call(i == 3 and 'HLEN' or 'ZCARD', keys[8 + i]) ~= size then
      return INCOMPLETE
    end
  end
  for i, size in ipairs(sizes) do
    if size > 0 then
      redis.call('PERSIST', keys[8 + i])
      redis.call('RENAME', keys[8 + i], keys[4 + i])
    end
  end
  redis.call('HSET', post, 'b', args[4])
  for i, field in ipairs({ 'l', 'c', 'r' }) do
    if args[4 + i] ~= '0' then
      redis.call('HSET', post, field, args[4 + i])
    end
  end
  redis.call('ZADD', evictable, args[3], args[2])
  return DONE
end

-- Adds a member to a sorted set, or changes its score. The archiver and the evictor need this at
-- `maxmemory`.
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
register('post_make_evictable', make_evictable, 'allow-oom')
register('post_count_unlisted', count_unlisted, 'allow-oom')
register('post_mark', mark, 'allow-oom')
register('post_evict', evict, 'allow-oom')
register('post_begin_restore', begin_restore)
register('post_admit_restore', admit_restore)
register('post_stage', stage)
register('post_restore', restore)
