-- The atomic steps of the post service. Each runs in one partition and touches nothing else.
-- This is the beginning of the library, which the files in functions/ share; they follow it.
--
-- What must hold, whatever is repeated, reordered or lost between the steps (see posts.rs):
--   * a post exists if its hash does, and nothing that belongs to it outlives the hash but the
--     memory of requests;
--   * the hash's counts are the lengths of likes, comments and reposts; what is 0 is not kept;
--   * each comment of a post has a content, and none else has;
--   * a repost that came or went, of which a post in another partition may not know, is in `pending`;
--   * a post that may not have been delivered is in `outbox`;
--   * where there is an archive, what it may not know is in `unarchived`: posts and comments that
--     were made or ended; and what ended is there until the archive knows it;
--   * a post that was taken off its author's list for the archive is in `retired` as long as it is
--     here, and not newer than `horizon`; and the list ends with the member 0, which says that it
--     goes on in the archive, and by its score how many of the author's posts are not on it.
--
-- Functions do not roll back: nothing is written before every check is made.

-- What a step did; store/outcome.rs has the same numbers.
local DONE, UNCHANGED, OPEN, NOT_FOUND, THROTTLED, FORGOTTEN = 0, 1, 2, 3, 4, 5

-- What waits in `pending`: that a post is told of a repost that came or went.
local function waiting_repost(repost, target)
  return 'repost:' .. repost .. '>' .. target
end

local MINUTE_US = 60000000

-- For how long word of a repost can be on its way to a post at most: whoever tells one that is in
-- the archive brings it back first, and gives up within five times a minute and a half.
local IN_FLIGHT_SECONDS = 600

-- Returns whether a post that was told of the end of reposts may still be told of their beginning.
local function may_be_told(unreposted)
  local since = integer((now_ms() - IN_FLIGHT_SECONDS * 1000) * 4096)
  return #redis.call('ZRANGE', unreposted, since, '+inf', 'BYSCORE', 'LIMIT', 0, 1) > 0
end

-- The member 0 of an author's list has one more than the number of the author's posts that are not
-- on the list as its score, which is far below any post's id. What is not in between is no such
-- number: they have to be counted, since a version that did not count them wrote it, or since they
-- are being counted (see `count_unlisted`).
local UNLISTED_MAX = 2 ^ 40

-- Changes how many posts are not on an author's list by so many.
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

-- Notes that the archive may not know something, where there is one (see functions/archive.lua).
local function note(unarchived, stamp, what)
  if redis.call('EXISTS', unarchived) == 1 then
    redis.call('ZADD', unarchived, stamp, what)
  end
end

-- Changes one of a post's counts and returns it. What was read of the post to take it out of Redis
-- is not so any more.
local function count(post, field, change)
  redis.call('HDEL', post, 'm')
  local now = redis.call('HINCRBY', post, field, change)
  if now == 0 then
    redis.call('HDEL', post, field)
  end
  return now
end

-- Takes one of the places that an account has per minute, of which it may use all at once. Returns
-- 0, or how many milliseconds to wait for one. (The generic cell rate algorithm of ITU-T I.371:
-- the key holds when all so far would be done, were they done at an even pace. In whole
-- microseconds: rounded up ever so little each time, the last places would never be free at once.)
local function admit(pace, limit)
  if limit == 0 then
    return 0
  end
  local now, interval = now_ms() * 1000, math.floor(MINUTE_US / limit)
  local busy_until = tonumber(redis.call('GET', pace) or 0)
  -- Never further ahead than a minute, even where the clock was set back.
  busy_until = math.max(now, math.min(busy_until, now + MINUTE_US))
  local wait = busy_until + interval - MINUTE_US - now
  if wait > 0 then
    return math.ceil(wait / 1000)
  end
  redis.call('SET', pace, integer(busy_until + interval), 'EX', 60)
  return 0
end

register('post_mend_clock', mend_clock, 'allow-oom')
register('post_confirm', confirm, 'allow-oom')
