-- The atomic steps of the post service. Each runs in one partition and accesses no other. This is
-- the head of the library; the files in functions/ follow it and share it.
--
-- Invariants, however steps are repeated, reordered or lost (see posts.rs):
--
-- * A post exists if its hash does. Only idempotency keys outlive the hash.
-- * The counts in the hash are the lengths of likes, comments and reposts; 0 is not stored.
-- * Each comment of a post has a body, and there are no other bodies.
-- * `pending` has each backlink update that a post in another partition may not have.
-- * `outbox` has each post that may not have been delivered; `delivered` those of the last hour that
--   were.
-- * Each change of a post or its lists is in the journal, if there is one (see journal.lua).
-- * `post_tombstones` has each deleted post that the archive may still have.
-- * An evictable post has left its author's list for the archive. It is in `evictable` while it is
--   in Redis, and is not above `watermark`. The list then ends with the archive marker, the member
--   0. Its score counts the author's unlisted posts.
--
-- Functions do not roll back: all checks come before the first write.

-- The outcomes of steps, numbered as in store/decode.rs.
local DONE, UNCHANGED, INCOMPLETE, NOT_FOUND, THROTTLED, ACCOUNT_DELETED = 0, 1, 2, 3, 4, 5

-- Returns the member of `pending` for a repost and a post that counts it.
local function pending_member(repost, target)
  return 'repost:' .. repost .. '>' .. target
end

local MINUTE_US = 60000000

-- The longest time that an update of a repost may be in flight. Notifying an archived post restores
-- it first, with up to five attempts of a minute and a half each.
local IN_FLIGHT_SECONDS = 600

-- Returns whether an update of a deleted repost may still be in flight: one with a recent
-- tombstone.
local function may_be_in_flight(repost_tombstones)
  local since = integer((now_ms() - IN_FLIGHT_SECONDS * 1000) * 4096)
  return #redis.call('ZRANGE', repost_tombstones, since, '+inf', 'BYSCORE', 'LIMIT', 0, 1) > 0
end

-- The score of the archive marker is one more than the number of the author's unlisted posts, and
-- far below any id. 0, or a score from UNLISTED_MAX on, means that they are not counted: an older
-- version wrote it, or a count is in progress (see `count_unlisted`).
local UNLISTED_MAX = 2 ^ 40

-- Changes the number of an author's unlisted posts.
local function add_unlisted(posts, change)
  local score = tonumber(redis.call('ZSCORE', posts, '0') or 1)
  if score == 1 and change < 0 then
    return
  elseif score < 1 or score >= UNLISTED_MAX then
    redis.call('ZADD', posts, 0, '0')
  else
    redis.call('ZADD', posts, integer(score + change), '0')
  end
end

-- Changes one of a post's counts and returns it. Removes the eviction mark: the archive may lack the
-- change.
local function count(post, field, change)
  redis.call('HDEL', post, 'm')
  local now = redis.call('HINCRBY', post, field, change)
  if now == 0 then
    redis.call('HDEL', post, field)
  end
  return now
end

-- Returns the stamp of the end of what began in a post's partition: not before its beginning, also if
-- the time went back. Needs TIME.
local function stamp_of_end(post, since)
  return integer(math.max(tonumber(now_stamp(post)), tonumber(since)))
end

-- Checks a rate limit per minute. All of it may be used as a burst. Returns 0 and takes one
-- unit, or returns the milliseconds to wait. This is the generic cell rate algorithm of ITU-T
-- I.371: the key holds the theoretical arrival time. In whole microseconds, rounded down: rounding
-- up would make the last units of a burst wait.
local function check_rate(rate, limit)
  if limit == 0 then
    return 0
  end
  local now, interval = now_ms() * 1000, math.floor(MINUTE_US / limit)
  local busy_until = tonumber(redis.call('GET', rate) or 0)
  -- At most a minute ahead, even after the clock was set back.
  busy_until = math.max(now, math.min(busy_until, now + MINUTE_US))
  local wait = busy_until + interval - MINUTE_US - now
  if wait > 0 then
    return math.ceil(wait / 1000)
  end
  redis.call('SET', rate, integer(busy_until + interval), 'EX', 60)
  return 0
end

-- Changes nothing. Its caller waits until all changes of the partition are durable (see journal.lua).
--
-- KEYS: the clock.
local function await_changes()
  return 0
end

register_change('post_await_changes', await_changes, 'allow-oom')
register('post_repair_clock', repair_clock, 'allow-oom')
register('post_raise_clock', raise_clock, 'allow-oom')
register('post_confirm', confirm, 'allow-oom')
